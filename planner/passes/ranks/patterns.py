"""What collective libraries do by place in their list of hosts, as rounds and trees of hops.

The cost models are those of "PLink Collectives": an allreduce is a reduce-scatter and its mirror image, so models are
of one of the two halves. Printed index sets that name other pairs than the algorithms exchange are repaired.
"""

from __future__ import annotations

from fractions import Fraction
from math import prod
from typing import NamedTuple

from treadle.planner.machine.binary_tree import binary_tree
from treadle.planner.passes.ranks.problem import PlanHop, RanksProblem

Edge = tuple[int, int]


class HopRound(NamedTuple):
    """Hops of one round, all at once: it takes as long as the dearest. Each moves `share` of the bytes."""

    share: Fraction
    pairs: tuple[Edge, ...]


class HopTree(NamedTuple):
    """Hops (parent, child), parents first, of which each moves `share` of the bytes: the dearest path from the root."""

    share: Fraction
    edges: tuple[Edge, ...]


class HopPattern(NamedTuple):
    """It costs the sum of its rounds, and the dearest of its trees, and the critical path of its hops; a pattern has
    only one of the three."""

    rounds: tuple[HopRound, ...] = ()
    trees: tuple[HopTree, ...] = ()
    hops: tuple[PlanHop, ...] = ()


def pattern_of(problem: RanksProblem) -> HopPattern:
    """The pattern of the problem's algorithm over its places."""
    count = len(problem.hosts)
    if problem.algorithm in ("ring", "nccl-ring"):
        return HopPattern(rounds=ring(count))
    if problem.algorithm == "halving-doubling":
        return HopPattern(rounds=halving_doubling(count))
    if problem.algorithm == "bcube":
        return HopPattern(rounds=bcube(problem.factors))
    if problem.algorithm == "tree":
        return HopPattern(trees=(HopTree(Fraction(1), middle_tree(count)),))
    if problem.algorithm == "double-tree":
        return HopPattern(trees=mirrored(middle_tree(count), count))
    if problem.algorithm == "nccl-tree":
        return HopPattern(trees=nccl_trees(count))
    return HopPattern(hops=problem.hops)


def ring(count: int) -> tuple[HopRound, ...]:
    """Every place sends to the one before it: the length of a closed tour, all hops of which are on the critical path.
    A hop moves one of `count` parts at a time, as chunked rings do."""
    return tuple(HopRound(Fraction(1, count), ((place, (place - 1) % count),)) for place in range(count) if count > 1)


def halving_doubling(count: int) -> tuple[HopRound, ...]:
    """Round i exchanges S / 2^(i+1) between places that differ in bit i. Where `count` is no power of two, places
    beyond one first fold into their neighbours, as MPI libraries do: place 2k sends all it has to 2k + 1."""
    bits = count.bit_length() - 1
    extra = count - (1 << bits)
    kept = [*range(1, 2 * extra, 2), *range(2 * extra, count)]
    fold = (HopRound(Fraction(1), tuple((2 * k, 2 * k + 1) for k in range(extra))),) if extra else ()
    rounds = bcube((2,) * bits)
    return fold + tuple(HopRound(share, tuple((kept[a], kept[b]) for a, b in pairs)) for share, pairs in rounds)


def bcube(factors: tuple[int, ...]) -> tuple[HopRound, ...]:
    """In round i all places that differ only in digit i of the mixed radix `factors` exchange their parts."""
    count, rounds = prod(factors), []
    for digit, base in enumerate(factors):
        step = prod(factors[:digit])
        groups = [[first + k * step for k in range(base)] for first in range(count) if not first // step % base]
        pairs = tuple((a, b) for group in groups for place, a in enumerate(group) for b in group[place + 1 :])
        rounds.append(HopRound(Fraction(1, prod(factors[: digit + 1])), pairs))
    return tuple(rounds)


def middle_tree(count: int) -> tuple[Edge, ...]:
    """The binary tree over 0..count-1 in which the root of an interval is its middle, rounded down."""
    edges: list[Edge] = []
    intervals = [(0, count - 1)] if count else []
    for first, last in intervals:
        middle = (first + last) // 2
        for left, right in ((first, middle - 1), (middle + 1, last)):
            if left <= right:
                edges.append((middle, (left + right) // 2))
                intervals.append((left, right))
    return tuple(edges)


def mirrored(edges: tuple[Edge, ...], count: int) -> tuple[HopTree, ...]:
    """The tree, and the same with every place one lower; each carries half of the bytes."""
    other = tuple(((parent - 1) % count, (child - 1) % count) for parent, child in edges)
    return HopTree(Fraction(1, 2), edges), HopTree(Fraction(1, 2), other)


def nccl_trees(count: int) -> tuple[HopTree, ...]:
    """The double binary tree as NCCL builds it over nodes; each tree carries half of the bytes."""
    return tuple(HopTree(Fraction(1, 2), tuple(binary_tree(count, mirror)[1])) for mirror in (False, True))
