"""Orders whose predicted costs are spread, and how well predictions keep the order of measured times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from scipy.stats import spearmanr

Order = tuple[int, ...]
COUNT, WALKS, SEED = 10, 60, 2
"""Orders that are measured, and walks of random swaps whose orders are candidates for them."""


def spread(best: Order, worst: Order, cost: Callable[[Order], int]) -> list[Order]:
    """Orders whose costs are closest to 10 %, 20 %, ... 100 % of the way from the best one's to the worst one's.

    Candidates are those of walks from the best order by swaps of two hosts: most random orders of hosts in racks cost
    much the same.
    """
    random = Random(SEED)
    known = {best: cost(best), worst: cost(worst)}
    for start in (best, worst):
        for _ in range(WALKS):
            order = list(start)
            for _ in range(len(order)):
                a, b = random.sample(range(len(order)), 2)
                order[a], order[b] = order[b], order[a]
                known.setdefault(tuple(order), cost(tuple(order)))
    least, most = known[best], known[worst]
    found: list[Order] = []
    for step in range(1, COUNT + 1):
        wanted = least + (most - least) * step / COUNT
        left = [order for order in known if order not in found]
        found.append(min(left, key=lambda order: (abs(known[order] - wanted), order)))
    return found


def median_order(orders: Sequence[Order], cost: Callable[[Order], int]) -> Order:
    """That of median cost."""
    return sorted(orders, key=lambda order: (cost(order), order))[len(orders) // 2]


def spearman(predicted: Sequence[float], measured: Sequence[float]) -> float | None:
    """Rank correlation with mean ranks of equal values; None where all of one side are equal."""
    if any(len({*side}) == 1 for side in (predicted, measured)):
        return None
    return float(spearmanr(predicted, measured).statistic)
