"""How long a library's allreduce takes where hops share links: the NICs of hosts and the uplinks of near groups.

Rates were measured while every host sent to another group. In a good order few hops leave a group, and each gets more
of its uplink: what counts is the bytes of all hops that are sent at once over what their links carry.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import ceil

from treadle.planner.documents.scalars import MEBIBYTE
from treadle.planner.machine.measured_network import nics_ns, uplinks_ns
from treadle.planner.passes.ranks.patterns import Edge, HopTree, pattern_of
from treadle.planner.passes.ranks.problem import RanksProblem

Port = tuple[str, int]
"""A direction of the NIC of a host or of the uplink of a group, by number."""


class SharedLinks:
    """The links of a problem with rates and near groups."""

    def __init__(self, problem: RanksProblem) -> None:
        assert problem.ns_per_MiB is not None
        self.problem, self.pattern = problem, pattern_of(problem)
        self.nics = nics_ns(problem.ns_per_MiB)
        self.uplinks = uplinks_ns(problem.ns_per_MiB, problem.near)
        self.home = {host: number for number, group in enumerate(problem.near) for host in group}

    def time_ns(self, order: Sequence[int]) -> int:
        """The predicted time of an allreduce by rounds or trees, hosts by place in `order`.

        All hops of a ring are sent at once, 2 (N - 1) times; rounds follow each other, and run twice. Trees are
        pipelined: all their bytes in both directions, and the latencies of the longest path twice.
        """
        if self.problem.algorithm in ("ring", "nccl-ring"):
            share = self.pattern.rounds[0].share
            hops = [pair for each in self.pattern.rounds for pair in each.pairs]
            return 2 * (len(order) - 1) * self.together_ns(order, hops, share)
        if self.pattern.rounds:
            return 2 * sum(self.together_ns(order, both_ways(each.pairs), each.share) for each in self.pattern.rounds)
        edges = [edge for tree in self.pattern.trees for edge in both_ways(tree.edges)]
        return 2 * max(self._path_ns(order, tree) for tree in self.pattern.trees) + self.busy_ns(
            order, edges, self.pattern.trees[0].share
        )

    def together_ns(self, order: Sequence[int], hops: Sequence[Edge], share: Fraction) -> int:
        """Hops between places that are sent at once."""
        return max(self.hops_ns(order, hops, share))

    def hops_ns(self, order: Sequence[int], hops: Sequence[Edge], share: Fraction) -> list[int]:
        """What each of the hops takes that are sent at once: its latency, and the bytes of all of them over the
        busiest link that it passes."""
        laid = [(order[a], order[b]) for a, b in hops]
        busy = self._busy_ns(laid, share)
        return [
            self.problem.latency_ns[src][dst] + max(busy[link] for link in self._links(src, dst)) for src, dst in laid
        ]

    def busy_ns(self, order: Sequence[int], hops: Iterable[Edge], share: Fraction) -> int:
        """How long the busiest NIC or uplink needs for the bytes of hops."""
        return max(self._busy_ns([(order[a], order[b]) for a, b in hops], share).values())

    def _busy_ns(self, laid: Sequence[Edge], share: Fraction) -> dict[Port, int]:
        sent = ceil(share * self.problem.size_bytes)
        load = Counter(link for src, dst in laid for link in self._links(src, dst))
        return {link: ceil(count * sent * self._ns_per_MiB(*link) / MEBIBYTE) for link, count in load.items()}

    def _links(self, src: int, dst: int) -> list[Port]:
        """The NICs and uplinks from one host to another."""
        here, there = self.home[src], self.home[dst]
        return [("out", src), ("in", dst), *([("up", here), ("down", there)] if here != there else [])]

    def _ns_per_MiB(self, kind: str, number: int) -> Fraction:
        return self.uplinks[number] if kind in ("up", "down") else Fraction(self.nics[number])

    def _path_ns(self, order: Sequence[int], tree: HopTree) -> int:
        """Latencies of the longest path from the root of a tree."""
        reached: dict[int, int] = {}
        for parent, child in tree.edges:
            reached[child] = reached.get(parent, 0) + self.problem.latency_ns[order[parent]][order[child]]
        return max(reached.values(), default=0)


def both_ways(pairs: Iterable[Edge]) -> list[Edge]:
    """The pairs in both directions."""
    return [edge for a, b in pairs for edge in ((a, b), (b, a))]
