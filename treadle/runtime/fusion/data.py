"""What goes into the tensors of a schedule and what must come out, after the reference interpreter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from treadle.planner.errors import InputError
from treadle.planner.machine.dtypes import FLOATS, Dtype
from treadle.planner.passes.fusion.arithmetic import rounded
from treadle.planner.passes.fusion.evaluate import held, states
from treadle.planner.passes.fusion.operations import operation
from treadle.planner.passes.fusion.program import Bindings, Input, Program
from treadle.planner.passes.fusion.rounding import Intervals
from treadle.runtime.fusion.build import LoweredSchedule
from treadle.runtime.fusion.tensors import Tensors

Array = NDArray[Any]
Kind = Literal["integers", "floats"]

LARGEST = 3
"""The largest random integer: sums of products of hundreds of them are exact in f16."""
SCALARS = (0.5, 0.25, 0.75)
_WHOLE = frozenset(("Add", "Sub", "Mul", "Neg", "Max", "Min", "Abs", "ReLU", "Cast", "Update", "Where", "ReduceTensor"))
_MOVES = ("collective", "transfer", "view", "layer")
_SUMS = frozenset(("MatMul", "Conv2d", "ReduceTensor", "Norm", "AllReduce", "ReduceScatter", "Reduce"))
_LIBRARY = frozenset(("Exp", "Log", "Tanh", "GeLU", "SiLU", "Sigmoid"))


def example(program: Program, bindings: Bindings, kind: Kind = "integers", seed: int = 0) -> dict[str, Array]:
    """Random values of the inputs, as `evaluate` takes them. What is replicated is not negative: it may be a square."""
    random = np.random.default_rng(seed)
    return {value.name: _values(program, bindings, value, kind, random) for value in program.inputs}


def _values(program: Program, bindings: Bindings, value: Input, kind: Kind, random: np.random.Generator) -> Array:
    of, extents = value.type, tuple(extent.value(bindings.values) for extent in value.type.shape)
    several = type(of.layout).__name__ == "Local"
    shape = (bindings.groups, bindings.ranks, *extents) if several else extents
    if _used(program, value.name, "Permute", 1):
        return random.permuted(np.broadcast_to(np.arange(extents[0]), shape), axis=-1)
    if _used(program, value.name, "Pow", 1):
        return random.integers(1, 3, shape)
    if not extents:
        return rounded(random.choice(SCALARS), of.dtype)
    if kind == "floats" and of.dtype in FLOATS:
        return rounded(random.random(shape) * 2 - several, of.dtype)
    return rounded(random.integers(-LARGEST if several else 0, LARGEST + 1, shape), of.dtype)


def _used(program: Program, name: str, op: str, at: int) -> bool:
    return any(node.op == op and node.inputs[at] == name for node in program.readers[name])


def exact(program: Program) -> bool:
    """Whether integers go through the program with the same bits in every order of its sums, on every machine."""
    whole = {value.name: bool(value.type.shape) for value in program.inputs}
    for node in program.nodes:
        read = node.inputs[1:] if node.op == "Update" else node.inputs
        operands = [whole[x] if isinstance(x, str) else float(x).is_integer() for x in read]
        if node.op in _LIBRARY or (node.op in _SUMS and not all(operands)):
            return False
        whole[node.name] = (node.op in _WHOLE or operation(node.op).kind in _MOVES) and all(operands)
    return True


def place(
    tensors: Tensors,
    rows: Sequence[int],
    lowered: LoweredSchedule,
    values: Mapping[str, Array],
    ranks: Sequence[int] | None = None,
) -> None:
    """Give the rows of all ranks, or of `ranks`, what they hold of the inputs; `values` are those of `evaluate`."""
    _require_whole(lowered)
    program, bindings = lowered.program, lowered.bindings
    for index, buffer in enumerate(tensors.buffers):
        if buffer.role in ("input", "state"):
            for rank in range(len(rows)) if ranks is None else ranks:
                mine = _held(program, bindings, buffer.name, values[buffer.name], rank)
                tensors.array(rows[rank], index)[: mine.size] = mine


def _require_whole(lowered: LoweredSchedule) -> None:
    """Raises InputError for a schedule that takes lists of tensors, or leaves products to a library."""
    if lowered.scattered:
        names = ", ".join(sorted(lowered.scattered))
        message = f"{lowered.program.name}: found kernels that take {names} as lists of tensors (scattered)"
        raise InputError(f"{message}, expected whole ones; only the PyTorch module makes the tables of such lists")
    if lowered.calls:
        message = f"{lowered.program.name}: found {len(lowered.calls)} products left to a library (by_library)"
        raise InputError(f"{message}, expected kernels for all; only the PyTorch module calls one")


def fill(tensors: Tensors, rows: Sequence[int], lowered: LoweredSchedule, seed: int = 0) -> None:
    """Random values for the inputs of all ranks, for runs whose results are not compared: without the interpreter,
    which would take long and much memory."""
    _require_whole(lowered)
    random = np.random.default_rng(seed)
    for index, buffer in enumerate(tensors.buffers):
        if buffer.role in ("input", "state"):
            for row in rows:
                array = tensors.array(row, index)
                if _used(lowered.program, buffer.name, "Permute", 1):
                    array[:] = np.arange(array.size)
                elif buffer.dtype == "bf16":
                    array[:] = rounded(random.random(array.size, np.float32), "bf16").view(np.uint32) >> 16
                else:
                    array[:] = random.random(array.size, np.float32) + (0.5 if buffer.dtype in FLOATS else 0)


def differences(
    tensors: Tensors,
    rows: Sequence[int],
    lowered: LoweredSchedule,
    values: Mapping[str, Array],
    within: Intervals | None = None,
    ranks: Sequence[int] | None = None,
) -> Iterator[str]:
    """A line for each tensor of a rank, or of one of `ranks`, that is not what `evaluate` made: in its bits or, where
    given, `within` the intervals around it."""
    program, bindings = lowered.program, lowered.bindings
    left = states(program, values)
    ends = [(each, states(program, each)) for each in (within.low, within.high)] if within is not None else []
    by_place = {lowered.places[name]: name for name in (*program.outputs, *left)}
    for index, name in by_place.items():
        dtype = tensors.buffers[index].dtype
        for rank in _ranks(program, bindings, name):
            if ranks is not None and rank not in ranks:
                continue
            want = _held(program, bindings, name, left.get(name, values[name]), rank)
            low, high = (
                (_part(program, bindings, name, one.get(name, each[name]), rank) for each, one in ends)
                if ends
                else (None, None)
            )
            got = tensors.array(rows[rank], index)[: want.size]
            if line := _difference(got, want, dtype, low, high):
                yield f"{name} of rank {rank}: {line}"


def _ranks(program: Program, bindings: Bindings, name: str) -> Iterator[int]:
    """The ranks of the world that have a value."""
    of = program.by_name[name].type
    runs = bindings.groups - max(value.type.group.offset for value in program.by_name.values())
    for group in range(of.group.offset, of.group.offset + runs):
        for rank in range(bindings.ranks):
            if getattr(of.layout, "rank", rank) == rank:
                yield group * bindings.ranks + rank


def _part(program: Program, bindings: Bindings, name: str, values: Array, rank: int) -> Array:
    """What a rank of the world holds of a value, as a flat array."""
    return held(program.by_name[name].type, bindings, values, rank % bindings.ranks, rank // bindings.ranks).reshape(-1)


def _held(program: Program, bindings: Bindings, name: str, values: Array, rank: int) -> Array:
    """The same as it lies in memory."""
    mine = _part(program, bindings, name, values, rank)
    if program.by_name[name].type.dtype == "bf16":
        return (np.ascontiguousarray(mine, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return mine


def _difference(got: Array, want: Array, dtype: Dtype, low: Array | None, high: Array | None) -> str | None:
    """Elements that have other bits and do not lie between `low` and `high`, which is -inf to inf for anything at all
    and NaN for NaN."""
    if got.tobytes() == want.tobytes():
        return None
    a, b = (_floats(x, dtype) for x in (got, want))
    same = (got.view(np.uint8).reshape(got.size, -1) == want.view(np.uint8).reshape(got.size, -1)).all(axis=1)
    same |= (a == b) | (np.isnan(a) & np.isnan(b))
    if low is not None and high is not None:
        same |= ((low <= a) & (a <= high)) | (np.isneginf(low) & np.isposinf(high))
    wrong = np.flatnonzero(~same)
    if not wrong.size:
        return None
    first = int(wrong[0])
    around = f", or from {low[first]:g} to {high[first]:g}" if low is not None and high is not None else ""
    found = f"{wrong.size} of {got.size} elements differ, first [{first}]: found {a[first]:g}"
    return f"{found}, expected {b[first]:g}{around}"


def _floats(bits: Array, dtype: Dtype) -> NDArray[np.float64]:
    if dtype == "bf16":
        return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return bits.astype(np.float64)
