"""What libraries do by place in their list of hosts, derived from the definitions of the algorithms a second time.

It shares no code with the patterns that the planner searches with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import combinations
from typing import NamedTuple

from treadle.planner.passes.ranks.problem import RanksProblem

Children = Mapping[int, tuple[int, ...]]


class ExpectedRound(NamedTuple):
    """Pairs of places that exchange `share` of the bytes at the same time."""

    share: Fraction
    pairs: tuple[tuple[int, int], ...]


class ExpectedTree(NamedTuple):
    """The places below each place; every hop has `share` of the bytes."""

    share: Fraction
    root: int
    children: Children


def expected_rounds(problem: RanksProblem) -> list[ExpectedRound]:
    """The rounds of the problem's algorithm; none for trees and plans."""
    count = len(problem.hosts)
    if problem.algorithm in ("ring", "nccl-ring"):
        return _ring(count)
    if problem.algorithm == "halving-doubling":
        return _halving_doubling(count)
    return _bcube(problem.factors) if problem.algorithm == "bcube" else []


def expected_trees(problem: RanksProblem) -> list[ExpectedTree]:
    """The trees of the problem's algorithm; none for rounds and plans."""
    count, half = len(problem.hosts), Fraction(1, 2)
    last = count - 1
    if problem.algorithm == "tree":
        return [ExpectedTree(Fraction(1), last // 2, dict(_interval(0, last)))]
    if problem.algorithm == "double-tree":
        first = ExpectedTree(half, last // 2, dict(_interval(0, last)))
        return [first, _renamed(first, [(place - 1) % count for place in range(count)])]
    if problem.algorithm == "nccl-tree":
        first = ExpectedTree(half, 0, dict(_binary(count)))
        odd = [(place + 1) % count for place in range(count)]
        return [first, _renamed(first, odd if count % 2 else list(reversed(range(count))))]
    return []


def _ring(count: int) -> list[ExpectedRound]:
    """A closed tour: the costs of all hops add up."""
    if count == 1:
        return []
    return [ExpectedRound(Fraction(1, count), ((place, (place + 1) % count),)) for place in range(count)]


def _halving_doubling(count: int) -> list[ExpectedRound]:
    """Numbers of those who take part after the fold, which differ by one bit in each round."""
    power = 1
    while power * 2 <= count:
        power *= 2
    folded = count - power
    number = {
        place // 2 if place < 2 * folded else place - folded: place
        for place in range(count)
        if place >= 2 * folded or place % 2
    }
    rounds = [ExpectedRound(Fraction(1), tuple((k, k + 1) for k in range(0, 2 * folded, 2)))] if folded else []
    distance = 1
    while distance < power:
        pairs = tuple((number[a], number[a ^ distance]) for a in range(power) if a < a ^ distance)
        rounds.append(ExpectedRound(Fraction(1, 2 * distance), pairs))
        distance *= 2
    return rounds


def _bcube(factors: tuple[int, ...]) -> list[ExpectedRound]:
    """Groups of places whose digits agree but for one."""
    count = 1
    for factor in factors:
        count *= factor
    digits = [tuple(_digits(place, factors)) for place in range(count)]
    rounds, parts = [], 1
    for at, factor in enumerate(factors):
        parts *= factor
        groups: dict[tuple[int, ...], list[int]] = {}
        for place, own in enumerate(digits):
            groups.setdefault(own[:at] + own[at + 1 :], []).append(place)
        pairs = tuple(pair for group in groups.values() for pair in combinations(group, 2))
        rounds.append(ExpectedRound(Fraction(1, parts), pairs))
    return rounds


def _digits(place: int, factors: tuple[int, ...]) -> Iterator[int]:
    for factor in factors:
        place, digit = divmod(place, factor)
        yield digit


def _interval(first: int, last: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """The children of each place of an interval, whose middle is its root."""
    middle = (first + last) // 2
    sides = [side for side in ((first, middle - 1), (middle + 1, last)) if side[0] <= side[1]]
    yield middle, tuple((low + high) // 2 for low, high in sides)
    for side in sides:
        yield from _interval(*side)


def _binary(count: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """The children that NCCL gives each place: half of its lowest bit below it and above it, there as far as there are
    places; the first place has one child, the largest power of two."""
    for place in range(count):
        reach = place & -place if place else 0
        if not place:
            top = 1
            while 2 * top < count:
                top *= 2
            yield 0, (top,) if count > 1 else ()
            continue
        below = (place - reach // 2,) if reach > 1 else ()
        step = reach // 2
        while step and place + step >= count:
            step //= 2
        yield place, below + ((place + step,) if step else ())


def _renamed(tree: ExpectedTree, names: list[int]) -> ExpectedTree:
    children = {names[place]: tuple(names[child] for child in below) for place, below in tree.children.items()}
    return ExpectedTree(tree.share, names[tree.root], children)
