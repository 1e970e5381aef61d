"""The least memory in which a swap problem can run, and the operator that sets it (SwapAdvisor, section 4.2, table
5.2).

An operator's inputs and outputs are on the device together. With allocator `pool` each class
needs as many objects as the most of its tensors that one operator holds, and the least memory is that of the cheapest
division into classes: min over CLS of the sum of floor times object size. With `bytes` and `offset` it is the largest
sum of one operator. Scratch of the largest operator and the reserve come on top.

Every copied tensor has a place of its own in the host's pinned memory. In every order, while operator j runs, L_j bytes
exist: persistent tensors in use, and what j or an operator before it makes for j, for a later one or to be kept. The
device holds at most its memory, part of it inputs of the step for j; the rest of L_j is copied, and so is every used
input of the step:

    pinned >= inputs + max_j (L_j + inputs of j - memory for tensors)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from treadle.planner.documents.scalars import format_bytes
from treadle.planner.errors import InfeasibleError
from treadle.planner.passes.swap.arrays import Ints, arrays_of, predecessors
from treadle.planner.passes.swap.decisions import Allocator
from treadle.planner.passes.swap.layout import floor_ops, least_pool, needs, object_bytes, pool_bytes
from treadle.planner.passes.swap.problem import PERSISTENT, SwapProblem

NAMED = 4
"""Tensors of an operator that a message names, the largest first."""
MANY = 20_000
"""Operators from which on the host's least memory is not computed, since that takes all pairs of them."""


class LeastMemory(NamedTuple):
    """The least `memory_bytes` of the machine, scratch and reserve included; with allocator `pool` as `objects` of
    (bytes, count, the operator that holds as many). `ops` set it, the one that takes most first."""

    memory_bytes: int
    ops: tuple[int, ...]
    objects: tuple[tuple[int, int, int], ...] = ()


def least_memory(problem: SwapProblem, allocator: Allocator = "pool") -> LeastMemory:
    """The least memory with `allocator`, in any order."""
    unused = problem.scratch_bytes + problem.reserve_bytes
    if allocator != "pool":
        held = [problem.working_set(op) for op in range(len(problem.ops))]
        return LeastMemory(max(held) + unused, (held.index(max(held)),))
    arrays = arrays_of(problem)
    pool = least_pool(arrays)
    of_class = zip(
        object_bytes(arrays.sizes, pool.classes), pool.counts, floor_ops(needs(arrays), pool.classes), strict=True
    )
    objects = tuple(sorted(of_class, key=lambda each: (-each[0] * each[1], each[0])))
    ops = tuple(dict.fromkeys(op for _, _, op in objects))
    return LeastMemory(pool_bytes(arrays.sizes, pool) + unused, ops, objects)


class LeastHostMemory(NamedTuple):
    """The least pinned `host_bytes`: the `inputs` of the step, and what exceeds the device of the `needed` bytes while
    `op` runs."""

    host_bytes: int
    inputs: int
    needed: int
    op: int


def least_host_memory(problem: SwapProblem) -> LeastHostMemory:
    """The least pinned memory of any plan; only the inputs count from MANY operators on."""
    tensors, ops = problem.tensors, problem.ops
    inputs = [sum(tensors[t].bytes for t in op.inputs if tensors[t].role == "input") for op in ops]
    used = {t for op in ops for t in op.inputs}
    always = sum(tensors[t].bytes for t in used if tensors[t].role == "input")
    if len(ops) >= MANY:
        return LeastHostMemory(always, always, 0, 0)
    needed = np.array(inputs, np.int64) + sum(tensors[t].bytes for t in used if tensors[t].role in PERSISTENT)
    needed += _surely_live(problem)
    op = int(needed.argmax())
    return LeastHostMemory(always + max(0, int(needed[op]) - problem.arena_bytes), always, int(needed[op]), op)


def _surely_live(problem: SwapProblem) -> Ints:
    """Per operator the bytes of made tensors that exist while it runs, in any order."""
    n = len(problem.ops)
    before = predecessors(problem)
    since, until = [1 << op for op in range(n)], [1 << op for op in range(n)]  # sets of operators, as bits
    for op in range(n):
        for other in before[op]:
            until[op] |= until[other]  # an operator, and all that it waits for
    for op in range(n - 1, -1, -1):
        for other in before[op]:
            since[other] |= since[op]  # an operator, and all that wait for it
    needs = [0] * len(problem.tensors)
    for op, found in enumerate(problem.ops):
        for t in (*found.inputs, *found.outputs):
            needs[t] |= until[op]
    live = np.zeros(n, np.int64)
    for op, found in enumerate(problem.ops):
        for t in found.outputs:
            where = since[op] if problem.tensors[t].kept else since[op] & needs[t]
            bits = np.frombuffer(where.to_bytes(n // 8 + 1, "little"), np.uint8)
            live[np.flatnonzero(np.unpackbits(bits, bitorder="little"))] += problem.tensors[t].bytes
    return live


def require_feasible(problem: SwapProblem, allocator: Allocator = "pool") -> None:
    """Raises InfeasibleError where the device's memory or the host's is below the minimum, with the minimum, the
    operator that sets it, and advice."""
    found = problem.machine.memory_bytes
    least = least_memory(problem, allocator)
    if found < least.memory_bytes:
        raise InfeasibleError(
            f"found {format_bytes(found)} of device memory ({found} bytes), expected at least "
            f"{format_bytes(least.memory_bytes)} ({least.memory_bytes} bytes): {_parts(problem, least)}; "
            f"{_setting(problem, least)}; {_advice(problem, allocator, found)}"
        )
    limit = problem.machine.host_bytes
    if limit is None:
        return
    host = least_host_memory(problem)
    if limit >= host.host_bytes:
        return
    words = [f"the inputs of the step take {format_bytes(host.inputs)}"] if host.inputs else []
    if host.host_bytes > host.inputs:
        words.append(
            f"{format_bytes(host.needed)} of tensors are needed while operator {problem.ops[host.op].id} runs, of "
            f"which the device holds {format_bytes(problem.arena_bytes)}"
        )
    raise InfeasibleError(
        f"found {format_bytes(limit)} of host memory ({limit} bytes), expected at least "
        f"{format_bytes(host.host_bytes)} ({host.host_bytes} bytes): {', and '.join(words)}; raise --host-memory or "
        "--device-memory, or make the batch smaller"
    )


def _parts(problem: SwapProblem, least: LeastMemory) -> str:
    objects = sorted((size, count) for size, count, _ in least.objects)
    words = [f"{count} x {format_bytes(size)}" for size, count in objects]
    if not words:
        words = [f"{format_bytes(problem.working_set(least.ops[0]))} of tensors"]
    if len(words) > NAMED:
        whole = sum(size * count for size, count in objects)
        words = [f"{format_bytes(whole)} in {len(objects)} classes of objects"]
    words += [f"{format_bytes(problem.scratch_bytes)} of scratch"] if problem.scratch_bytes else []
    words += [f"{format_bytes(problem.reserve_bytes)} of reserve"] if problem.reserve_bytes else []
    return _listed(words)


def _listed(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _setting(problem: SwapProblem, least: LeastMemory) -> str:
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
        other = least_memory(problem, "offset").memory_bytes
        if other <= found:
            return f"{advice}; with --allocator offset the least is {format_bytes(other)}"
    return advice
