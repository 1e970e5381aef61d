"""A swap problem and a plan as arrays of int64, for the compiled loops.

Lists of lists are stored one after another: those of row i are `values[ptr[i] : ptr[i + 1]]`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from treadle.planner.errors import InputError
from treadle.planner.passes.swap.problem import ON_HOST, PERSISTENT, SwapProblem

Ints: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]

COMPUTE, IN, OUT, DROP = range(4)
"""Kinds of nodes; the first three are the streams they run on."""
KINDS = ("compute", "in", "out", "drop")
MOST = 2**20


class Arrays(NamedTuple):
    """`use` lists per operator its inputs, from `use_ptr[op]`, and then its outputs, from `made_ptr[op]`."""

    use_ptr: Ints
    made_ptr: Ints
    use: Ints
    writes: Flags
    """Per use: whether the operator overwrites this input."""
    time: Ints
    pred_ptr: Ints
    pred: Ints
    """Operators that an operator waits for: makers of its inputs and `after`; ascending."""
    succ_ptr: Ints
    succ: Ints
    bytes: Ints
    size: Ints
    """Index into `sizes`; -1 for a tensor of no bytes, which needs no place."""
    sizes: Ints
    """Distinct sizes of the smallest objects that hold them, ascending (TS)."""
    in_ns: Ints
    out_ns: Ints
    persistent: Flags
    kept: Flags
    on_host: Flags
    """Parameters, states and inputs: tensors that exist before the iteration."""
    written: Flags
    """Tensors that some operator overwrites."""
    together: Ints
    """Speed of each direction while both are busy: numerator, denominator."""
    host_bytes: int
    """The most bytes of tensors with a place on the host; -1 for no limit."""


class Nodes(NamedTuple):
    """The augmented graph of SwapDecisions, as arrays. `at` are addresses: of the outputs of a compute node, of the
    tensor of an `in` node. `initial` are the tensors on the device from the start, ascending."""

    kind: Ints
    item: Ints
    serves: Ints
    after_ptr: Ints
    after: Ints
    at_ptr: Ints
    at: Ints
    initial: Ints
    initial_at: Ints
    final_at: Ints


def arrays_of(problem: SwapProblem) -> Arrays:
    """The problem, whose references must be sound (`problem.problems()`), as arrays.

    Raises InputError where numbers would exceed 64 bits: from a million operators or tensors on, which the planner's
    sort keys cannot hold, and for times of centuries.
    """
    ops, tensors, machine = problem.ops, problem.tensors, problem.machine
    if max(len(ops), len(tensors)) >= MOST:
        raise InputError(f"{len(ops)} operators and {len(tensors)} tensors, expected fewer than {MOST} of each")
    in_ns = [machine.in_ns(tensor.bytes) for tensor in tensors]
    out_ns = [machine.out_ns(tensor.bytes) for tensor in tensors]
    longest = problem.ideal_ns + sum(in_ns) + sum(out_ns)
    longest += sum(in_ns[tensor] + out_ns[tensor] for op in ops for tensor in op.inputs)
    if longest * machine.together[1] >= 2**62:
        raise InputError(
            f"operators and copies that take {longest:.3g} ns in all, expected less than 2^62 / {machine.together[1]}"
        )
    use_ptr, use = rows([(*op.inputs, *op.outputs) for op in ops])
    preds = predecessors(problem)
    succs: list[list[int]] = [[] for _ in ops]
    for op, before in enumerate(preds):
        for other in before:
            succs[other].append(op)
    pred_ptr, pred = rows(preds)
    succ_ptr, succ = rows(succs)
    object_of = ints(problem.object_bytes(tensor) for tensor in range(len(tensors)))
    sizes = ints(problem.object_sizes)
    written = np.zeros(len(tensors), np.bool_)
    written[[tensor for op in ops for tensor in op.writes]] = True
    return Arrays(
        use_ptr=use_ptr,
        made_ptr=use_ptr[:-1] + ints(len(op.inputs) for op in ops),
        use=use,
        writes=_flags(tensor in op.writes for op in ops for tensor in (*op.inputs, *op.outputs)),
        time=ints(op.time_ns for op in ops),
        pred_ptr=pred_ptr,
        pred=pred,
        succ_ptr=succ_ptr,
        succ=succ,
        bytes=ints(tensor.bytes for tensor in tensors),
        size=np.where(object_of > 0, np.searchsorted(sizes, object_of), -1),
        sizes=sizes,
        in_ns=ints(in_ns),
        out_ns=ints(out_ns),
        persistent=_flags(tensor.role in PERSISTENT for tensor in tensors),
        kept=_flags(tensor.kept for tensor in tensors),
        on_host=_flags(tensor.role in ON_HOST for tensor in tensors),
        written=written,
        together=ints(machine.together),
        host_bytes=-1 if machine.host_bytes is None else machine.host_bytes,
    )


def predecessors(problem: SwapProblem) -> list[list[int]]:
    """Per operator those it waits for, ascending."""
    maker = {tensor: at for at, op in enumerate(problem.ops) for tensor in op.outputs}
    return [sorted({*op.after, *(maker[tensor] for tensor in op.inputs if tensor in maker)}) for op in problem.ops]


def rows(lists: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    """(ptr, values) of a list of lists."""
    ptr = np.zeros(len(lists) + 1, np.int64)
    np.cumsum([len(row) for row in lists], out=ptr[1:])
    return ptr, ints(value for row in lists for value in row)


def ints(values: Iterable[int]) -> Ints:
    """An array of int64."""
    return np.fromiter(values, np.int64)


def _flags(values: Iterable[bool]) -> Flags:
    return np.fromiter(values, np.bool_)
