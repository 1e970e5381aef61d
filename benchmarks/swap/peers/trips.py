"""Rules that fix evictions and fetches beforehand: the plans they give, and the memory these need.

Parameters and states stay on the device, inputs are copied in before their first use, every other tensor is freed after
its last. The order is that of the graph, and memory is counted in bytes (PyTorch's caching allocator at best).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from benchmarks.swap.peers.device import Device
from benchmarks.swap.peers.memory import Bytes
from benchmarks.swap.peers.peer import Outcome
from treadle.planner.passes.swap.problem import PERSISTENT, SwapProblem

UNLIMITED = 2**62


class Fetch(NamedTuple):
    """A copy in that may start with operator `issue`, for operator `needed`; the tensor is freed after `until`."""

    issue: int
    needed: int
    until: int


class Trip(NamedTuple):
    """A tensor is evicted after operator `leave`; operator `wait` does not start before its copy has ended."""

    tensor: int
    leave: int
    wait: int | None
    fetches: tuple[Fetch, ...]


def outcome(problem: SwapProblem, trips: Sequence[Trip]) -> Outcome:
    """The plan of these trips, or the memory that it needs."""
    besides = problem.machine.memory_bytes - problem.arena_bytes
    device = _run(problem, trips, UNLIMITED)
    assert device is not None
    needed = device.peak + besides
    fits = _run(problem, trips, problem.arena_bytes) if needed <= problem.machine.memory_bytes else None
    return Outcome(None if fits is None else fits.finish("bytes"), needed)


def groups(users: Iterable[int]) -> list[tuple[int, int]]:
    """First and last of each run of adjacent operators."""
    found: list[tuple[int, int]] = []
    for user in users:
        if found and user <= found[-1][1] + 1:
            found[-1] = (found[-1][0], user)
        else:
            found.append((user, user))
    return found


def _run(problem: SwapProblem, trips: Sequence[Trip], memory: int) -> Device | None:
    """All operators; None if memory is insufficient."""
    device = Device(problem, Bytes(memory))
    touched = {tensor for op in problem.ops for tensor in op.inputs}
    if not device.start(t for t, found in enumerate(problem.tensors) if found.role in PERSISTENT and t in touched):
        return None
    leaving: defaultdict[int, list[Trip]] = defaultdict(list)
    issued: defaultdict[int, list[tuple[int, Fetch]]] = defaultdict(list)
    going: defaultdict[int, list[int]] = defaultdict(list)
    waits: defaultdict[int, list[int]] = defaultdict(list)
    for trip in trips:
        leaving[trip.leave].append(trip)
        for fetch in trip.fetches:
            issued[max(fetch.issue, trip.leave + 1)].append((trip.tensor, fetch))
        for fetch, following in pairwise(trip.fetches):
            going[min(fetch.until, following.issue - 1)].append(trip.tensor)
    for op, record in enumerate(problem.ops):
        before = [*device.computes[-1:], *waits[op]]
        for tensor, fetch in issued[op]:
            if not device.bring(tensor, fetch.needed, before):
                return None
        for tensor in record.inputs:
            if not device.bring(tensor, op, () if problem.tensors[tensor].role == "input" else before):
                return None
        if not device.run(op, waits[op]):
            return None
        for trip in leaving[op]:
            node = device.leave(trip.tensor, op)
            if trip.wait is not None:
                waits[trip.wait].append(node)
        for tensor in going[op]:
            if tensor in device.here:
                device.leave(tensor, op)
    return device
