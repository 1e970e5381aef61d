"""Times of works that all ranks do together, taken in turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median
from time import perf_counter_ns

import torch
from torch import distributed

WARM, LEAST, MOST = 2, 3, 1000
"""Rounds before the first that counts, times of each work, and rounds at most."""
SLOW, SELDOM = 3, 5
"""Works that take as many times as long as the fastest do it in every SELDOM-th round only."""
Work = Callable[[int], object]
"""Called with the number of the round."""


def in_turns(works: Mapping[str, Work], seconds: float) -> dict[str, float]:
    """ms of each: of the slowest rank, the median over as many rounds as fit into the seconds."""
    times: dict[str, list[int]] = {name: [] for name in works}
    warm: dict[str, int] = {}
    for turn in range(MOST):
        # All ranks have the same times, so they choose the same works and end together.
        if min(map(len, times.values())) >= LEAST and sum(map(sum, times.values())) > seconds * 1e9:
            break
        for name in works:
            if turn % SELDOM and warm[name] > SLOW * min(warm.values()):
                continue
            distributed.barrier()
            start = perf_counter_ns()
            works[name](turn)
            took = torch.tensor(perf_counter_ns() - start)
            distributed.all_reduce(took, distributed.ReduceOp.MAX)
            warm[name] = min(warm.get(name, int(took)), int(took))
            times[name] += [int(took)] if turn >= WARM else []
    return {name: median(found) / 1e6 for name, found in times.items()}
