"""What orders of hosts cost, computed a second time, one order after the other and in numbers of any size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cached_property, partial
from math import ceil

from treadle.planner.documents.scalars import MEBIBYTE
from treadle.planner.passes.ranks.check_patterns import ExpectedTree, expected_rounds, expected_trees
from treadle.planner.passes.ranks.check_shared import counted_time
from treadle.planner.passes.ranks.problem import RanksProblem


class CountedCosts:
    """The costs of orders of one problem, which is sound."""

    def __init__(self, problem: RanksProblem) -> None:
        self.problem = problem
        self.rounds, self.trees = expected_rounds(problem), expected_trees(problem)

    def cost(self, order: Sequence[int]) -> int:
        """Under the objective of the problem."""
        objective = self.problem.objective
        if objective == "bottleneck":
            return self.dearest(order)
        return self.weighted(order) if objective == "bytes" else self.summed(order)

    def tie(self, order: Sequence[int]) -> int:
        """What decides between orders of equal cost."""
        if self.problem.objective != "sum":
            return self.summed(order)
        return self.weighted(order) if self.problem.ns_per_MiB is None else 0

    def time(self, order: Sequence[int]) -> int:
        """What an allreduce is predicted to take."""
        count = len(order)
        if count == 1:
            return 0
        if self.problem.near and self.problem.algorithm != "plan":
            return counted_time(self.problem, order, self.rounds, self.trees)
        if self.problem.algorithm in ("ring", "nccl-ring"):
            return 2 * (count - 1) * self.dearest(order)
        return self.summed(order) if self.problem.algorithm == "plan" else 2 * self.summed(order)

    def summed(self, order: Sequence[int]) -> int:
        """The cost model of the algorithm."""
        total = 0
        for share, pairs in self.rounds:
            size = self._bytes[share]
            total += max(self._hop(order, size, a, b) for a, b in pairs)
        for tree in self.trees:
            size = self._bytes[tree.share]
            total = max(total, _deepest(tree, partial(self._hop, order, size)))
        return total + self._critical(lambda a, b, size: self._hop(order, size, a, b))

    def weighted(self, order: Sequence[int]) -> int:
        """The cost model where a hop costs its latency times its bytes, relative to the least share of the pattern."""
        total = 0
        for share, pairs in self.rounds:
            total += -(-share // min(self._bytes)) * max(self._latency(order, a, b) for a, b in pairs)
        for tree in self.trees:
            weight = -(-tree.share // min(self._bytes))
            total = max(total, weight * _deepest(tree, partial(self._latency, order)))
        return total + self._critical(lambda a, b, size: size * self._latency(order, a, b))

    def dearest(self, order: Sequence[int]) -> int:
        """The largest hop."""
        hops = [(self._bytes[share], a, b) for share, pairs in self.rounds for a, b in pairs]
        for tree in self.trees:
            size = self._bytes[tree.share]
            hops += [(size, place, child) for place, below in tree.children.items() for child in below]
        hops += [(hop.bytes, hop.src, hop.dst) for hop in self.problem.hops]
        return max((self._hop(order, *hop) for hop in hops), default=0)

    @cached_property
    def _bytes(self) -> dict[Fraction, int]:
        """The bytes of each share, rounded up."""
        shares = [*(each.share for each in self.rounds), *(each.share for each in self.trees)]
        return {share: ceil(share * self.problem.size_bytes) for share in shares}

    def _latency(self, order: Sequence[int], a: int, b: int) -> int:
        return self.problem.latency_ns[order[a]][order[b]]

    def _hop(self, order: Sequence[int], size: int, a: int, b: int) -> int:
        """The cost of `size` bytes between two places; from a host to itself all numbers of the problem are 0."""
        src, dst = order[a], order[b]
        rates = self.problem.ns_per_MiB
        return self.problem.latency_ns[src][dst] + (0 if rates is None else -(-rates[src][dst] * size // MEBIBYTE))

    def _critical(self, cost: Callable[[int, int, int], int]) -> int:
        """When the last hop of a plan arrives."""
        costs = {kind: cost(*kind) for kind in {*self._kinds}}
        ends: list[int] = []
        for kind, after in zip(self._kinds, self._waits, strict=True):
            ends.append(costs[kind] + max([ends[before] for before in after], default=0))
        return max(ends, default=0)

    @cached_property
    def _kinds(self) -> list[tuple[int, int, int]]:
        """Places and bytes of each hop of a plan; hops are many, but few differ."""
        return [(hop.src, hop.dst, hop.bytes) for hop in self.problem.hops]

    @cached_property
    def _waits(self) -> list[tuple[int, ...]]:
        return [hop.after for hop in self.problem.hops]


def _deepest(tree: ExpectedTree, cost: Callable[[int, int], int]) -> int:
    """The dearest path from the root of a tree."""

    def below(place: int) -> int:
        return max((cost(place, child) + below(child) for child in tree.children.get(place, ())), default=0)

    return below(tree.root)
