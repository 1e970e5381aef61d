"""The best choice of tilings that fits into a memory: bytes at every node have a price (Lagrange multipliers).

With prices p[n] >= 0 no choice that fits costs less than

    least over all choices of (cost + sum of p[n] bytes[n])  -  sum of p[n] limit,

which the search without a limit bounds from below. The next prices are the best for the choices seen so far (cutting
planes: The Cutting-Plane Method for Solving Convex Programs). Choices that fit and cheaper ones that do not are
crossed: parts in which they differ and which are not neighbours add up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from treadle.planner.documents.scalars import format_bytes
from treadle.planner.errors import InfeasibleError, LimitError
from treadle.planner.passes.tiling.ascent import Ascended, Offer, ascended
from treadle.planner.passes.tiling.graph import FORBIDDEN, Costs, TilingGraph, cost_of
from treadle.planner.passes.tiling.live_memory import HeldBytes, LiveMemory
from treadle.planner.search.clock import Expired

ROUNDS = 40
"""Prices that are tried: in turn the best ones, which raise the bound, and those for a lower limit."""
MOST = 4
"""Times as high as those of the best bound prices may be in all."""
CLOSE = 200
"""A choice within a CLOSE-th part of the bound is good enough after half of the rounds."""
NEAR = 20_000
"""A search at given prices may end a NEARth part from its best choice: the next prices move further."""
NEVER = 2**58
"""What a forbidden pair costs in sums of weighed bytes."""
PARTS = 2**44
"""Sums of costs and priced bytes stay about below this."""
Choice = tuple[int, ...]


@dataclass(frozen=True)
class HeldBy:
    """A choice with its cost and the bytes at each node."""

    choice: Choice
    cost: int
    bytes: Costs

    @property
    def peak(self) -> int:
        return int(self.bytes.max(initial=0))


class Budget:
    """Choices of `graph` whose memory is at most `limit` at every node."""

    def __init__(self, graph: TilingGraph, memory: LiveMemory, limit: int, name: str) -> None:
        self.graph, self.memory, self.limit, self.name = graph, memory, limit, name
        self.hard = [np.where(edge.costs < FORBIDDEN, 0, NEVER) for edge in graph.edges]

    def held(self, choice: Choice) -> HeldBy:
        changes = np.zeros(self.memory.moments + 1, dtype=np.int64)
        for each, count in self._chosen(choice):
            changes[each.first] += count
            changes[each.last + 1] -= count
        cost = cost_of(self.graph, choice)
        return HeldBy(choice, FORBIDDEN if cost is None else cost, np.cumsum(changes[:-1]))

    def _chosen(self, choice: Choice) -> list[tuple[HeldBytes, int]]:
        groups = [(each, int(each.bytes[choice[each.at]])) for each in self.memory.groups]
        ends = ((each, self.graph.edges[each.at]) for each in self.memory.edges)
        return groups + [(each, int(each.bytes[choice[edge.one], choice[edge.other]])) for each, edge in ends]

    def solved(self, free: Ascended, fits: HeldBy, seen: list[HeldBy], expired: Expired, offer: Offer) -> Ascended:
        """The best choice that fits, from `fits`, which does; `free` is the best one without a limit, with its bound,
        `seen` are choices known so far."""
        best, bound = fits, free.bound
        seen.append(self.held(free.choice))
        prices: dict[int, float] = {}
        strongest: dict[int, float] = {}
        aim = self.limit
        tried: list[dict[int, float]] = []
        for turn in range(ROUNDS):
            found = seen[-1]
            for other in (found, *self._crossed(best, found, prices)):
                if other.peak <= self.limit and other.cost < best.cost:
                    best = other
                    offer(best.choice, best.cost, bound)
            if expired() or (best.cost - bound) * CLOSE <= (best.cost if turn >= ROUNDS // 2 else 0):
                break
            if turn % 2:
                prices = self._best_prices(seen, aim, MOST * sum(strongest.values()))
            else:
                prices = self._best_prices(seen, self.limit)
            if prices in tried[-4:-1] and tried[-1] in tried[-5:-1]:
                break
            tried.append(prices)
            found, least = self._at(prices, seen, best.cost, expired)
            if least > bound or not strongest:
                bound, strongest = max(bound, least), prices
            if turn % 2:
                aim = (aim + self.limit) // 2 if found.peak <= self.limit else aim - (found.peak - self.limit) // 2
            seen.append(found)
        return Ascended(best.choice, best.cost, min(bound, best.cost))

    def fitting(self, seen: list[HeldBy], expired: Expired) -> HeldBy:
        """A choice that fits: the least memory, weighed at the nodes where choices of `seen` need most; more are added.

        Raises InfeasibleError where none fits, LimitError where none is found.
        """
        smallest, least = min(each.peak for each in seen), 0
        weights = {int(seen[0].bytes.argmax()): 1.0}
        before: dict[int, float] = {}
        while smallest > self.limit and weights != before and len(seen) < ROUNDS:
            if expired():
                raise LimitError(f"{self.name}: found no tilings that fit into {format_bytes(self.limit)} in time")
            found, bound = self._lightest(weights, seen, expired)
            smallest, least = min(smallest, found.peak), max(least, bound)
            seen.append(found)
            if least > self.limit and smallest <= least:
                break
            before, weights = weights, self._worst_weights(seen)
        if smallest <= self.limit:
            return next(each for each in seen if each.peak <= self.limit)
        has, enough, never = (f"{format_bytes(count)} ({count} bytes)" for count in (self.limit, smallest, least))
        if least <= self.limit:
            never = f"less than {format_bytes(least)} never do"
            raise LimitError(f"{self.name}: found no tilings that fit into {has}; {enough} suffice, {never}")
        words = f"the least that suffices is {enough}"
        if smallest > least:
            words = f"{enough} suffice, less than {never} never do"
        raise InfeasibleError(f"{self.name}: no tilings fit into {has} at each worker; {words}")

    def _lightest(self, weights: dict[int, float], seen: Sequence[HeldBy], expired: Expired) -> tuple[HeldBy, int]:
        """The choice of the least weighed memory, and a bound on the peak of all choices."""
        share = 2 ** max(10, 50 - self._bits())
        whole = dict.fromkeys(range(self.memory.moments), 1)  # what has no weight would come out anyhow
        for moment, weight in weights.items():
            whole[moment] += round(weight * share)
        total = sum(whole.values())
        own = [np.where(group.own < FORBIDDEN, 0, NEVER) for group in self.graph.groups]
        tables = list(self.hard)
        self._add(own, tables, whole, 0)
        solved = self._searched(own, tables, seen, expired)
        return self.held(solved.choice), -(-solved.bound // max(1, total))

    def _at(self, prices: dict[int, float], seen: Sequence[HeldBy], cap: int, expired: Expired) -> tuple[HeldBy, int]:
        """The best choice at these prices, and a bound on the cost of all that fit."""
        unit = max(1, min(1024, PARTS // 4 // (cap + 1)))
        bits = max(0, 60 - self._bits() - (int(sum(prices.values()) * unit) + 1).bit_length())
        whole = {moment: int(price * unit * 2**bits) for moment, price in prices.items()}
        own = [np.minimum(group.own, cap + 1) * unit for group in self.graph.groups]
        tables = [np.minimum(edge.costs, cap + 1) * unit for edge in self.graph.edges]
        self._add(own, tables, whole, bits)
        solved = self._searched(own, tables, seen, expired)
        paid = -(-sum(whole.values()) * self.limit // 2**bits)
        return self.held(solved.choice), -(-(solved.bound - paid) // unit)

    def _bits(self) -> int:
        """Binary places of the most bytes in one table."""
        held = (*self.memory.groups, *self.memory.edges)
        return max((int(each.bytes.max(initial=0)).bit_length() for each in held), default=0)

    def _add(self, own: list[Costs], tables: list[Costs], prices: dict[int, int], bits: int) -> None:
        """Add priced bytes, rounded down after `bits` binary places."""
        sums = np.zeros(self.memory.moments + 1, dtype=np.int64)
        for moment, price in prices.items():
            sums[moment + 1] += price
        sums = np.cumsum(sums)
        for held, costs in ((self.memory.groups, own), (self.memory.edges, tables)):
            for each in held:
                if price := sums[each.last + 1] - sums[each.first]:
                    costs[each.at] = costs[each.at] + ((each.bytes * price) >> bits)

    def _searched(self, own: list[Costs], tables: list[Costs], seen: Sequence[HeldBy], expired: Expired) -> Ascended:
        def cost(choice: Choice) -> int:
            total = sum(int(costs[label]) for costs, label in zip(own, choice, strict=True))
            ends = zip(self.graph.edges, tables, strict=True)
            return total + sum(int(table[choice[edge.one], choice[edge.other]]) for edge, table in ends)

        costs = [cost(each.choice) for each in seen]
        least = int(np.argmin(costs))
        edges = [(edge.one, edge.other, table) for edge, table in zip(self.graph.edges, tables, strict=True)]
        return ascended(own, edges, 1, Ascended(seen[least].choice, costs[least], 0), expired, near=NEAR)

    def _moments(self, seen: Sequence[HeldBy]) -> list[int]:
        """Nodes at which one of the choices needs most."""
        return sorted({int(each.bytes.argmax()) for each in seen})

    def _worst_weights(self, seen: Sequence[HeldBy]) -> dict[int, float]:
        """Weights of nodes, in all 1, under which the least weighed memory of `seen` is greatest."""
        moments = self._moments(seen)
        scale = max(each.peak for each in seen)
        rows = [[*(-each.bytes[moment] / scale for moment in moments), 1.0] for each in seen]
        found = _linear([0.0] * len(moments) + [-1.0], rows, [0.0] * len(seen), [1.0] * len(moments) + [0.0])
        return {moment: value for moment, value in zip(moments, found, strict=False) if value > 0}

    def _best_prices(self, seen: Sequence[HeldBy], limit: int, most: float | None = None) -> dict[int, float]:
        """Prices, in all up to `most`, best for `limit`: the least of cost and overdraft in `seen` is greatest."""
        moments = self._moments(seen)
        known = [each for each in seen if each.cost < FORBIDDEN]
        scale = max(1, *(each.cost for each in known))
        rows = [[*((limit - each.bytes[moment]) / self.limit for moment in moments), 1.0] for each in known]
        ends = [each.cost / scale for each in known]
        if most is not None:
            rows.append([1.0] * len(moments) + [0.0])
            ends.append(most * self.limit / scale)
        found = _linear([0.0] * len(moments) + [-1.0], rows, ends, None)
        return {
            moment: value * scale / self.limit for moment, value in zip(moments, found, strict=False) if value > 1e-12
        }

    def _crossed(self, fits: HeldBy, cheap: HeldBy, prices: dict[int, float]) -> list[HeldBy]:
        """`fits` with parts of `cheap`, as many as fit: those that save most, and those that save most per byte."""
        part_of = self._parts(fits.choice, cheap.choice)
        count = max(part_of.values(), default=-1) + 1
        saved, more = self._differences(fits.choice, cheap.choice, part_of, count)
        paid = [max(1e-9, sum(price * max(0, more[part, at]) for at, price in prices.items())) for part in range(count)]
        keys: tuple[Callable[[int], float], ...] = (lambda part: -saved[part], lambda part: -saved[part] / paid[part])
        found = []
        for key in keys:
            taken, total = set[int](), fits.bytes
            for part in sorted(range(count), key=key):
                if saved[part] > 0 and int((total + more[part]).max()) <= self.limit:
                    taken.add(part)
                    total = total + more[part]
            ends = enumerate(zip(fits.choice, cheap.choice, strict=True))
            found.append(self.held(tuple(other if part_of.get(at) in taken else one for at, (one, other) in ends)))
        return found

    def _parts(self, one: Choice, other: Choice) -> dict[int, int]:
        """The number of its part for each group in which the choices differ; groups that an edge joins are of one."""
        root = {at: at for at, (left, right) in enumerate(zip(one, other, strict=True)) if left != right}

        def top(at: int) -> int:
            while root[at] != at:
                root[at] = at = root[root[at]]
            return at

        for edge in self.graph.edges:
            if edge.one in root and edge.other in root:
                low, high = sorted((top(edge.one), top(edge.other)))
                root[high] = low
        numbers = {at: number for number, at in enumerate(at for at in root if top(at) == at)}
        return {at: numbers[top(at)] for at in root}

    def _differences(self, one: Choice, other: Choice, part_of: dict[int, int], count: int) -> tuple[list[int], Costs]:
        """What each part costs less in `other`, and how many bytes it takes more at each node."""
        saved = [0] * count
        more = np.zeros((count, self.memory.moments + 1), dtype=np.int64)
        edge_part = [part_of.get(edge.one, part_of.get(edge.other)) for edge in self.graph.edges]
        for at, part in part_of.items():
            own = self.graph.groups[at].own
            saved[part] += int(own[one[at]] - own[other[at]])
        for edge, part_at in zip(self.graph.edges, edge_part, strict=True):
            if part_at is not None:
                before, after = (edge.costs[choice[edge.one], choice[edge.other]] for choice in (one, other))
                saved[part_at] += int(before - after)
        held = ((each, part_of.get(each.at)) for each in self.memory.groups)
        for each, part_at in held:
            if part_at is not None:
                add = each.bytes[other[each.at]] - each.bytes[one[each.at]]
                more[part_at, each.first] += add
                more[part_at, each.last + 1] -= add
        for each in self.memory.edges:
            if (part_at := edge_part[each.at]) is not None:
                edge = self.graph.edges[each.at]
                before, after = (each.bytes[choice[edge.one], choice[edge.other]] for choice in (one, other))
                more[part_at, each.first] += after - before
                more[part_at, each.last + 1] -= after - before
        return saved, np.cumsum(more, axis=1)[:, :-1]


def _linear(
    costs: Sequence[float], rows: Sequence[Sequence[float]], most: Sequence[float], simplex: Sequence[float] | None
) -> list[float]:
    """The least of a linear program: rows at most `most`, the row `simplex` 1; all but the last variable from 0."""
    from scipy.optimize import linprog

    bounds: list[tuple[float | None, float | None]] = [(0, None)] * (len(costs) - 1) + [(None, None)]
    solved = linprog(
        np.array(costs),
        A_ub=np.array(rows),
        b_ub=np.array(most),
        A_eq=None if simplex is None else np.array([simplex]),
        b_eq=None if simplex is None else np.ones(1),
        bounds=bounds,
    )
    return [0.0] * len(costs) if solved.x is None else [float(value) for value in solved.x]
