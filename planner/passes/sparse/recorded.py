"""Counts between those that were recorded, and beyond.

Between recorded numbers of participants counts lie on a straight line of logarithms, which keeps them growing and below
what all participants have together. Beyond the last one they go on as the power of participants that the last two
points have, up to the whole gradient; after a single point as if participants had nothing in common.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log

import numpy as np
from numpy.typing import NDArray

from treadle.planner.documents.sparsity import TensorSparsity

Numbers = NDArray[np.float64]
NONE = 0.25
"""Units that stand for none where logarithms are taken."""


def unions(participants: Sequence[int], counts: Sequence[int], ask: NDArray[np.int64], most: float) -> Numbers:
    """Counts in the sums of `ask` [N] participants, at most `most`, from those recorded for some numbers of them."""
    x, y = np.log(participants), np.log(np.maximum(counts, NONE))
    wanted = np.log(ask)
    power = 1.0 if len(x) == 1 else min(1.0, max(0.0, float((y[-1] - y[-2]) / (x[-1] - x[-2]))))
    found = np.interp(wanted, x, y) + power * np.maximum(wanted - x[-1], 0.0)
    limited: Numbers = np.minimum(np.exp(found), most)
    return limited


def skewness(tensor: TensorSparsity, parts: int, ask: NDArray[np.int64]) -> Numbers:
    """How much more than its even share the fullest of `parts` even ranges has in sums of `ask` [N] participants: 1 to
    `parts`. Without any record all of it may be in one range."""
    if parts == 1:
        return np.ones(len(ask))
    by_participants: dict[int, dict[int, float]] = {}
    recorded = {union.participants: union.mean for union in tensor.unions}
    for each in tensor.fullest:
        if recorded.get(each.participants) and each.parts > 1:
            skew = each.mean * each.parts / recorded[each.participants]
            by_participants.setdefault(each.participants, {})[each.parts] = min(float(each.parts), max(1.0, skew))
    if not by_participants:
        return np.full(len(ask), float(parts))
    x = sorted(by_participants)
    y = [_along_parts(by_participants[participants], parts) for participants in x]
    found: Numbers = np.exp(np.interp(np.log(ask), np.log(x), np.log(y)))
    return found


def _along_parts(skew: dict[int, float], parts: int) -> float:
    """The skewness for `parts` ranges, from that for others and 1 for the whole; it grows on beyond the last."""
    points = [(1, 1.0), *sorted(skew.items())]
    x, y = [log(at) for at, _ in points], [log(value) for _, value in points]
    slope = min(1.0, max(0.0, (y[-1] - y[-2]) / (x[-1] - x[-2])))
    found = float(np.interp(log(parts), x, y)) + slope * max(0.0, log(parts) - x[-1])
    return min(float(parts), float(np.exp(found)))


def block_share(tensor: TensorSparsity, size: int, parts: int, participants: int) -> float:
    """The share of blocks of `size` that are not zero in the fullest range, from the ranges recorded whose number is
    nearest to `parts`."""
    recorded = [each for each in tensor.blocks if each.block == size]
    nearest = min({each.parts for each in recorded}, key=lambda found: (abs(log(found / parts)), found))
    points = sorted({each.participants: each.mean for each in recorded if each.parts == nearest}.items())
    whole = ceil(ceil(tensor.units / nearest) / size)
    counts = unions([at for at, _ in points], [mean for _, mean in points], np.array([participants]), whole)
    return float(counts[0]) / whole
