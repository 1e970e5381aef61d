"""Calls that all ranks make in turns, and what the slowest rank takes for each.

A round makes every call once, so that a machine that slows down slows them all.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from statistics import median

from treadle.planner.search.top import Outcome

ROUNDS = 5
"""Runs of each call, after one that is not counted."""


def in_turns(calls: Sequence[Callable[[], object]], ends: float = math.inf, rounds: int = ROUNDS) -> list[list[int]]:
    """ns of each call by round, on this rank; all ranks begin each together. Every round begins with another call, so
    that none always comes after the same one. No further one begins after `ends`, on time.monotonic's clock."""
    from torch import distributed

    times: list[list[int]] = [[] for _ in calls]
    for turn in range(rounds + 1):
        if turn > 1 and is_over(ends):
            break
        for step in range(len(calls)):
            place = (turn + step) % len(calls)
            distributed.barrier()
            start = time.perf_counter_ns()
            calls[place]()
            if turn:
                times[place].append(time.perf_counter_ns() - start)
    return times


def is_over(ends: float) -> bool:
    """Whether the time of any rank has passed: the same on all of them."""
    import torch
    from torch import distributed
    from torch.distributed import ReduceOp

    late = torch.tensor([float(time.monotonic() > ends)])
    distributed.all_reduce(late, op=ReduceOp.MAX)
    return bool(late.item())


def slowest(ranks: Sequence[Sequence[Sequence[float]]]) -> dict[int, Outcome]:
    """The median over rounds of the slowest rank's time, of each call by its place; `ranks` are what `in_turns` found
    on each."""
    times = (median(max(turn) for turn in zip(*call, strict=True)) for call in zip(*ranks, strict=True))
    return {place: Outcome(max(1, round(ns))) for place, ns in enumerate(times)}
