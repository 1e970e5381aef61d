"""The reference interpreter: what a program means, rank by rank (CoCoNet, section 2; docs/fusion.md).

A value is an array [groups, ranks, *global shape]. Of what a rank does not have (other slices, values on another rank
or group) it sees poison: NaN, or the least integer. Kernels and overlaps change no value and are passed over.
After every node the layout is checked: replicated values are equal bit by bit, slices cover the tensor once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import assert_never

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from treadle.planner.errors import CheckFailed, InputError
from treadle.planner.passes.fusion.arithmetic import (
    COMBINE,
    COMPUTED,
    FUNCTIONS,
    STORED,
    Array,
    neutral,
    poison,
    rounded,
    wide,
)
from treadle.planner.passes.fusion.dims import ONE, PARTS
from treadle.planner.passes.fusion.dropout import kept, scale
from treadle.planner.passes.fusion.layouts import WORLD, At, Local, Replicated, Sliced
from treadle.planner.passes.fusion.operations import pointwise
from treadle.planner.passes.fusion.program import Bindings, Node, Operand, Program, TensorType
from treadle.planner.passes.fusion.rules.elementwise import broadcast
from treadle.planner.passes.fusion.slice_maps import global_indices


def evaluate(
    program: Program,
    bindings: Bindings,
    values: Mapping[str, Array | float],
    *,
    seed: int = 0,
    step: int = 0,
    keep: Mapping[str, Array] | None = None,
) -> dict[str, Array]:
    """Every value of a program by name, as arrays [groups, ranks, *global shape]; bf16 in float32.

    `values` of the inputs broadcast to that shape: the global tensor for what is replicated or sliced, one for each
    rank for what is Local. `keep` has masks by the key of a Dropout, in place of random ones. Raises InputError for
    values that do not fit, CheckFailed when a layout is not what its type says.
    """
    run = Run(program, bindings, seed, step, keep or {})
    for value in program.inputs:
        if value.name not in values:
            raise InputError(f"{program.name}: found no value for {value.name!r}, expected one")
        try:
            run.keep_value(value.name, value.type, run.given(value.name, value.type, values[value.name]))
        except CheckFailed as error:
            raise InputError(str(error)) from error
    with np.errstate(all="ignore"):
        for node in program.nodes:
            run.keep_value(node.name, node.type, run.node(node))
    return run.values


def states(program: Program, values: Mapping[str, Array]) -> dict[str, Array]:
    """What the Updates of an evaluated program leave in its inputs, by their names."""
    left = {}
    for target, node in program.updates.items():
        gathers = [reader for reader in program.readers[node.name] if reader.op == "AllGather"]
        whole = isinstance(program.by_name[target].type.layout, Replicated) and gathers
        left[target] = values[gathers[0].name if whole else node.name]
    return left


def held(of: TensorType, bindings: Bindings, values: Array, rank: int, group: int = 0) -> Array:
    """What one rank holds of an evaluated value: its tensor, or its slice as a flat array in the slice's own order."""
    mine = np.asarray(values[group, rank])
    if not isinstance(of.layout, Sliced):
        return mine
    return np.take(mine, global_indices(of.layout, mine.shape, bindings.ranks, rank))


@dataclass
class Run:
    """The state of an evaluation."""

    program: Program
    bindings: Bindings
    seed: int
    step: int
    keep: Mapping[str, Array]
    values: dict[str, Array] = field(default_factory=dict)
    masks: dict[tuple[object, tuple[int, ...], int], Array] = field(default_factory=dict)

    @cached_property
    def runs(self) -> int:
        """How many groups run the program: each sends to the next one."""
        types = [value.type for value in self.program.by_name.values()]
        if any(of.group == WORLD and of.shape for of in types) and self.bindings.groups > 1:
            raise InputError(f"{self.program.name}: found {self.bindings.groups} groups, expected one WORLD")
        runs = self.bindings.groups - max(of.group.offset for of in types)
        if runs < 1:
            raise InputError(f"{self.program.name}: found {self.bindings.groups} groups, expected one more to send to")
        return runs

    def extents(self, of: TensorType) -> tuple[int, ...]:
        return tuple(extent.value(self.bindings.values) for extent in of.shape)

    def given(self, name: str, of: TensorType, value: Array | float) -> Array:
        shape = (self.bindings.groups, self.bindings.ranks, *self.extents(of))
        array = np.asarray(value)
        try:
            return rounded(np.broadcast_to(array, shape), of.dtype)
        except ValueError as error:
            raise InputError(f"{name}: found an array {list(array.shape)}, expected {list(shape)}") from error

    def keep_value(self, name: str, of: TensorType, value: Array) -> None:
        """Poisons what no rank may see of a value, checks its layout and keeps it."""
        there = self.there(of)
        kept_value = np.where(there, value, STORED[of.dtype](poison(of.dtype))).astype(STORED[of.dtype])
        self.values[name] = kept_value
        if isinstance(of.layout, Replicated):
            groups = range(self.bindings.groups) if _everywhere(of) else self.places(of)
            for group in groups:
                first = kept_value[group, 0].tobytes()
                if any(kept_value[group, rank].tobytes() != first for rank in range(self.bindings.ranks)):
                    raise CheckFailed(f"{name}: found ranks with different values, expected the same on all")
        if isinstance(of.layout, Sliced) and not (there[self.places(of)[0]].sum(axis=0) == 1).all():
            raise CheckFailed(f"{name}: found elements that not exactly one rank has, expected slices of the whole")

    def places(self, of: TensorType) -> range:
        """The groups that a value exists on."""
        return range(of.group.offset, of.group.offset + self.runs)

    def there(self, of: TensorType) -> Array:
        """Which elements each rank has: [groups, ranks, *shape]."""
        extents, ranks = self.extents(of), self.bindings.ranks
        key = (of.layout, extents, of.group.offset if not _everywhere(of) else -1)
        if key not in self.masks:
            mask = np.zeros((self.bindings.groups, ranks, prod(extents)), bool)
            groups = slice(None) if _everywhere(of) else slice(self.places(of).start, self.places(of).stop)
            for rank in range(ranks):
                match of.layout:
                    case Sliced():
                        mask[groups, rank, global_indices(of.layout, extents, ranks, rank)] = True
                    case At(root):
                        mask[groups, rank] = rank == root
                    case Replicated() | Local():
                        mask[groups, rank] = True
                    case _:
                        assert_never(of.layout)
            self.masks[key] = mask.reshape(self.bindings.groups, ranks, *extents)
        return self.masks[key]

    def node(self, node: Node) -> Array:
        return self.pointwise(node) if pointwise(node.op) else _OPERATIONS[node.op](self, node)

    def operand(self, node: Node, at: int = 0) -> tuple[TensorType, Array]:
        name = str(node.inputs[at])
        return self.program.by_name[name].type, self.values[name]

    def owned(self, node: Node, at: int, instead: float) -> Array:
        """An operand as it is computed with, with a neutral value in place of what a rank does not have."""
        of, array = self.operand(node, at)
        return np.where(self.there(of), wide(array, of.dtype), COMPUTED[of.dtype](instead))

    def pointwise(self, node: Node) -> Array:
        if node.op == "GroupSize":
            everywhere = np.full((self.bindings.groups, self.bindings.ranks), self.bindings.ranks)
            return rounded(everywhere, node.type.dtype)
        if node.op == "Update":
            return self.operand(node, 1)[1]
        arrays = self.aligned(node)
        match node.op:
            case "Dropout":
                return self.dropout(node, arrays[0])
            case "Where":
                result = np.where(arrays[0], arrays[1], arrays[2])
            case "Cast":
                result = arrays[0] != 0 if node.type.dtype == "bool" else arrays[0]
            case _:
                result = FUNCTIONS[node.op](*arrays)
        shape = (self.bindings.groups, self.bindings.ranks, *self.extents(node.type))
        return np.broadcast_to(rounded(result, node.type.dtype), shape)

    def aligned(self, node: Node) -> list[Array]:
        """The operands, wide, with leading extents of 1 where they lack dimensions and parts repeated."""
        types = {x: self.program.by_name[x].type for x in node.inputs if isinstance(x, str)}
        dtype = node.number_dtype({name: of.dtype for name, of in types.items()})
        shape = broadcast(node.op, [of.shape for of in types.values()])

        def one(operand: Operand) -> Array:
            if not isinstance(operand, str):
                return wide(operand, dtype)
            of, array = types[operand], wide(self.values[operand], types[operand].dtype)
            missing = len(shape) - len(of.shape)
            array = array.reshape(*array.shape[:2], *(1 for _ in range(missing)), *array.shape[2:])
            for at, extent in enumerate((ONE,) * missing + of.shape):
                if extent not in (shape[at], ONE):
                    name = shape[at].names[0]
                    array = np.repeat(array, self.sizes(name), axis=at + 2)
            return array

        return [one(operand) for operand in node.inputs]

    def sizes(self, name: str) -> tuple[int, ...]:
        """Extents of the tensors that make up a dimension."""
        return tuple(self.bindings.parts.get(name.removesuffix(PARTS), (self.bindings.extents[name],)))

    def dropout(self, node: Node, x: Array) -> Array:
        p, key = float(node.attribute("p") or 0), str(node.attribute("key"))
        shape = x.shape[2:]
        if key in self.keep:
            mask = np.broadcast_to(np.asarray(self.keep[key], bool), x.shape)
        else:
            mine = range(self.bindings.ranks) if isinstance(node.type.layout, Local) else [0]
            indices = np.arange(prod(shape)).reshape(shape)
            masks = [kept(indices, p, key, seed=self.seed, step=self.step, rank=rank) for rank in mine]
            mask = np.broadcast_to(np.stack(masks), x.shape)
        return rounded(np.where(mask, x * x.dtype.type(scale(p)), x.dtype.type(0)), node.type.dtype)

    def layer(self, node: Node) -> Array:
        return rounded(multiplied(node, self.owned(node, 0, 0), self.owned(node, 1, 0)), node.type.dtype)

    def permute(self, node: Node) -> Array:
        _, x = self.operand(node)
        of, index = self.operand(node, 1)
        index = np.where(self.there(of), index, 0)
        if index.min(initial=0) < 0 or index.max(initial=0) >= x.shape[2]:
            raise InputError(f"{node.name}: found an index outside of {x.shape[2]} rows, expected one of them")
        return np.take_along_axis(x, index.reshape(*index.shape, *(1 for _ in x.shape[3:])), axis=2)

    def reduction(self, node: Node) -> Array:
        """ReduceTensor and Norm."""
        of, _ = self.operand(node)
        x = self.owned(node, 0, neutral(str(node.attribute("op", "+")), of.dtype))
        total = self.reduced(node, x * x if node.op == "Norm" else x)
        return rounded(np.sqrt(total) if node.op == "Norm" else total, node.type.dtype)

    def reduced(self, node: Node, x: Array) -> Array:
        """Sums, least or greatest elements of `x`, which stands for the operand of a ReduceTensor or Norm. What is
        sliced is reduced together with the other ranks' slices."""
        of, op = self.operand(node)[0], str(node.attribute("op", "+"))
        at = node.attribute("dim")
        if node.attribute("per") == "tensor":
            ends = np.cumsum((0, *self.sizes(of.shape[0].names[0])))
            pieces = [x[..., ends[k] : ends[k + 1]] for k in range(len(ends) - 1)]
            partial = np.stack([_reduced(op, piece, (2,), neutral(op, of.dtype)) for piece in pieces], axis=-1)
        elif isinstance(at, int):
            partial = np.expand_dims(_reduced(op, x, (at + 2,), neutral(op, of.dtype)), at + 2)
        else:
            partial = _reduced(op, x, tuple(range(2, x.ndim)), neutral(op, of.dtype))
        if isinstance(of.layout, Sliced) and isinstance(node.type.layout, Replicated):
            partial = self.combined(op, partial)
        return partial

    def combined(self, op: str, x: Array) -> Array:
        """The ranks' arrays of a group combined in the order of the ranks, on every rank."""
        total = np.asarray(x[:, 0])
        for rank in range(1, self.bindings.ranks):
            total = COMBINE[op](total, x[:, rank])
        return np.broadcast_to(total[:, None], x.shape)

    def all_reduce(self, node: Node) -> Array:
        """Sums are rounded to the dtype after every rank, as on the wire."""
        of, x = self.operand(node)
        total = x[:, 0]
        for rank in range(1, self.bindings.ranks):
            both = COMBINE[str(node.attribute("op"))](wide(total, of.dtype), wide(x[:, rank], of.dtype))
            total = rounded(both, of.dtype)
        return np.broadcast_to(total[:, None], x.shape)

    def reduce(self, node: Node) -> Array:
        self.root(node)
        return self.all_reduce(node)

    def load(self, node: Node) -> Array:
        self.root(node)
        return self.operand(node)[1]

    def all_gather(self, node: Node) -> Array:
        of, x = self.operand(node)
        gathered, there = x[:, 0], self.there(of)
        for rank in range(1, self.bindings.ranks):
            gathered = np.where(there[:, rank], x[:, rank], gathered)
        return np.broadcast_to(gathered[:, None], x.shape)

    def broadcast(self, node: Node) -> Array:
        _, x = self.operand(node)
        root = self.root(node)
        return np.broadcast_to(x[:, root : root + 1], x.shape)

    def root(self, node: Node) -> int:
        root = int(node.attribute("root") or 0)
        if root >= self.bindings.ranks:
            raise InputError(f"{node.name}: found root {root} of {self.bindings.ranks} ranks, expected one of them")
        return root

    def all_to_all(self, node: Node) -> Array:
        _, x = self.operand(node)
        ranks, rows = self.bindings.ranks, x.shape[2]
        if rows % ranks:
            raise InputError(f"{node.name}: found {rows} rows for {ranks} ranks, expected equal parts")
        parts = x.reshape(x.shape[0], ranks, ranks, rows // ranks, *x.shape[3:])
        return parts.swapaxes(1, 2).reshape(x.shape)

    def send(self, node: Node) -> Array:
        _, x = self.operand(node)
        return np.roll(x, int(node.attribute("to") or 1), axis=0)

    def view(self, node: Node) -> Array:
        return self.operand(node)[1]


def _everywhere(of: TensorType) -> bool:
    """Scalars of WORLD are available in every group."""
    return of.group == WORLD and not of.shape


def multiplied(node: Node, x: Array, w: Array) -> Array:
    """Arrays [groups, ranks, ...] as the operands of a MatMul or Conv2d, in their own dtype."""
    if node.op == "MatMul":
        rows = x.reshape(*x.shape[:2], -1, x.shape[-1])
        return np.asarray(np.matmul(rows, w).reshape(*x.shape[:-1], w.shape[-1]))
    padding, stride = int(node.attribute("padding") or 0), int(node.attribute("stride") or 1)
    x = np.pad(x, [(0, 0)] * 4 + [(padding, padding)] * 2)
    windows = sliding_window_view(x, w.shape[-2:], axis=(-2, -1))[..., ::stride, ::stride, :, :]
    return np.asarray(np.einsum("grnchwij,grocij->grnohw", windows, w))


def _reduced(op: str, x: Array, axes: tuple[int, ...], start: float) -> Array:
    if op == "+":
        return np.asarray(x.sum(axis=axes, dtype=x.dtype))
    return np.asarray(x.max(axis=axes, initial=start) if op == "max" else x.min(axis=axes, initial=start))


_OPERATIONS: dict[str, Callable[[Run, Node], Array]] = {
    "MatMul": Run.layer,
    "Conv2d": Run.layer,
    "Permute": Run.permute,
    "ReduceTensor": Run.reduction,
    "Norm": Run.reduction,
    "Slice": Run.view,
    "Load": Run.load,
    "AllReduce": Run.all_reduce,
    "ReduceScatter": Run.all_reduce,
    "AllGather": Run.all_gather,
    "Reduce": Run.reduce,
    "Broadcast": Run.broadcast,
    "AllToAll": Run.all_to_all,
    "Send": Run.send,
}
