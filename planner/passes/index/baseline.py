"""What the learned model must beat: an if-else on the share of inserts.

Each side of the thresholds has one order of the configurations, by their mean throughput on the traces that were
learned from, relative to the other configurations of the same trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from treadle.planner.documents.index_model import IndexBaseline

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_THRESHOLDS = 2
LEAST_TRACES = 6
"""On each side of a threshold."""
MOST_TRIED = 24
"""Thresholds that are tried."""


class MeasuredTrace(NamedTuple):
    """One trace: its picture, and the logarithm of operations per second of some configurations."""

    family: str
    insert_share: float
    picture: NDArray[np.float32]
    buckets: NDArray[np.int64]
    """[n, parameters]"""
    log_throughput: NDArray[np.float64]
    """[n]"""


def baseline_scores(baseline: IndexBaseline, insert_share: float, chosen: NDArray[np.int64]) -> NDArray[np.float64]:
    """What orders configurations, [n], as the baseline does: the larger the better. Unlisted ones are last."""
    order = baseline.ranked[sum(insert_share >= each for each in baseline.thresholds)]
    places = {each: place for place, each in enumerate(order)}
    return np.array([-float(places.get(tuple(each), len(order))) for each in chosen.tolist()])


def fitted_baseline(traces: Sequence[MeasuredTrace]) -> IndexBaseline:
    """The baseline whose first choices lose least on `traces`, with up to two thresholds."""
    table, known = _relative(traces)
    order = np.argsort([each.insert_share for each in traces], kind="stable")
    shares = np.array([traces[place].insert_share for place in order])
    steps = np.linspace(LEAST_TRACES, max(len(traces) - LEAST_TRACES, LEAST_TRACES), MOST_TRIED).astype(int)
    cuts = [int(each) for each in np.unique(steps) if each < len(traces) and shares[each - 1] < shares[each]]
    best: tuple[float, tuple[int, ...]] = (np.inf, ())
    for count in range(MOST_THRESHOLDS + 1):
        for inner in combinations(cuts, count):
            ends = (0, *inner, len(traces))
            if any(after - before < LEAST_TRACES for before, after in pairwise(ends)) and inner:
                continue
            loss = sum(_loss(table[order[a:b]]) for a, b in pairwise(ends))
            if loss < best[0] - 1e-12:
                best = loss, inner
    ends = (0, *best[1], len(traces))
    return IndexBaseline(
        thresholds=tuple(round(float(shares[place - 1] + shares[place]) / 2, 6) for place in best[1]),
        ranked=tuple(_ranked(table[order[a:b]], known) for a, b in pairwise(ends)),
    )


def _relative(traces: Sequence[MeasuredTrace]) -> tuple[NDArray[np.float64], list[tuple[int, ...]]]:
    """[traces, configurations]: logarithms of throughput less what a trace has on average; NaN where not measured."""
    known = sorted({tuple(each) for trace in traces for each in trace.buckets.tolist()})
    places = {each: place for place, each in enumerate(known)}
    table = np.full((len(traces), len(known)), np.nan)
    for row, trace in enumerate(traces):
        table[row, [places[tuple(each)] for each in trace.buckets.tolist()]] = trace.log_throughput
    # Traces measure different configurations: effects of both are fitted in turn.
    effect = np.zeros(len(known))
    for _ in range(20):
        level = np.nanmean(table - effect, axis=1, keepdims=True)
        effect = np.nanmean(table - level, axis=0)
    return table - level, known


def _means(table: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean of each configuration, drawn towards that of a poor one by how rarely it was measured."""
    counts = np.isfinite(table).sum(axis=0)
    sums = np.nansum(table, axis=0)
    return np.asarray((sums + np.nanquantile(table, 0.25)) / (counts + 1))


def _loss(table: NDArray[np.float64]) -> float:
    """What the first choice loses on these traces in all, against the best one of each."""
    return float(len(table) * -_means(table).max() + np.nanmax(table, axis=1).sum())


def _ranked(table: NDArray[np.float64], known: list[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    return tuple(known[place] for place in np.argsort(-_means(table), kind="stable"))
