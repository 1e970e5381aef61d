"""From the trace of a step to a problem of tiling: tensors are arrays, ops are nodes with the rules of DTensor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from treadle.capture.costs.counting import dtype_of, signature
from treadle.passes.tiling.blocks import blocks_of
from treadle.planner.documents.trace import Op, Tensor, Trace
from treadle.planner.errors import InputError
from treadle.planner.passes.tiling.problem import (
    VERSION,
    ArrayNode,
    ArrayTiling,
    CostModel,
    MeshAxis,
    TiledArray,
    TilingProblem,
    TilingRule,
)
from treadle.runtime.tiling.rules import rules_of

SOURCES = ("parameter", "buffer", "input", "tangent")
"""Roles of tensors that are there before the step; a node stands for each, with its role as its function."""


@dataclass(frozen=True)
class ModelTiling:
    """What the problem of a model depends on besides its trace. `fixed` are tilings by tensor."""

    mesh: tuple[MeshAxis, ...]
    model: CostModel = "time"
    memory_bytes: int | None = None
    states: int = 2
    """States of the optimizer for each weight."""
    call_ns: int = 0
    fixed: Mapping[str, ArrayTiling] | None = None


@dataclass(frozen=True)
class TracedProblem:
    """`unruled` counts the calls of each operator that has no rule, and is replicated."""

    problem: TilingProblem
    unruled: Mapping[str, int]


def problem_of_trace(
    trace: Trace, setup: ModelTiling, progress: Callable[[int, int, str], None] = lambda done, of, target: None
) -> TracedProblem:
    """The problem of a captured step.

    Outputs are those of the step, gradients, new values of buffers, and what outlives the step: parameters and buffers.
    A gradient has the tiling of its parameter. Updates of an optimizer are left out; what it keeps counts as memory.
    `progress` is called with (done, total, target) for each op. Raises InputError for a trace without arguments or
    shapes, or whose shapes depend on data.
    """
    tensors = {tensor.id: tensor for tensor in trace.tensors}
    ops = tuple(op for op in trace.ops if op.phase != "optimizer" and op.intermediate_of is None)
    rules, unruled = _Rules(setup.mesh), Counter[str]()
    there = [tensor for tensor in trace.tensors if tensor.role in SOURCES]
    blocks = blocks_of(ops, tensors)
    nodes = [_source(tensor, blocks.get(tensor.id)) for tensor in there]
    for done, op in enumerate(ops):
        progress(done, len(ops), op.target)
        _require_known(trace, op, tensors)
        numbers = rules.of(op, tensors)
        if not numbers:
            unruled[op.target] += 1
            numbers = rules.whole(op)
        nodes.append(_called(op, numbers, setup.call_ns, blocks.get(op.id)))
    made = {name for node in nodes for name in node.outputs}
    outputs = [name for name in dict.fromkeys(_outputs(trace)) if name in made]
    kept = {t.gradient_of for t in trace.tensors if t.gradient_of}
    arrays = tuple(
        _array(tensor, made, setup.states if tensor.id in kept and tensor.role == "parameter" else 0, setup.fixed or {})
        for tensor in _in_order(nodes, tensors)
    )
    problem = TilingProblem(
        version=VERSION,
        name=trace.name,
        model=setup.model,
        mesh=setup.mesh,
        arrays=arrays,
        nodes=tuple(nodes),
        outputs=tuple(outputs),
        rules=rules.known,
        call_ns=setup.call_ns,
        memory_bytes=setup.memory_bytes,
    )
    return TracedProblem(problem, unruled)


class _Rules:
    """The rules of calls, each in the list once; calls that are the same on the same shapes are asked once."""

    def __init__(self, mesh: Sequence[MeshAxis]) -> None:
        self._sizes = sorted({axis.size for axis in mesh if axis.size > 1}) or [2]
        self._numbers: dict[TilingRule, int] = {}
        self._asked: dict[str, tuple[int, ...]] = {}

    @property
    def known(self) -> tuple[TilingRule, ...]:
        return tuple(self._numbers)

    def of(self, op: Op, tensors: Mapping[str, Tensor]) -> tuple[int, ...]:
        """Numbers of the rules of `op`, if any. An op that reads no tensor is computed whole."""
        if not op.inputs:
            return self.whole(op)
        places = [op.inputs.index(name) for name in op.inputs]
        key = f"{signature(op, tensors)} {places} {[name is None for name in op.outputs]}"
        if key not in self._asked:
            found = dict.fromkeys(rule for size in self._sizes for rule in rules_of(op, tensors, size))
            self._asked[key] = tuple(self._number(_of_made(op, rule)) for rule in found)
        return self._asked[key]

    def whole(self, op: Op) -> tuple[int, ...]:
        outputs = tuple("R" for name in op.outputs if name is not None)
        return (self._number(TilingRule(inputs=("R",) * len(op.inputs), outputs=outputs)),)

    def _number(self, rule: TilingRule) -> int:
        return self._numbers.setdefault(rule, len(self._numbers))


def _of_made(op: Op, rule: TilingRule) -> TilingRule:
    made = tuple(word for word, name in zip(rule.outputs, op.outputs, strict=True) if name is not None)
    return TilingRule(inputs=rule.inputs, outputs=made)


def _source(tensor: Tensor, block: str | None) -> ArrayNode:
    return ArrayNode(
        id=tensor.id,
        operator="newarray",
        function=tensor.role,
        outputs=(tensor.id,),
        params={"name": tensor.name} if tensor.name else {},
        block=block,
    )


def _called(op: Op, rules: tuple[int, ...], call_ns: int, block: str | None) -> ArrayNode:
    return ArrayNode(
        id=op.id,
        operator="rule",
        function=op.target,
        inputs=op.inputs,
        outputs=tuple(name for name in op.outputs if name is not None),
        rules=rules,
        work_ns=max(0, (op.time_ns or 0) - call_ns),
        block=block,
    )


def _array(tensor: Tensor, made: set[str], states: int, fixed: Mapping[str, ArrayTiling]) -> TiledArray:
    size = dtype_of(tensor).itemsize
    return TiledArray(
        id=tensor.id,
        shape=tensor.shape or (),
        dtype=tensor.dtype or "float32",
        item_bytes=size,
        kept_item_bytes=size * states,
        fixed=fixed.get(tensor.id) or (fixed.get(tensor.name) if tensor.name else None),
        like=tensor.gradient_of if tensor.gradient_of in made else None,
        shares=tensor.alias_of if tensor.alias_of in made else None,
    )


def _in_order(nodes: Sequence[ArrayNode], tensors: Mapping[str, Tensor]) -> Iterator[Tensor]:
    return (tensors[name] for node in nodes for name in node.outputs)


def _outputs(trace: Trace) -> Iterator[str]:
    yield from trace.outputs
    yield from (tensor.id for tensor in trace.tensors if tensor.gradient_of)
    yield from (new for _, new in trace.updates)
    yield from (tensor.id for tensor in trace.tensors if tensor.role in ("parameter", "buffer"))


def _require_known(trace: Trace, op: Op, tensors: Mapping[str, Tensor]) -> None:
    if op.args is None:
        text = f"op {op.id!r} has no recorded arguments, expected those of a trace of `treadle trace capture`"
        raise InputError(text, where=trace.name)
    for name in (*op.inputs, *op.outputs):
        if name is not None and (tensors[name].shape is None or tensors[name].dtype is None):
            text = f"tensor {name!r} of op {op.id!r} has no shape, expected shapes that do not depend on data"
            raise InputError(text, where=trace.name)
