"""The cost matrix of some hosts, from what was measured in each direction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import median

from treadle.planner.documents.cost_matrix import VERSION, Asymmetry, CostHost, CostMatrix, PairRate, Probing

Pair = tuple[int, int]
DIGITS, LEAST = 4, 1.0
"""Significant digits; bytes per second of a stream that carried nothing while it was measured."""


def matrix_of(
    hosts: Sequence[CostHost],
    latency_us: Mapping[Pair, float | None],
    rates: Mapping[Pair, float],
    probing: Probing,
    when: str,
    sources: dict[str, str],
) -> CostMatrix:
    """`latency_us` of both directions of a pair, None where no probe was answered: the larger one counts. `rates` in
    bytes per second of both directions: the lower one counts. Numbers are rounded to four significant digits."""
    count = len(hosts)
    larger = {
        (i, j): max((us for pair in ((i, j), (j, i)) if (us := latency_us[pair]) is not None), default=None)
        for i, j in combinations(range(count), 2)
    }
    lower = {
        (i, j): min(rate for pair in ((i, j), (j, i)) if (rate := rates.get(pair)) is not None)
        for i, j in sorted({(min(pair), max(pair)) for pair in rates})
    }
    return CostMatrix(
        version=VERSION,
        name=f"{count} hosts",
        hosts=tuple(hosts),
        latency_us=tuple(
            tuple(0.0 if i == j else _rounded(larger[min(i, j), max(i, j)]) for j in range(count)) for i in range(count)
        ),
        rates=tuple(PairRate(i, j, _digits(max(rate, LEAST))) for (i, j), rate in lower.items()),
        measured_at=when,
        probing=probing,
        sources=sources,
    )


def asymmetry(latency_us: Mapping[Pair, float | None]) -> Asymmetry | None:
    """How far the directions of pairs are apart; None where no pair has two."""
    apart = {
        (i, j): max(there, back) / min(there, back)
        for (i, j), there in latency_us.items()
        if i < j and there and (back := latency_us[j, i])
    }
    if not apart:
        return None
    pair = max(apart, key=lambda each: apart[each])
    return Asymmetry(median=round(median(apart.values()), 3), largest=round(apart[pair], 3), pair=pair)


def lower_rates(rates: Mapping[Pair, float], others: Mapping[Pair, float]) -> dict[Pair, float]:
    """Rates of all directions in either; where both have one, the lower."""
    return {pair: min(each[pair] for each in (rates, others) if pair in each) for pair in rates.keys() | others.keys()}


def _rounded(value: float | None) -> float | None:
    return None if value is None else _digits(value)


def _digits(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
