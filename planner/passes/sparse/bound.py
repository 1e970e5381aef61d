"""Lower bounds: what no scheme can avoid.

A participant must receive, at least once, what is not zero in the sum of the others; that is one message of the values
of these units, without any index (the "Upper Bound" of Zen's evaluation). It also sums the gradient inside its node,
begins a round, and writes the sum. Where the cheapest of all schemes takes less, since counts are means, that is the
bound.
"""

from __future__ import annotations

from collections.abc import Iterable

from treadle.planner.passes.sparse.counts import GradientCounts
from treadle.planner.passes.sparse.prices import SchemePrices
from treadle.planner.passes.sparse.problem import VALUE_BYTES, SparseGradient
from treadle.planner.search.bound import Argument, Bound

SENTENCES = {
    "least": (
        "for each gradient a participant at least begins a round, receives the values that are not zero in the sum of "
        "the others once and without indices, and writes the sum; or what the cheapest of all schemes takes, if less"
    ),
}


def sentence(bound: Bound) -> str:
    """Why `bound` holds, in words."""
    return bound.argument.printed(SENTENCES)


def least_ns(prices: SchemePrices, gradient: SparseGradient, times: Iterable[int]) -> int:
    """The bound of one gradient. times: those of all schemes, in ns."""
    cheapest, n = min(times), prices.problem.machines
    if n == 1:
        return cheapest
    counts = GradientCounts(prices.problem, gradient)
    work = sum(prices.inside(counts)) + prices.write(counts) + prices.call(1)
    link = prices.link_ns(1, VALUE_BYTES * gradient.width * counts.union(n - 1))
    return min(cheapest, prices.rounded(work) + link)


def lower_bound(gradients: Iterable[int]) -> Bound:
    """The bound of all gradients one after the other, from that of each in ns."""
    return Bound(sum(gradients), Argument("least"))
