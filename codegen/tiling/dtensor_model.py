"""PyTorch text of a model's tiling plan: `step.py`, one training step on the tiles of one worker.

Each call is that of the trace, on the tiles in which the plan reads its inputs; each transfer between workers is a call
on `mesh`, in the order of the plan's steps. Nothing else communicates: the text works on plain tensors, so that no
dispatcher of DTensor can add a redistribution, and costs no time of one. `treadle.runtime.tiling.dispatcher` asks it
whether each call leaves its results in the tilings that the plan says.

Arguments that are sizes of a result are those of its tile. The mean over a cut axis is the mean over a part, divided by
the number of parts, of which the sum is the mean over all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

from treadle.codegen.python_text import (
    PythonTree,
    calling,
    constants,
    labelled,
    layout,
    literal,
    python_names,
    returning,
    word,
)
from treadle.codegen.templates import quote, template
from treadle.codegen.tiling.moves import local_shape, moved
from treadle.planner.documents.scalars import many
from treadle.planner.documents.trace import Op, Trace
from treadle.planner.errors import InputError
from treadle.planner.graph.gradients import handed
from treadle.planner.graph.index import Graph
from treadle.planner.passes.tiling.decisions import NodeTiling, TiledEdge, TilingDecisions
from treadle.planner.passes.tiling.problem import ArrayTiling

FILE_NAME = "step.py"
SIZED = {
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "expand", "new_empty", "new_full", "new_ones", "new_zeros"), 1),
    **dict.fromkeys(("slice_backward", "select_backward", "unfold_backward", "diagonal_backward"), 1),
}
"""Operators of which this argument is the shape of the result."""
FILLING = ("arange", "empty", "eye", "full", "linspace", "ones", "scalar_tensor", "zeros")
"""Operators without input tensors, which run whole; the parts are taken afterwards."""
WITHOUT_STRIDES = {"aten.view.default": "aten.reshape.default", "aten._unsafe_view.default": "aten.reshape.default"}
MEANS = ("aten.mean.default", "aten.mean.dim")
LOSS = "aten.nll_loss_forward.default"
MEAN_LOSSES = {"aten.mse_loss.default": 2, "aten.binary_cross_entropy_with_logits.default": 4}
"""Losses whose reduction is this argument, the mean where it is 1 or absent."""
MEAN_BACKWARDS = {
    **dict.fromkeys(("aten.mse_loss_backward.default", "aten.smooth_l1_loss_backward.default"), 3),
    **dict.fromkeys(("aten.huber_loss_backward.default", "aten.l1_loss_backward.default"), 3),
    "aten.binary_cross_entropy_backward.default": 4,
}
"""They divide by the number of elements that they see."""
DROPOUT = "aten.native_dropout.default"
ADDING = ("aten.addmm.default", "aten.baddbmm.default", "aten.addmv.default")
"""Their first input is added to a product; where the product is a partial one, by one worker only."""
BY_ADDRESS = ("aten.as_strided.default", "aten.as_strided_copy.default", "aten.as_strided_scatter.default")


def step_text(decisions: TilingDecisions, trace: Trace) -> str:
    """The module of `decisions`. Raises InputError where they do not belong to the trace, and for what tiles cannot
    compute."""
    writer = _Writer(decisions, Graph(trace))
    forward, backward = list(writer.forward()), list(writer.backward())
    return template("tiling/step.py.j2").render(
        name=trace.name,
        mesh=" x ".join(f"{axis.size} {axis.name}" for axis in decisions.problem.mesh),
        calls=many(len(writer.ops), "call"),
        steps=many(sum(len(edge.steps) for edge in decisions.edges), "step"),
        kernels=any(op.target.startswith("treadle.") for op in writer.ops),
        objects=any("objects.made(" in line for line in returning(trace)),
        called=trace.called is not None,
        constants=list(writer.constants()),
        returned=list(returning(trace)),
        forward=forward,
        backward=backward,
    )


@dataclass(frozen=True)
class _Writer:
    decisions: TilingDecisions
    graph: Graph

    @cached_property
    def ops(self) -> list[Op]:
        """The calls of the step, in order: those with a node."""
        found = [self.graph.ops[node.id] for node in self.decisions.problem.nodes if node.id in self.graph.ops]
        for op in found:
            if op.args is None or op.mutates:
                reason = "no recorded arguments" if op.args is None else f"an in-place write to {op.mutates[0]!r}"
                raise InputError(f"op {op.id!r} has {reason}, expected a trace captured from PyTorch", where=self.where)
        missing = {t for op in found for t in op.inputs if t in self.graph.producer} - self.names.keys()
        if missing:
            text = f"found no node that makes {min(missing)!r}, expected a plan of this trace"
            raise InputError(text, where=self.where)
        return found

    @property
    def where(self) -> str:
        return self.graph.trace.name

    @cached_property
    def nodes(self) -> dict[str, NodeTiling]:
        return {node.node: node for node in self.decisions.nodes}

    @cached_property
    def edges(self) -> dict[tuple[str, str, int | None], TiledEdge]:
        return {(edge.array, edge.node, edge.reading): edge for edge in self.decisions.edges}

    @cached_property
    def tilings(self) -> dict[str, ArrayTiling]:
        arrays = self.decisions.problem.arrays
        return {array.id: tiling for array, tiling in zip(arrays, self.decisions.tilings, strict=True)}

    @cached_property
    def names(self) -> dict[str, str]:
        """Python name of every tensor that a call makes."""
        calls = (node for node in self.decisions.problem.nodes if node.id in self.graph.ops)
        return python_names((tensor for node in calls for tensor in node.outputs), {*_RESERVED})

    @cached_property
    def external(self) -> dict[str, str]:
        """Expression of every parameter, buffer, input and tangent."""
        trace = self.graph.trace
        found = {tensor: f"inputs[{index}]" for index, tensor in enumerate(trace.inputs)}
        found |= {tensor: f"tangents[{index}]" for index, tensor in enumerate(trace.tangents)}
        for tensor in trace.tensors:
            if tensor.role in ("parameter", "buffer") and tensor.id not in self.graph.producer:
                found[tensor.id] = f"{tensor.role}s[{quote(tensor.name or tensor.id)}]"
        return found

    def leaf_name(self, tensor: str) -> str:
        trace = self.graph.trace
        if tensor in trace.inputs:
            return f"input {trace.inputs.index(tensor)}"
        return self.graph.tensors[tensor].name or tensor

    def constants(self) -> Iterator[str]:
        trace, tensors, mesh = self.graph.trace, self.graph.tensors, self.decisions.problem.mesh
        yield from constants(MESH=[[axis.name, axis.size] for axis in mesh])
        for heading, role in (("PARAMETERS", "parameter"), ("BUFFERS", "buffer")):
            of_role = [t for t in trace.tensors if t.role == role]
            yield from constants(**{heading: {t.name or t.id: [t.dtype, t.shape] for t in of_role}})
        inputs = [[tensors[i].dtype, tensors[i].shape, tensors[i].stride] for i in trace.inputs]
        yield from calling(trace)
        places = trace.tangent_of or tuple(range(len(trace.tangents)))
        gives = [self.leaf_name(leaf) for leaf, _ in self.gradients]
        yield from constants(INPUTS=inputs, TANGENTS=places, GRADIENTS=gives)
        read = {t for op in trace.ops for t in op.inputs if tensors[t].role in ("parameter", "input")}
        trained = {leaf for leaf, _ in self.gradients}
        frozen = sorted(self.leaf_name(leaf) for leaf in read - trained - set(trace.detached))
        yield from constants(FROZEN=frozen, EVALUATING=trace.evaluating, UNTRAINED=list(trace.untrained))
        if trace.autocast is not None:
            yield from constants(AUTOCAST=trace.autocast)
        named = {t.name or t.id: self.tilings[t.id] for t in trace.tensors if t.role in ("parameter", "buffer")}
        named |= {f"input {place}": self.tilings[tensor] for place, tensor in enumerate(trace.inputs)}
        named |= {f"output {place}": self.tilings[tensor] for place, tensor in enumerate(trace.outputs)}
        named |= {f"tangent {place}": self.tilings[tensor] for place, tensor in enumerate(trace.tangents)}
        yield from constants(TILINGS=named)

    @cached_property
    def gradients(self) -> list[tuple[str, str]]:
        pairs = [pair for pair in handed(self.graph.trace) if pair[1] in self.tilings]
        for leaf, gradient in pairs:
            if self.tilings[leaf] != self.tilings[gradient]:
                text = f"found the gradient {gradient!r} in another tiling than {leaf!r}, expected the same"
                raise InputError(text, where=self.where)
        return pairs

    @cached_property
    def last_reads(self) -> dict[str, str]:
        """By tensor the id of the last op that reads it, or of the one that makes it."""
        found = {tensor: op.id for op in self.ops for tensor in op.outputs if tensor is not None}
        found.update((tensor, op.id) for op in self.ops for tensor in op.inputs)
        ends = (gradient for _, gradient in self.gradients)
        kept = {*self.graph.trace.outputs, *ends, *(value for _, value in self.graph.trace.updates)}
        return {tensor: op for tensor, op in found.items() if tensor in self.names and tensor not in kept}

    @cached_property
    def saved(self) -> list[str]:
        made = {tensor for op in self.ops if op.phase != "backward" for tensor in op.outputs}
        read = {tensor for op in self.ops if op.phase == "backward" for tensor in op.inputs}
        ends = {gradient for _, gradient in self.gradients}
        return sorted(tensor for tensor in made & (read | ends) if tensor is not None)

    @cached_property
    def kept_buffers(self) -> list[str]:
        """Buffers whose old value the backward pass reads."""
        written = {buffer for buffer, _ in self.graph.trace.updates}
        return sorted({t for op in self.ops if op.phase == "backward" for t in op.inputs if t in written})

    def forward(self) -> Iterator[str]:
        trace = self.graph.trace
        yield "    saved = {}"
        for buffer in self.kept_buffers:
            yield f"    saved[{quote('before ' + buffer)}] = {self.external[buffer]}.clone()"
        for op in self.ops:
            if op.phase != "backward":
                yield from self._call(op)
        for buffer, value in trace.updates:
            if self.tilings[buffer] != self.tilings[value]:
                text = f"found the new value of {self.leaf_name(buffer)!r} in another tiling, expected the same"
                raise InputError(text, where=self.where)
            yield f"    {self.external[buffer]}.copy_({self._read(value)})"
        for tensor in self.saved:
            alias = ".detach()" if tensor in trace.outputs else ""
            yield f"    saved[{quote(self.names[tensor])}] = {self.names[tensor]}{alias}"
        yield from layout("return ", PythonTree("[", tuple(map(self._read, trace.outputs)), "], saved"), 4)

    def backward(self) -> Iterator[str]:
        for tensor in self.saved:
            yield f"    {self.names[tensor]} = saved.pop({quote(self.names[tensor])})"
        for op in self.ops:
            if op.phase == "backward":
                yield from self._call(op)
        for leaf, gradient in self.gradients:
            yield f"    gradients[{quote(self.leaf_name(leaf))}] = {self._read(gradient, late=True)}"
        yield from (f"    yield {quote(self.leaf_name(leaf))}" for leaf, _ in self.gradients)

    def _read(self, tensor: str, *, late: bool = False) -> str:
        if late and tensor in self.kept_buffers:
            return f"saved[{quote('before ' + tensor)}]"
        found = self.names.get(tensor) or self.external.get(tensor)
        if found is None:
            text = f"found no op that makes {tensor!r}, expected a plan of this trace"
            raise InputError(text, where=self.where)
        return found

    def _call(self, op: Op) -> Iterator[str]:
        """The steps of its inputs, the call, the steps of its results, and what is not read any more."""
        node, mesh = self.nodes[op.id], self.decisions.problem.mesh
        late = op.phase == "backward"
        read: list[str] = []
        for place, (tensor, wanted) in enumerate(zip(self._inputs(op), node.reads, strict=True)):
            name = self._read(tensor, late=late)
            edge = self.edges.get((tensor, op.id, place))
            if edge is None:
                self._require_same(tensor, wanted, op)
            else:
                yield from self._steps(f"read_{place}", moved(name, edge, self.tilings[tensor], wanted, mesh))
                name = f"read_{place}"
            read.append(name)
        yield from self._assigned(op, node, read)
        made = [tensor for tensor in op.outputs if tensor is not None]
        for tensor, tiling in zip(made, node.makes, strict=True):
            edge = self.edges.get((tensor, op.id, None))
            if edge is None:
                self._require_same(tensor, tiling, op)
            else:
                name = self.names[tensor]
                yield from self._steps(name, moved(name, edge, tiling, self.tilings[tensor], mesh))
        gone = [self.names[t] for t in dict.fromkeys((*op.inputs, *made)) if self.last_reads.get(t) == op.id]
        gone += [name for name in read if name.startswith("read_")]
        if gone:
            yield from layout("del ", ", ".join(gone), 4)

    def _require_same(self, tensor: str, tiling: ArrayTiling, op: Op) -> None:
        if self.tilings[tensor] != tiling:
            text = f"found {tensor!r} in {'.'.join(self.tilings[tensor])} and no steps to {'.'.join(tiling)}"
            raise InputError(f"{text} at {op.id!r}, expected a plan of this trace", where=self.where)

    @staticmethod
    def _steps(name: str, steps: Iterator[str]) -> Iterator[str]:
        for step in steps:
            yield f"    {name} = {step.replace('(_,', f'({name},')}"

    def _inputs(self, op: Op) -> tuple[str, ...]:
        return next(node.inputs for node in self.decisions.problem.nodes if node.id == op.id)

    def _assigned(self, op: Op, node: NodeTiling, read: list[str]) -> Iterator[str]:
        """The call on tiles, what makes its result a part or a share of the whole one, and a check of its shapes."""
        made = [tensor for tensor in op.outputs if tensor is not None]
        results = [self.names[tensor] if tensor is not None else "_" for tensor in op.outputs]
        one = op.target.startswith("treadle.") or not str(op.outputs[0]).endswith("_out0")
        comma = "," if len(results) == 1 and not one else ""
        yield from layout(f"{', '.join(results)}{comma} = ", self._on_tiles(op, node, read), 4)
        if op.target.split(".")[1] in FILLING:
            for axis, placement in enumerate(node.makes[0]):
                if placement.startswith("S"):
                    yield f"    {results[0]} = mesh.part({results[0]}, {axis}, {placement[1]})"
        parts = self._parts(node)
        mean_loss = op.target == LOSS and (op.args or ())[3] == 1
        if mean_loss and parts > 1:
            yield f"    mesh.none_ignored({results[1]}, {read[1]})"
        if parts > 1 and (mean_loss or op.target in MEANS or _is_mean(op)):
            yield f"    {results[0]} = aten.div.Scalar({results[0]}, {parts})"
        if op.target in MEAN_BACKWARDS and (op.args or ())[MEAN_BACKWARDS[op.target]] == 1:
            pieces = self._pieces(node)
            if pieces > 1:
                yield f"    {results[0]} = aten.div.Scalar({results[0]}, {pieces})"
        for tensor, tiling in zip(made, node.makes, strict=True):
            yield f"    mesh.made({self.names[tensor]}, {list(self._tile(tensor, tiling))})"

    def _on_tiles(self, op: Op, node: NodeTiling, read: list[str]) -> PythonTree:
        """The call with sizes of tiles in the place of whole ones. Raises InputError for what tiles cannot compute."""
        cut = any(map(_is_cut, node.makes))
        if op.target in BY_ADDRESS and (cut or any(map(_is_cut, node.reads))):
            raise InputError(f"op {op.id!r} reads memory by address, expected whole inputs", where=self.where)
        if op.target == DROPOUT:
            result, kept = (tensor for tensor in op.outputs if tensor is not None)
            shape, tiling = list(self.graph.tensors[result].shape or ()), list(node.makes[0])
            drawn = [*map(repr, (op.args or ())[1:3]), str(shape), str(list(self.graph.tensors[kept].stride or ()))]
            return PythonTree("mesh.native_dropout(", (read[0], *drawn, str(literal(tiling))))
        if op.random and cut:
            raise InputError(f"op {op.id!r} draws random numbers, expected a whole result", where=self.where)
        args, name = list(op.args or ()), op.target.split(".")[1]
        if op.target == LOSS and args[2] is not None and "P" in node.makes[0]:
            raise InputError(f"op {op.id!r} has weights of classes, expected whole inputs", where=self.where)
        if name in SIZED:
            args[SIZED[name]] = list(self._tile(next(t for t in op.outputs if t is not None), node.makes[0]))
        if op.target in ADDING and "P" in node.makes[0]:
            axes = [str(axis) for axis, placement in enumerate(node.makes[0]) if placement == "P"]
            read = [f"mesh.once({read[0]}, {', '.join(axes)})", *read[1:]]
        names = _Names([*self._inputs(op)], read)
        items = [names.value(tree) for tree in args]
        items += [labelled(f"{key}=", names.value(tree)) for key, tree in (op.kwargs or {}).items()]
        namespace, rest = WITHOUT_STRIDES.get(op.target, op.target).split(".", 1)
        head = {"aten": "aten", "treadle": "kernels"}.get(namespace, f"torch.ops.{namespace}")
        return PythonTree(f"{head}.{rest}(", tuple(items))

    def _tile(self, tensor: str, tiling: ArrayTiling) -> tuple[int, ...]:
        return local_shape(self.graph.tensors[tensor].shape or (), tiling, self.decisions.problem.mesh)

    def _parts(self, node: NodeTiling) -> int:
        """How many workers have a share of the first result, which is the sum of these."""
        return self._workers(node, "P")

    def _pieces(self, node: NodeTiling) -> int:
        """In how many pieces the first result is cut."""
        return self._workers(node, "S")

    def _workers(self, node: NodeTiling, word: str) -> int:
        made = node.makes[0] if node.makes else ()
        sizes = (axis.size for axis in self.decisions.problem.mesh)
        return prod(size for size, placement in zip(sizes, made, strict=False) if placement.startswith(word))


@dataclass
class _Names:
    """Expressions of the inputs of one call, which are taken one after another where one tensor is read twice."""

    inputs: list[str]
    read: list[str]

    def value(self, tree: Any) -> str | PythonTree:
        if isinstance(tree, list | tuple):
            return PythonTree("[", tuple(self.value(item) for item in tree), "]")
        if not isinstance(tree, dict):
            return quote(tree) if isinstance(tree, str) else repr(tree)
        ((key, value),) = tree.items()
        if key != "tensor":
            return "mesh.device" if key == "device" else word(key, value)
        place = self.inputs.index(value)
        if value in self.inputs[place + 1 :]:
            self.inputs[place] = ""
        return self.read[place]


def _is_mean(op: Op) -> bool:
    """Whether it is a loss whose reduction is the mean, the third argument by default."""
    return op.target in MEAN_LOSSES and (op.args or ())[MEAN_LOSSES[op.target] :][:1] in ([], (), [1], (1,))


def _is_cut(tiling: ArrayTiling) -> bool:
    return any(placement != "R" for placement in tiling)


_RESERVED = (
    *("_", "aten", "backward", "buffers", "device", "forward", "gradients", "inputs", "kernels", "mesh", "objects"),
    *("parameters", "saved", "tangents", "torch", *(f"read_{place}" for place in range(100))),
)
