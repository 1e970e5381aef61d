"""Who holds whose state: groups, the last one larger as a ring ("GEMINI: Fast Failure Recovery in Distributed Training
with In-Memory Checkpoints"), and one ring of all.

A cycle of machines is enough for both: each holds its own state and those of the machines before it. In a cycle of
`copies` machines everyone holds everything, which is a group. Each round, in which machine i sends to its r-th holder,
is a permutation, so that everyone sends and receives one state at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from treadle.planner.passes.checkpoint.decisions import Placing

T = TypeVar("T")
Holders = tuple[tuple[int, ...], ...]
"""The machines that hold the state of each, itself first."""


def cycles_of(order: Sequence[T], copies: int) -> list[Sequence[T]]:
    """What is in `order`, at least `copies`, in groups of `copies`, the last with what is left over."""
    last = (len(order) // copies - 1) * copies
    return [*(order[first : first + copies] for first in range(0, last, copies)), order[last:]]


def in_cycles(cycles: Iterable[Sequence[int]], copies: int) -> dict[int, tuple[int, ...]]:
    """The holders of each machine: itself and the next ones of its cycle, `copies` in all."""
    return {
        machine: tuple(cycle[(place + step) % len(cycle)] for step in range(copies))
        for cycle in cycles
        for place, machine in enumerate(cycle)
    }


def published(machines: int, copies: int) -> tuple[Placing, Holders]:
    """Groups in the order of numbers, and the name of the placement. copies: at most `machines`."""
    name: Placing = "groups and ring" if machines % copies else "groups"
    return name, listed(in_cycles(cycles_of(range(machines), copies), copies))


def ring(machines: int, copies: int) -> Holders:
    """All machines in one ring."""
    return listed(in_cycles([range(machines)], copies))


def listed(holders: dict[int, tuple[int, ...]]) -> Holders:
    """Holders of machines 0, 1, ... from those by number."""
    return tuple(holders[machine] for machine in range(len(holders)))
