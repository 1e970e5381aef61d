"""Survivors: sampling by the softmax of normalised times, without replacement (SwapAdvisor, section 4.4)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from numpy.random import Generator


def weights(times: Sequence[int | None], best: int, temperature: float) -> list[float]:
    """Logarithms of the weights, up to a constant: (best - t) / best / temperature; minus infinity for None, a plan
    that is infeasible."""
    return [-math.inf if time is None else (best - time) / max(1, best) / temperature for time in times]


def survivors(times: Sequence[int | None], best: int, count: int, temperature: float, rng: Generator) -> list[int]:
    """`count` indices, ascending, drawn one after the other with probabilities in proportion to the weights of those
    still there. Infeasible ones only where there are not enough others.

    The largest of log weight + Gumbel noise are such a sample ("Gumbel-max trick").
    """
    noise = [-math.log(-math.log(1.0 - draw)) if draw else -math.inf for draw in rng.random(len(times))]
    scores = [weight + drawn for weight, drawn in zip(weights(times, best, temperature), noise, strict=True)]
    return sorted(sorted(range(len(times)), key=lambda i: (-scores[i], i))[:count])
