"""Times of works that all ranks do together, taken in turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median
from time import perf_counter_ns

import torch
from torch import distributed

WARM, LEAST, MOST = 3, 5, 1000
"""Rounds before the first that counts, and rounds that count."""
SLOW, SELDOM = 3, 6
"""Works that take as many times as long as the fastest do it in every SELDOM-th round only."""
Work = Callable[[int], object]
"""Called with the number of the round."""


def in_turns(works: Mapping[str, Work], seconds: float) -> dict[str, float]:
    """ms of each: of the slowest rank, the median over as many rounds as fit into the seconds, at least LEAST."""
    times: dict[str, list[int]] = {name: [] for name in works}
    for turn in range(WARM + MOST):
        # All ranks have the same times, so they end together.
        if turn >= WARM + LEAST and sum(map(sum, times.values())) > seconds * 1e9:
            break
        for name in _chosen(times, turn):
            distributed.barrier()
            start = perf_counter_ns()
            works[name](turn)
            took = torch.tensor(perf_counter_ns() - start)
            distributed.all_reduce(took, distributed.ReduceOp.MAX)
            times[name] += [int(took)] if turn >= WARM else []
    return {name: median(found) / 1e6 for name, found in times.items()}


def _chosen(times: Mapping[str, list[int]], turn: int) -> list[str]:
    if turn < WARM + LEAST or turn % SELDOM == 0:
        return list(times)
    typical = {name: median(found) for name, found in times.items()}
    return [name for name, ns in typical.items() if ns <= SLOW * min(typical.values())]
