"""Calls that all ranks make in turns, and what the slowest rank takes for each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

ROUNDS = 5
"""Runs of each call, after one that is not counted."""


def in_turns(calls: Sequence[Callable[[], object]], rounds: int = ROUNDS) -> list[list[int]]:
    """ns of each call by round, on this rank; all ranks begin each together. Every round begins with another call, so
    that none always comes after the same one."""
    from torch import distributed

    times: list[list[int]] = [[] for _ in calls]
    for turn in range(rounds + 1):
        for step in range(len(calls)):
            place = (turn + step) % len(calls)
            distributed.barrier()
            start = time.perf_counter_ns()
            calls[place]()
            if turn:
                times[place].append(time.perf_counter_ns() - start)
    return times


def slowest(ranks: Sequence[Sequence[Sequence[int]]]) -> list[float]:
    """The median over rounds of the slowest rank's time, of each call; `ranks` are what `in_turns` found on each."""
    return [median(max(turn) for turn in zip(*call, strict=True)) for call in zip(*ranks, strict=True)]
