"""Exact searches with CP-SAT for an order that costs less than a known one, which is proved if none exists.

Rounds, trees and plans: x[h, p] says that host h is at place p, each host at one place and each place with one host.

    y[m, k]                               the hops that m prices (a round's, or one hop) cost values[k] or more
    x[i, a] and x[j, b]  =>  y[m, k]      for a hop from a to b with cost(i, j) = values[k]
    x[i, a] and not y[m, k]  =>  some x[j, b] with cost(i, j) < values[k]           (implied, but propagates)
    objective: the sum over rounds, the last finish of hops that wait for others, or the dearest hop, below the known

Rings: literals of arcs that form a circuit, without arcs that no tour below the known length can have: the least 1-tree
with such an arc is as long.

Symmetry: a ring begins at host 0. So does BCube, and halving and doubling over a power of two (places XOR any number);
where its rounds price hops alike, they are in the order of their costs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from treadle.planner.passes.ranks.bound import RINGS, ring_tree
from treadle.planner.passes.ranks.cost import OrderCosts
from treadle.planner.passes.ranks.one_tree import edges_below
from treadle.planner.solver.cp_sat import configured, search
from treadle.planner.solver.interface import Options, Reporter

Ints = NDArray[np.int64]
MOST_HOSTS = 16
"""Hosts up to which patterns other than rings are searched exactly."""
MOST_DENSE, MOST_ARCS = 64, 20_000
"""Hosts up to which rings are searched for a lower dearest hop; arcs up to which for a shorter tour."""
WORK = 30.0
"""Deterministic seconds of CP-SAT."""


class ExactLimits(NamedTuple):
    """`left_s`: a safety net in wall clock, None without a limit of the command."""

    seed: int
    left_s: float | None
    stop: threading.Event
    work: float = WORK


class ExactOrder(NamedTuple):
    """An order that costs less, if one was found. No order costs less than `bound_ns`. `cut`: wall clock ended it."""

    order: tuple[int, ...] | None
    bound_ns: int
    cut: bool


def exactly(
    costs: OrderCosts, known: Sequence[int], known_ns: int, least_ns: int, limits: ExactLimits
) -> ExactOrder | None:
    """The exact search for an order that costs less than `known`, None where it has no chance."""
    if costs.problem.algorithm not in RINGS:
        return exact_order(costs, known, known_ns, least_ns, limits) if len(known) <= MOST_HOSTS else None
    matrix = costs.matrix(0)
    if costs.problem.objective == "bottleneck":
        if len(known) > MOST_DENSE:
            return None
        return exact_ring(np.where(matrix < known_ns, 0, 1), known, 1, 0, matrix < known_ns, limits)
    allowed = edges_below(matrix, ring_tree(costs, known_ns), known_ns)
    if int(allowed.sum()) > MOST_ARCS:
        return None
    return exact_ring(matrix, known, known_ns, least_ns, allowed, limits)


def exact_order(
    costs: OrderCosts, known: Sequence[int], known_ns: int, least_ns: int, limits: ExactLimits
) -> ExactOrder:
    """Search all orders for one that costs less than `known_ns`, the cost of `known`; none costs less than
    `least_ns`."""
    model = _OrderModel(costs, known, known_ns, least_ns)
    return _solved(model.cp, known_ns, least_ns, limits, model.order)


def exact_ring(
    matrix: Ints, known: Sequence[int], known_ns: int, least_ns: int, allowed: NDArray[np.bool_], limits: ExactLimits
) -> ExactOrder:
    """Search for a tour shorter than `known_ns` that uses only `allowed` pairs of hosts [N, N], which all of those do;
    none is shorter than `least_ns`."""
    from ortools.sat.python import cp_model

    cp, count = cp_model.CpModel(), len(matrix)
    after = {host: known[(place + 1) % count] for place, host in enumerate(known)}
    arcs = [(i, j) for i in range(count) for j in range(count) if i != j and allowed[i, j]]
    literals = [cp.new_bool_var("") for _ in arcs]
    cp.add_circuit([(i, j, literal) for (i, j), literal in zip(arcs, literals, strict=True)])
    length = sum(int(matrix[arc]) * literal for arc, literal in zip(arcs, literals, strict=True))
    cp.add(length < known_ns)
    cp.add(length >= least_ns)
    cp.minimize(length)
    for (i, j), literal in zip(arcs, literals, strict=True):
        cp.add_hint(literal, after[i] == j)

    def order(values: Sequence[int]) -> tuple[int, ...]:
        following = dict(arc for arc, value in zip(arcs, values, strict=False) if value)
        found = [0]
        while len(found) < count:
            found.append(following[found[-1]])
        return tuple(found)

    return _solved(cp, known_ns, least_ns, limits, order, cuts=2)


def _solved(
    cp: Any,
    known_ns: int,
    least_ns: int,
    limits: ExactLimits,
    order: Callable[[Sequence[int]], tuple[int, ...]],
    cuts: int = 1,
) -> ExactOrder:
    """The order that `order` reads from the best values, and the bound."""
    from ortools.sat.python import cp_model

    options = Options(0.0, limits.work, None, limits.left_s, limits.seed, 1, Reporter(None, 0))
    solver = configured(options)
    solver.parameters.linearization_level = cuts
    status = search(solver, cp, options, limits.stop)
    if status == cp_model.INFEASIBLE:
        return ExactOrder(None, known_ns, False)
    found = order(list(solver.response_proto.solution)) if status in (cp_model.OPTIMAL, cp_model.FEASIBLE) else None
    bound = max(least_ns, -int(-solver.best_objective_bound // 1)) if status != cp_model.MODEL_INVALID else least_ns
    cut = status != cp_model.OPTIMAL and solver.deterministic_time < 0.99 * limits.work
    return ExactOrder(found, min(bound, known_ns), cut)


class _OrderModel:
    """The model of patterns other than rings."""

    def __init__(self, costs: OrderCosts, known: Sequence[int], known_ns: int, least_ns: int) -> None:
        from ortools.sat.python import cp_model

        self.cp, self.costs, self.count = cp_model.CpModel(), costs, len(known)
        hosts = range(self.count)
        self.at = [[self.cp.new_bool_var("") for _ in hosts] for _ in hosts]
        """By host and place."""
        for one in hosts:
            self.cp.add_exactly_one(self.at[one])
            self.cp.add_exactly_one(self.at[host][one] for host in hosts)
        hops, rounds = costs.hops, costs.hops.starts is not None
        starts = [*hops.starts.tolist(), len(hops.src)] if hops.starts is not None else list(range(len(hops.src) + 1))
        self.off_diagonal = ~np.eye(self.count, dtype=bool)
        prices: list[Any] = []
        self.levels: list[list[Any]] = []
        for first, last in pairwise(starts):
            prices.append(self._price([*range(first, last)], known_ns))
        cost = self.cp.new_int_var(least_ns, known_ns - 1, "")
        if costs.problem.objective == "bottleneck":
            for price in prices:
                self.cp.add(cost >= price)
        elif rounds:
            self.cp.add(cost >= sum(prices))
        else:
            finish: list[Any] = []
            for price, after in zip(prices, hops.after, strict=True):
                finish.append(self.cp.new_int_var(0, known_ns - 1, ""))
                for before in after:
                    self.cp.add(finish[-1] >= finish[before] + price)
                if not after:
                    self.cp.add(finish[-1] >= price)
                self.cp.add(cost >= finish[-1])
        self.cp.minimize(cost)
        self._symmetry(starts)
        for place, host in enumerate(known):
            for other in hosts:
                self.cp.add_hint(self.at[other][place], other == host)

    def _price(self, hops: list[int], known_ns: int) -> Any:
        """What the dearest of `hops`, which are alike, costs at least; below `known_ns`."""
        table, list_of = self.costs.matrix(hops[0]), self.costs.hops
        pairs = [(int(list_of.src[hop]), int(list_of.dst[hop])) for hop in hops]
        pairs = [(a, b) for a, b in pairs if a != b]
        if not pairs:
            self.levels.append([])
            return 0
        values = np.unique(table[self.off_diagonal]).tolist()
        levels = [self.cp.new_bool_var("") for _ in values[1:]]
        for lower, upper in pairwise(levels):
            self.cp.add_implication(upper, lower)
        self.levels.append(levels)
        places = [*range(self.count)]
        for a, b in {*pairs, *((b, a) for a, b in pairs)}:
            for i in places:
                for value, level in zip(values[1:], levels, strict=True):
                    nearer = [self.at[j][b] for j in places if j != i and table[i, j] < value]
                    self.cp.add_bool_or([self.at[i][a].negated(), level, *nearer])
        return values[0] + sum(
            (upper - lower) * level for lower, upper, level in zip(values, values[1:], levels, strict=False)
        )

    def _symmetry(self, starts: list[int]) -> None:
        problem, count = self.costs.problem, self.count
        whole = problem.algorithm == "halving-doubling" and not count & (count - 1)
        if whole or problem.algorithm == "bcube":
            self.cp.add(self.at[0][0] == 1)
        first = self.costs.matrix(0)
        if whole and all((self.costs.matrix(start) == first).all() for start in starts[1:-1]):
            for lower, upper in zip(self.levels, self.levels[1:], strict=False):
                for one, two in zip(lower, upper, strict=True):
                    self.cp.add_implication(one, two)

    def order(self, values: Sequence[int]) -> tuple[int, ...]:
        """The order that `values` of the variables are."""
        table = np.array(values[: self.count * self.count]).reshape(self.count, self.count)
        return tuple(table.argmax(axis=0).tolist())
