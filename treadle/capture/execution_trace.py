"""PyTorch's ExecutionTrace JSON (`torch.profiler.ExecutionTraceObserver`): operators with tensor identities, no times.

The file nests every call inside its caller. An op of the trace is an outermost operator, the level that autograd works
at; what it calls inside is its own affair. Backward is what the autograd engine calls, optimizer what runs inside
`Optimizer.step` or `zero_grad`, forward the rest.
"""

from __future__ import annotations

from typing import Any

import msgspec

from treadle.capture.imported import collective_of, imported, phase_of, target_of
from treadle.capture.observed import Observed, tensors_of
from treadle.capture.reading import decode_json
from treadle.planner.documents.trace import Op, Phase, Role, Tensor, Trace
from treadle.planner.errors import InputError


class Arguments(msgspec.Struct):
    values: list[Any] = []
    shapes: list[Any] = []
    types: list[Any] = []
    strides: list[Any] = []


class Attribute(msgspec.Struct):
    name: str
    value: Any = None


class TraceNode(msgspec.Struct):
    """One call; `ctrl_deps` is its caller. Files before schema 1.0.3 write flat lists instead of `Arguments`."""

    id: int
    name: str
    ctrl_deps: int | None = None
    parent: int | None = None
    inputs: Arguments | list[Any] = []
    outputs: Arguments | list[Any] = []
    input_shapes: list[Any] = []
    input_types: list[Any] = []
    output_shapes: list[Any] = []
    output_types: list[Any] = []
    attrs: list[Attribute] = []
    op_schema: str = ""
    rf_id: int | None = None


class File(msgspec.Struct):
    schema: str
    nodes: list[TraceNode]


def from_json(data: bytes, where: str) -> Trace:
    """The trace in an ExecutionTrace file. Raises InputError for malformed or contradictory text."""
    file = decode_json(data, File, where)
    nodes = {node.id: node for node in file.nodes}
    if len(nodes) != len(file.nodes):
        raise InputError("found two nodes of one id, expected ids that occur once", where=where, path="$.nodes")
    observed = Observed()
    ops: list[Op] = []
    gradients: list[str] = []
    for node in sorted(file.nodes, key=_order):
        callers = _callers(node, nodes, where)
        if node.name == "torch::autograd::AccumulateGrad":
            arguments = list(_tensors(node, "input"))
            gradients += [observed.current[seen.number] for seen in arguments if seen.number in observed.current]
        elif _schema(node) and not any(_schema(caller) for caller in callers):
            ops.append(_op(node, phase_of(caller.name for caller in callers), observed))
    gradients = list(dict.fromkeys(gradients))
    tensors = (_with_role(tensor, gradients) for tensor in observed.tensors.values())
    return imported("execution-trace", "absent", ops, where, tensors, gradients)


def _op(node: TraceNode, phase: Phase, observed: Observed) -> Op:
    role: Role = {"forward": "activation", "backward": "gradient"}.get(phase, "unknown")  # type: ignore[assignment]
    schema = _schema(node)
    arguments = list(_tensors(node, "input"))
    inputs = observed.read(arguments)
    changed = tuple(
        observed.current[seen.number] for place in _written(schema) for seen in _tensors(node, "input", place)
    )
    outputs = observed.write(list(_tensors(node, "output")), inputs, role)
    collective = collective_of(target_of(schema, node.name))
    moved = sum(seen.bytes for seen in dict.fromkeys(arguments))
    return Op(
        id=f"op{node.id}",
        target=target_of(schema, node.name),
        phase=phase,
        inputs=inputs,
        outputs=outputs,
        mutates=tuple(dict.fromkeys(changed)),
        comm={"collective": collective, "bytes": moved} if collective else None,
    )


def _tensors(node: TraceNode, side: str, place: int | None = None) -> Any:
    held = getattr(node, f"{side}s")
    if isinstance(held, Arguments):
        lists = [held.values, held.shapes, held.types, held.strides]
    else:
        lists = [held, getattr(node, f"{side}_shapes"), getattr(node, f"{side}_types"), []]
    if place is not None:
        lists = [items[place : place + 1] for items in lists]
    return tensors_of(*lists)


def _written(schema: str) -> list[int]:
    """Positions of the arguments that the schema marks as written to, as in `Tensor(a!) self`."""
    inside = schema.partition("(")[2].rpartition("->")[0]
    return [place for place, text in enumerate(inside.split(", ")) if "!" in text]


def _callers(node: TraceNode, nodes: dict[int, TraceNode], where: str) -> list[TraceNode]:
    found: list[TraceNode] = []
    seen = {node.id}
    while (above := node.ctrl_deps if node.ctrl_deps is not None else node.parent) in nodes and above != node.id:
        assert above is not None
        if above in seen:
            raise InputError(f"node {above} calls itself, expected nested calls", where=where, path="$.nodes")
        seen.add(above)
        node = nodes[above]
        found.append(node)
    return found


def _schema(node: TraceNode) -> str:
    return node.op_schema or next((str(a.value) for a in node.attrs if a.name == "op_schema" and a.value), "")


def _order(node: TraceNode) -> tuple[int, int]:
    started = node.rf_id if node.rf_id is not None else next((a.value for a in node.attrs if a.name == "rf_id"), None)
    return (started if isinstance(started, int) else node.id, node.id)


def _with_role(tensor: Tensor, gradients: list[str]) -> Tensor:
    return msgspec.structs.replace(tensor, role="gradient") if tensor.id in gradients else tensor
