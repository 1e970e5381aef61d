"""How far two divisions of the same things agree beyond chance (Vinh, Epps and Bailey, Information Theoretic Measures
for Clusterings Comparison)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import exp, lgamma, log


def adjusted_mutual_information(one: Sequence[int], other: Sequence[int]) -> float:
    """Mutual information of labels by things, less what is expected of random labels of the same sizes: 1 for equal
    divisions, 0 for chance, relative to the mean entropy of both."""
    n = len(one)
    rows, columns = Counter(one), Counter(other)
    shared = Counter(zip(one, other, strict=True))
    mutual = sum(count / n * log(n * count / (rows[a] * columns[b])) for (a, b), count in shared.items())
    chance = sum(_expected(n, a, b) for a in rows.values() for b in columns.values())
    mean = (_entropy(rows, n) + _entropy(columns, n)) / 2
    return (mutual - chance) / (mean - chance) if mean > chance + 1e-12 else 1.0


def _entropy(sizes: Counter[int], n: int) -> float:
    return -sum(size / n * log(size / n) for size in sizes.values())


def _expected(n: int, a: int, b: int) -> float:
    """The share of a pair of groups of `a` and `b` things in the expected mutual information: what they have in common
    is hypergeometric."""
    return sum(
        both / n * log(n * both / (a * b)) * exp(_choose(a, both) + _choose(n - a, b - both) - _choose(n, b))
        for both in range(max(1, a + b - n), min(a, b) + 1)
    )


def _choose(n: int, k: int) -> float:
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)
