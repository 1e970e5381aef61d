"""How long an allreduce takes where hops share NICs and uplinks, computed a second time, link by link."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from math import ceil

from treadle.planner.documents.scalars import MEBIBYTE
from treadle.planner.passes.ranks.check_patterns import ExpectedRound, ExpectedTree
from treadle.planner.passes.ranks.problem import RanksProblem

UNIT = 1 << 200
"""Rates are whole parts of it: sums of thousands of fractions would have huge denominators."""
Sent = tuple[int, int]
Passes = Callable[[int, int], bool]
"""Whether a message from one host to another passes a link."""


def counted_time(
    problem: RanksProblem, order: Sequence[int], rounds: Sequence[ExpectedRound], trees: Sequence[ExpectedTree]
) -> int:
    """The time of an allreduce by rounds or trees, for a problem with several near groups."""
    if trees:
        sent = [(place, child) for tree in trees for place, below in tree.children.items() for child in below]
        longest = max(_longest(problem, order, tree, tree.root) for tree in trees)
        return 2 * longest + _busiest(problem, order, _both(sent), trees[0].share)
    if problem.algorithm in ("ring", "nccl-ring"):
        rounds = [ExpectedRound(rounds[0].share, tuple(pair for each in rounds for pair in each.pairs))]
        return 2 * (len(order) - 1) * _at_once(problem, order, rounds[0].pairs, rounds[0].share)
    return 2 * sum(_at_once(problem, order, _both(each.pairs), each.share) for each in rounds)


def _both(pairs: Sequence[Sent]) -> list[Sent]:
    return [*pairs, *((b, a) for a, b in pairs)]


def _at_once(problem: RanksProblem, order: Sequence[int], sent: Sequence[Sent], share: Fraction) -> int:
    """The dearest message: its latency, and the time of the link on its path that needs longest."""
    hosts = [(order[a], order[b]) for a, b in sent]
    needed = _needed(problem, hosts, ceil(share * problem.size_bytes))
    return max(
        problem.latency_ns[src][dst] + max(time for passes, time in needed if passes(src, dst)) for src, dst in hosts
    )


def _busiest(problem: RanksProblem, order: Sequence[int], sent: Sequence[Sent], share: Fraction) -> int:
    hosts = [(order[a], order[b]) for a, b in sent]
    return max(time for _, time in _needed(problem, hosts, ceil(share * problem.size_bytes)))


def _needed(problem: RanksProblem, hosts: Sequence[Sent], size: int) -> list[tuple[Passes, int]]:
    """For each direction of a link, which messages pass it, and the time of those: their bytes at what it carries."""
    assert problem.ns_per_MiB is not None
    rates = [[UNIT // ns if ns else 0 for ns in row] for row in problem.ns_per_MiB]
    nics = [min(row[:host] + row[host + 1 :]) for host, row in enumerate(problem.ns_per_MiB)]
    links: list[tuple[Passes, Fraction]] = []
    for group in problem.near:
        inside = frozenset(group)
        others = [host for host in range(len(rates)) if host not in inside]
        shared = Fraction(sum(rates[host][other] for host in group for other in others), len(others))
        carried = min(shared, Fraction(sum(max(rates[host]) for host in group)))
        uplink = (UNIT / carried).limit_denominator(10**12)
        links += [(partial(_leaves, inside), uplink), (partial(_enters, inside), uplink)]
        for host in group:
            links += [(partial(_begins, host), Fraction(nics[host])), (partial(_ends, host), Fraction(nics[host]))]
    return [(passes, ceil(sum(passes(*pair) for pair in hosts) * size * ns / MEBIBYTE)) for passes, ns in links]


def _leaves(group: frozenset[int], src: int, dst: int) -> bool:
    return src in group and dst not in group


def _enters(group: frozenset[int], src: int, dst: int) -> bool:
    return _leaves(group, dst, src)


def _begins(host: int, src: int, dst: int) -> bool:
    return src == host


def _ends(host: int, src: int, dst: int) -> bool:
    return dst == host


def _longest(problem: RanksProblem, order: Sequence[int], tree: ExpectedTree, place: int) -> int:
    """Latencies of the longest path down from a place."""
    return max(
        (
            problem.latency_ns[order[place]][order[child]] + _longest(problem, order, tree, child)
            for child in tree.children.get(place, ())
        ),
        default=0,
    )
