"""Survival estimated from random sets of lost machines, with an interval that holds the truth in 99 of 100 cases."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from treadle.planner.passes.checkpoint.placement import Holders

SAMPLES = 200_000
TAIL = 0.005
"""Each side of the interval."""


class Estimate(NamedTuple):
    """A probability and its interval."""

    probability: float
    low: float
    high: float


def sampled(holders: Holders, lost: int, *, samples: int = SAMPLES, seed: int = 0) -> Estimate:
    """The share of `samples` random sets of `lost` machines after which each state has a holder."""
    sets = subsets(len(holders), lost, samples, seed)
    missing = np.zeros((samples, len(holders)), dtype=bool)
    rows = np.arange(samples)[:, None]
    missing[rows, sets] = True
    table = np.asarray(holders)
    # Only a lost machine's state can be lost, since each holds its own.
    fatal = missing[rows[:, :, None], table[sets]].all(axis=2).any(axis=1)
    return interval(samples - int(fatal.sum()), samples)


def subsets(count: int, size: int, samples: int, seed: int) -> NDArray[np.int64]:
    """`samples` sets of `size` of `count` members, all sets alike (Floyd's algorithm)."""
    random = np.random.default_rng(seed)
    chosen = np.empty((samples, size), dtype=np.int64)
    for place, last in enumerate(range(count - size, count)):
        drawn = random.integers(0, last + 1, samples)
        taken = (chosen[:, :place] == drawn[:, None]).any(axis=1)
        chosen[:, place] = np.where(taken, last, drawn)
    return chosen


def interval(hits: int, samples: int) -> Estimate:
    """The interval of Clopper and Pearson."""
    from scipy.special import betaincinv

    low = float(betaincinv(hits, samples - hits + 1, TAIL)) if hits else 0.0
    high = float(betaincinv(hits + 1, samples - hits, 1 - TAIL)) if hits < samples else 1.0
    return Estimate(hits / samples, low, high)
