"""What orders of hosts cost under the model of an algorithm, many orders at once ("PLink Collectives").

Every pattern is a list of hops. Rounds cost the sum of their dearest hops; trees and plans are hops that wait for
others, and cost their critical path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from treadle.planner.errors import InputError
from treadle.planner.passes.ranks.patterns import HopPattern, pattern_of
from treadle.planner.passes.ranks.problem import Objective, RanksProblem
from treadle.planner.passes.ranks.shared_links import SharedLinks

Ints = NDArray[np.int64]
MIB = 1 << 20
MOST_TIME_NS = 1 << 62
MOST_VALUES = 1 << 21
"""PlanHop costs that are in memory at a time."""


class Cost(NamedTuple):
    """Orders compare by `cost_ns`, that of the objective, then by `tie_ns`."""

    cost_ns: int
    tie_ns: int


class HopList(NamedTuple):
    """The hops of a pattern, by hop: places [H], bytes [H], and bytes over the least share, at least 1 [H]. Rounds
    begin at the hops `starts` [R]; else hops wait for those of `after`, earlier ones."""

    src: Ints
    dst: Ints
    bytes: Ints
    weights: Ints
    starts: Ints | None = None
    after: tuple[tuple[int, ...], ...] = ()


class _Level(NamedTuple):
    """Hops [L] that wait only for hops of levels before: `waited` [W], those of hop i from `starts[i]` on."""

    hops: Ints
    waited: Ints
    starts: Ints


def cost_of(problem: RanksProblem, order: Sequence[int]) -> Cost:
    """The cost of `order`, hosts by place, under the problem's objective."""
    return OrderCosts(problem).of(order)


def time_of(problem: RanksProblem, order: Sequence[int]) -> int:
    """The predicted time of an allreduce in `order`, ns."""
    return OrderCosts(problem).time_ns(order)


class OrderCosts:
    """Costs of orders of one problem. Raises InputError where they would not fit into 62 bits."""

    def __init__(self, problem: RanksProblem) -> None:
        self.problem = problem
        self.latency: Ints = np.array(problem.latency_ns, dtype=np.int64)
        self.rate: Ints | None = None if problem.ns_per_MiB is None else np.array(problem.ns_per_MiB, dtype=np.int64)
        self.hops = hop_list(problem)
        hops = self.hops
        longest = int(self.latency.max()) * max([1, *hops.weights.tolist()])
        if self.rate is not None:
            longest = max(longest, int(self.rate.max()) * max([0, *hops.bytes.tolist()]))
        if longest * max(1, len(hops.src)) >= MOST_TIME_NS:
            raise InputError(
                f"hops of {max(hops.bytes.tolist())} bytes at these costs take longer than can be counted in ns",
                where="problem of ranks",
            )

    def of(self, order: Sequence[int]) -> Cost:
        """The cost of one order."""
        costs, ties = self.many(np.array([order], dtype=np.int64))
        return Cost(int(costs[0]), int(ties[0]))

    def many(self, orders: Ints) -> tuple[Ints, Ints]:
        """Costs [B] and ties [B] of orders [B, N]."""
        step = max(1, MOST_VALUES // max(1, len(self.hops.src)))
        parts = [self._part(orders[first : first + step]) for first in range(0, len(orders), step)]
        return np.concatenate([cost for cost, _ in parts]), np.concatenate([tie for _, tie in parts])

    def time_ns(self, order: Sequence[int]) -> int:
        """The predicted time of an allreduce: a reduce-scatter and its mirror image, or the plan."""
        count = len(self.problem.hosts)
        if count == 1:
            return 0
        if self.problem.near and self.problem.algorithm != "plan":
            return SharedLinks(self.problem).time_ns(order)
        hops = self.hop_costs(np.array([order], dtype=np.int64), "sum")
        if self.problem.algorithm in ("ring", "nccl-ring"):
            return 2 * (count - 1) * int(hops.max())
        halves = 1 if self.problem.algorithm == "plan" else 2
        return halves * int(self._summed(hops)[0])

    def _part(self, orders: Ints) -> tuple[Ints, Ints]:
        objective, hops = self.problem.objective, self.hop_costs(orders, self.problem.objective)
        costs = self.combined(hops)
        if objective == "bottleneck":
            return costs, self._summed(hops)
        if objective == "bytes":
            return costs, self._summed(self.hop_costs(orders, "sum"))
        if self.rate is not None:
            return costs, np.zeros_like(costs)
        return costs, self._summed(self.hop_costs(orders, "bytes"))

    def hop_costs(self, orders: Ints, objective: Objective) -> Ints:
        """The cost of every hop [B, H] in orders [B, N]."""
        hops = self.hops
        pairs = orders[:, hops.src] * len(self.latency) + orders[:, hops.dst]
        found: Ints = self.latency.ravel()[pairs]
        if objective == "bytes":
            found = found * hops.weights
        elif self.rate is not None:
            found = found + -(-self.rate.ravel()[pairs] * hops.bytes // MIB)
        return found

    def matrix(self, hop: int, objective: Objective | None = None) -> Ints:
        """What a hop of the pattern costs between any two hosts [N, N], under the problem's objective or another."""
        if (objective or self.problem.objective) == "bytes":
            found: Ints = self.latency * self.hops.weights[hop]
            return found
        return self.latency if self.rate is None else np.add(self.latency, -(-self.rate * self.hops.bytes[hop] // MIB))

    @cached_property
    def kinds(self) -> dict[int, Ints]:
        """The hops [K] that cost the same as a hop, by the first of them."""
        _, first, kind = np.unique(
            np.stack((self.hops.bytes, self.hops.weights)), axis=1, return_index=True, return_inverse=True
        )
        return {int(hop): np.flatnonzero(kind.ravel() == number) for number, hop in enumerate(first)}

    def by_hop(self, price: Callable[[Ints], int]) -> Ints:
        """What `price` says of the matrix of each hop [H]; 0 for hops within a host."""
        found = np.zeros(len(self.hops.src), dtype=np.int64)
        for hop, alike in self.kinds.items():
            found[alike] = price(self.matrix(hop))
        found[self.hops.src == self.hops.dst] = 0
        return found

    def around(self, costs: Ints) -> tuple[Ints, Ints]:
        """The longest paths of hops that cost `costs` [H] before each hop, and after it [H]."""
        before = self._finished(costs[None])[0] - costs
        after = np.zeros_like(costs)
        for hop in range(len(costs) - 1, -1, -1):
            for other in self.hops.after[hop]:
                after[other] = max(after[other], after[hop] + costs[hop])
        return before, after

    def combined(self, costs: Ints) -> Ints:
        """What hops that cost `costs` [B, H] come to under the problem's objective [B]."""
        largest: Ints = costs.max(axis=1, initial=0)
        return largest if self.problem.objective == "bottleneck" else self._summed(costs)

    def _summed(self, costs: Ints) -> Ints:
        """What hops that cost `costs` [B, H] come to under the model of the algorithm [B]."""
        if not costs.shape[1]:
            return np.zeros(len(costs), dtype=np.int64)
        if self.hops.starts is not None:
            rounds: Ints = np.maximum.reduceat(costs, self.hops.starts, axis=1)
            summed: Ints = rounds.sum(axis=1)
            return summed
        latest: Ints = self._finished(costs).max(axis=1)
        return latest

    def combined_and_mean(self, costs: Ints) -> tuple[Ints, NDArray[np.float64]]:
        """As `combined` [B], and the mean of rounds or of when hops finish [B], which every hop counts in."""
        if self.hops.starts is not None:
            return self.combined(costs), costs.mean(axis=1) * len(self.hops.starts)
        finish = self._finished(costs)
        largest: Ints = (costs if self.problem.objective == "bottleneck" else finish).max(axis=1)
        return largest, finish.mean(axis=1)

    def _finished(self, costs: Ints) -> Ints:
        """When hops that cost `costs` [B, H] finish [B, H]."""
        finish = costs.copy()
        for level in self._levels:
            finish[:, level.hops] += np.maximum.reduceat(finish[:, level.waited], level.starts, axis=1)
        return finish

    @cached_property
    def _levels(self) -> list[_Level]:
        depths: list[int] = []
        for after in self.hops.after:
            depths.append(1 + max((depths[hop] for hop in after), default=-1))
        members: list[list[int]] = [[] for _ in range(max(depths, default=0) + 1)]
        for hop, depth in enumerate(depths):
            members[depth].append(hop)
        levels = []
        for hops in members[1:]:
            sizes = [len(self.hops.after[hop]) for hop in hops]
            waited = [other for hop in hops for other in self.hops.after[hop]]
            levels.append(_Level(_ints(hops), _ints(waited), _ints([0, *np.cumsum(sizes)[:-1].tolist()])))
        return levels


def hop_list(problem: RanksProblem) -> HopList:
    """The hops of the problem's pattern."""
    pattern = pattern_of(problem)
    if pattern.hops:
        src, dst, size = (_ints(getattr(hop, name) for hop in pattern.hops) for name in ("src", "dst", "bytes"))
        return HopList(src, dst, size, size, after=tuple(hop.after for hop in pattern.hops))
    parts = [(share, pairs) for share, pairs in (*pattern.rounds, *pattern.trees) if pairs]
    edges = [edge for _, pairs in parts for edge in pairs]
    least = min((share for share, _ in parts), default=1)
    return HopList(
        src=_ints(edge[0] for edge in edges),
        dst=_ints(edge[1] for edge in edges),
        bytes=_ints(-(-share * problem.size_bytes // 1) for share, pairs in parts for _ in pairs),
        weights=_ints(-(-share // least) for share, pairs in parts for _ in pairs),
        starts=None if pattern.trees else _ints([0, *np.cumsum([len(pairs) for _, pairs in parts]).tolist()][:-1]),
        after=_waits(pattern),
    )


def _waits(pattern: HopPattern) -> tuple[tuple[int, ...], ...]:
    """For each edge of the trees the one that leads to its parent, if any."""
    waits: list[tuple[int, ...]] = []
    for tree in pattern.trees:
        into: dict[int, int] = {}
        for parent, child in tree.edges:
            waits.append((into[parent],) if parent in into else ())
            into[child] = len(waits) - 1
    return tuple(waits)


def _ints(values: Iterable[Any]) -> Ints:
    return np.array([int(value) for value in values], dtype=np.int64)
