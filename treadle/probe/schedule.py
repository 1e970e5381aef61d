"""Rounds of disjoint pairs: every host is in one pair of a round, so that no two probes meet on a host."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

Pair = tuple[int, int]
Round = tuple[Pair, ...]


def circle(hosts: Sequence[int]) -> list[Round]:
    """Rounds that have every pair of `hosts` once: n - 1 for an even number of hosts, n for an odd one, where a host
    rests in each (the circle method: one place stays, all others move on by one).

    Two rounds in a row join all hosts into one ring.
    """
    if len(hosts) < 2:
        return []
    places: list[int | None] = [*hosts, *([None] if len(hosts) % 2 else [])]
    half, rounds = len(places) // 2, []
    for _ in places[1:]:
        met = zip(places[:half], reversed(places[half:]), strict=True)
        rounds.append(tuple(_ordered(one, other) for one, other in met if one is not None and other is not None))
        places = [places[0], places[-1], *places[1:-1]]
    return rounds


def across(groups: Sequence[Sequence[int]]) -> list[Round]:
    """Rounds that have every pair of hosts of two different groups once. In a round the groups meet in pairs and all
    hosts of the smaller one of two have a partner, so that they share what joins the groups; of an odd number of
    groups one rests."""
    rounds: list[Round] = []
    for meeting in circle(range(len(groups))):
        shifts = []
        for pair in meeting:
            small, large = sorted((groups[place] for place in pair), key=len)
            shifts.append(
                [
                    [_ordered(host, large[(place + shift) % len(large)]) for place, host in enumerate(small)]
                    for shift in range(len(large))
                ]
            )
        rounds += [tuple(pair for part in parts for pair in part) for parts in zip_longest(*shifts, fillvalue=[])]
    return rounds


def inside(groups: Sequence[Sequence[int]], most: int) -> list[Round]:
    """Rounds of the circle inside every group, all groups at once: the first `most` of each."""
    parts = zip_longest(*(circle(group)[:most] for group in groups), fillvalue=())
    return [found for part in parts if (found := tuple(pair for each in part for pair in each))]


def spread(rounds: Sequence[Round], most: int) -> list[Round]:
    """All of `rounds`, or `most` of them at equal distances."""
    if len(rounds) <= most:
        return list(rounds)
    return [rounds[place * len(rounds) // most] for place in range(most)]


def _ordered(one: int, other: int) -> Pair:
    return min(one, other), max(one, other)
