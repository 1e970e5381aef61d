"""The least memory that a swap problem can run in, and which operator sets it (SwapAdvisor, section 4.2; Table 5.2).

An operator's inputs and outputs are on the device together, whatever is copied when. With allocator `pool` each class
needs as many objects as the most of its tensors that one operator holds, and the least memory is that of the cheapest
division into classes: min over CLS of the sum of floor times object size. With `bytes` and `offset` it is the largest
sum of one operator. Scratch of the largest operator and the reserve come on top.
"""

from __future__ import annotations

from typing import NamedTuple

from planner.errors import InfeasibleError
from planner.scalars import format_bytes
from planner.swap.arrays import arrays_of
from planner.swap.decisions import Allocator
from planner.swap.layout import floor_ops, least_pool, needs, object_bytes, pool_bytes
from planner.swap.problem import SwapProblem

NAMED = 4
"""Tensors of an operator that are named, the largest first."""


class Minimum(NamedTuple):
    """`memory_bytes` of a machine on which the problem can run, scratch and reserve included; with allocator `pool` as
    `objects` of (bytes, how many, the operator that holds as many of them). `ops` set it, the one that takes most
    first."""

    memory_bytes: int
    ops: tuple[int, ...]
    objects: tuple[tuple[int, int, int], ...] = ()


def minimum_of(problem: SwapProblem, allocator: Allocator = "pool") -> Minimum:
    """The least memory with `allocator`: nothing runs below it, in any order."""
    beside = problem.scratch_bytes + problem.reserve_bytes
    if allocator != "pool":
        held = [working_set(problem, op) for op in range(len(problem.ops))]
        return Minimum(max(held) + beside, (held.index(max(held)),))
    arrays = arrays_of(problem)
    pool = least_pool(arrays)
    of_class = zip(
        object_bytes(arrays.sizes, pool.classes), pool.counts, floor_ops(needs(arrays), pool.classes), strict=True
    )
    objects = tuple(sorted(of_class, key=lambda each: (-each[0] * each[1], each[0])))
    ops = tuple(dict.fromkeys(op for _, _, op in objects))
    return Minimum(pool_bytes(arrays.sizes, pool) + beside, ops, objects)


def working_set(problem: SwapProblem, op: int) -> int:
    """Bytes of the tensors that an operator reads and makes."""
    found = problem.ops[op]
    return sum(problem.tensors[tensor].bytes for tensor in (*found.inputs, *found.outputs))


def require_feasible(problem: SwapProblem, allocator: Allocator = "pool") -> None:
    """Raises InfeasibleError where the memory is below the minimum, with the minimum, the operator that sets it, its
    tensors, and what to do."""
    found = problem.machine.memory_bytes
    least = minimum_of(problem, allocator)
    if found >= least.memory_bytes:
        return
    raise InfeasibleError(
        f"found {format_bytes(found)} of device memory ({found} bytes), expected at least "
        f"{format_bytes(least.memory_bytes)} ({least.memory_bytes} bytes): {_parts(problem, least)}; "
        f"{_setting(problem, least)}; {_advice(problem, allocator, found)}"
    )


def _parts(problem: SwapProblem, least: Minimum) -> str:
    objects = sorted((size, count) for size, count, _ in least.objects)
    words = [f"{count} x {format_bytes(size)}" for size, count in objects]
    if not words:
        words = [f"{format_bytes(working_set(problem, least.ops[0]))} of tensors"]
    if len(words) > NAMED:
        whole = sum(size * count for size, count in objects)
        words = [f"{format_bytes(whole)} in {len(objects)} classes of objects"]
    words += [f"{format_bytes(problem.scratch_bytes)} of scratch"] if problem.scratch_bytes else []
    words += [f"{format_bytes(problem.reserve_bytes)} of reserve"] if problem.reserve_bytes else []
    return _listed(words)


def _listed(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _setting(problem: SwapProblem, least: Minimum) -> str:
    """`operator Concat holds A5 (2 MiB), A1 (1 MiB) and A4 (1 MiB) at once`, for the one that takes most."""
    op = problem.ops[least.ops[0]]
    held = [problem.tensors[tensor] for tensor in (*op.inputs, *op.outputs)]
    held.sort(key=lambda tensor: (-tensor.bytes, tensor.id))
    words = [f"{tensor.id} ({format_bytes(tensor.bytes)})" for tensor in held[:NAMED]]
    words += [f"{len(held) - NAMED} more"] if len(held) > NAMED else []
    return f"operator {op.id} holds {_listed(words)} at once"


def _advice(problem: SwapProblem, allocator: Allocator, found: int) -> str:
    advice = "split that operator or make the batch smaller"
    if allocator == "pool":
        other = minimum_of(problem, "offset").memory_bytes
        if other <= found:
            return f"{advice}; with --allocator offset the least is {format_bytes(other)}"
    return advice
