"""How good rankings of configurations are: of a learned model, and of the baseline next to it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from treadle.planner.documents.index_model import FamilyScore, IndexModel, RankingScore
from treadle.planner.passes.index.baseline import MeasuredTrace, baseline_scores
from treadle.planner.passes.index.evaluator import log_throughputs

TOPS = (1, 3, 10)


def validated(model: IndexModel, traces: Sequence[MeasuredTrace]) -> tuple[FamilyScore, ...]:
    """Scores on each family of `traces`, none of which the model was learned from."""
    found = []
    for family in sorted({each.family for each in traces}):
        own = [each for each in traces if each.family == family]
        learned = [ranking(log_throughputs(model, each.picture, each.buckets), each.log_throughput) for each in own]
        simple = [
            ranking(baseline_scores(model.baseline, each.insert_share, each.buckets), each.log_throughput)
            for each in own
        ]
        found.append(
            FamilyScore(
                family=family,
                traces=len(own),
                configurations=min(len(each.log_throughput) for each in own),
                model=mean_score(learned),
                baseline=mean_score(simple),
            )
        )
    return tuple(found)


def ranking(scores: NDArray[np.float64], log_throughput: NDArray[np.float64]) -> RankingScore:
    """The score of ordering by `scores`, the largest first, what ran at these logarithms of throughput, [n] each."""
    order = np.argsort(-scores, kind="stable")
    best = log_throughput.max()
    regrets = [float(1 - np.exp(log_throughput[order[:top]].max() - best)) for top in TOPS]
    return RankingScore(
        top_1=float(order[0] == np.argmax(log_throughput)),
        regret_1=regrets[0],
        regret_3=regrets[1],
        regret_10=regrets[2],
        rank_correlation=_correlation(scores, log_throughput),
    )


def mean_score(scores: Iterable[RankingScore]) -> RankingScore:
    """The mean of each figure, to four digits after the point."""
    all_scores = list(scores)
    return RankingScore(
        **{
            name: round(float(np.mean([getattr(each, name) for each in all_scores])), 4)
            for name in RankingScore.__struct_fields__
        }
    )


def _correlation(left: NDArray[np.float64], right: NDArray[np.float64]) -> float:
    """Spearman's rank correlation; 0 where one of them does not order anything."""
    from scipy.stats import rankdata

    a, b = rankdata(left), rankdata(right)
    if a.std() == 0 or b.std() == 0:
        return 0.0
    return float(np.clip(np.corrcoef(a, b)[0, 1], -1, 1))
