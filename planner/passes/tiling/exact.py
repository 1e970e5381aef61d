"""The least cost of any tiling graph, by CP-SAT or HiGHS, with a proven bound.

    x[g, t] = 1              group g takes label t              sum over t of x[g, t] = 1
    y[e, t, u] = 1           edge e has that pair of labels     sum over u of y[e, t, u] = x[one, t]
                                                                sum over t of y[e, t, u] = x[other, u]
    sum of weights of x <= limit                                for each capacity
    minimise                 sum of own[g, t] x[g, t] + sum of costs[e, t, u] y[e, t, u]

The graph is contracted first, and groups that at most two others see are replaced by what their best labels cost those.
Costs are divided by their common divisor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import gcd, isinf
from typing import Literal

import numpy as np

from treadle.planner.errors import LimitError
from treadle.planner.passes.tiling.capacity import Capacity, fits
from treadle.planner.passes.tiling.contract import SmallGraph, contract
from treadle.planner.passes.tiling.graph import FORBIDDEN, Costs, TileEdge, TilingGraph, cost_of
from treadle.planner.passes.tiling.reduced import Core, reduced
from treadle.planner.search.clock import Clock
from treadle.planner.solver import Model, Progress, Solution, Status, Var, solve

WORK = 30.0
"""Deterministic seconds of CP-SAT."""


@dataclass(frozen=True)
class TilingLimits:
    """`work`: deterministic seconds; `clock` is a safety net."""

    seed: int = 0
    clock: Clock = field(default_factory=Clock)
    work: float = WORK
    backend: Literal["cp_sat", "highs"] = "cp_sat"


@dataclass(frozen=True)
class ExactTiling:
    """The best choice found, None if none was. No choice costs less than `bound`. `infeasible`: proved that none fits
    into the capacities. `late`: wall clock ended the search."""

    choice: tuple[int, ...] | None
    bound: int
    infeasible: bool = False
    late: bool = False
    searched: bool = False
    """Whether the solver ran, after groups were taken out."""


def exactly(
    graph: TilingGraph,
    capacities: Sequence[Capacity] = (),
    *,
    known: Sequence[int] | None = None,
    limits: TilingLimits = TilingLimits(),
    on_progress: Callable[[Progress], None] | None = None,
) -> ExactTiling:
    """Search all choices. `known`: a choice to begin with, which may exceed capacities. Raises InfeasibleError where
    fixed tilings contradict each other, MissingBackendError without the solver."""
    small = contract(graph, capacities)
    if small.constant >= FORBIDDEN or any(capacity.limit < 0 for capacity in small.capacities):
        return ExactTiling(None, 0, infeasible=True)
    least = 0
    if small.capacities:  # what is best without limits often stays within them, and is found sooner
        free = exactly(graph, known=known, limits=limits)
        if free.choice is not None and cost_of(graph, free.choice) == free.bound and fits(capacities, free.choice):
            return free
        least = free.bound
    core = _core(small)
    if not core.edges and not small.capacities:  # the usual case of small programs, which needs no solver
        best = small.expanded(core.whole([int(own.argmin()) for own in core.own]))
        cost = cost_of(graph, best)
        return ExactTiling(None, 0, infeasible=True) if cost is None else ExactTiling(best, cost)
    made = _GraphModel(_graph_of(core, small.graph), _capacities_of(core, small))
    if known is not None:
        first = small.contracted(known)
        made.hint([first[group] for group in core.groups])
    solution = _solved(made.model, limits, _scaled(on_progress, made.unit, small.constant))
    if solution is None:
        return ExactTiling(None, least)
    choice = small.expanded(core.whole(made.choice(solution))) if solution.found else None
    bound = max(least, small.constant + made.unit * int(solution.bound or 0))
    if choice is not None and solution.status is Status.OPTIMAL:
        bound = cost_of(graph, choice) or 0
    late = solution.limit_fired == "time"
    return ExactTiling(choice, bound, infeasible=solution.status is Status.INFEASIBLE, late=late, searched=True)


def least_capacity(
    graph: TilingGraph, wanted: Sequence[Capacity], others: Sequence[Capacity], limits: TilingLimits
) -> int | None:
    """The least common limit of `wanted` that a choice within `others` fits into; None where the search does not end,
    or nothing fits into `others`."""
    small = contract(graph, (*wanted, *others))
    if small.constant >= FORBIDDEN:
        return None
    made = _GraphModel(small.graph, small.capacities[len(wanted) :], priced=False)
    most = [sum(int(weights.max()) for _, weights in capacity.weights) for capacity in wanted]
    limit = made.model.int_var(0, max(most, default=0), "limit")
    for before, capacity in zip(wanted, small.capacities, strict=False):
        made.model.add_linear((*made.terms(capacity), (limit, -1)), ub=capacity.limit - before.limit)
    made.model.minimize([(limit, 1)])
    solution = _solved(made.model, limits, None)
    if solution is None or solution.status is not Status.OPTIMAL or solution.objective is None:
        return None
    return int(solution.objective)


def dearest(graph: TilingGraph) -> TilingGraph:
    """The graph whose least cost is the greatest of `graph`, for comparison."""

    def turned(costs: Costs) -> Costs:
        allowed = costs < FORBIDDEN
        return np.where(allowed, costs[allowed].max(initial=0) - costs, FORBIDDEN)

    groups = tuple(replace(group, own=turned(group.own)) for group in graph.groups)
    edges: list[TileEdge] = [edge if edge.hard else replace(edge, costs=turned(edge.costs)) for edge in graph.edges]
    return TilingGraph(groups, tuple(edges))


def _core(small: SmallGraph) -> Core:
    """Without the groups that at most two others see, those aside that a capacity weighs."""
    graph = small.graph
    weighed = {group for capacity in small.capacities for group, _ in capacity.weights}
    edges = [(edge.one, edge.other, edge.costs) for edge in graph.edges]
    return reduced([group.own for group in graph.groups], edges, FORBIDDEN, weighed)


def _graph_of(core: Core, graph: TilingGraph) -> TilingGraph:
    groups = (replace(graph.groups[place], own=own) for place, own in zip(core.groups, core.own, strict=True))
    return TilingGraph(tuple(groups), tuple(TileEdge(*edge) for edge in core.edges))


def _capacities_of(core: Core, small: SmallGraph) -> tuple[Capacity, ...]:
    place = {group: at for at, group in enumerate(core.groups)}
    return tuple(
        Capacity(tuple((place[group], weights) for group, weights in capacity.weights), capacity.limit)
        for capacity in small.capacities
    )


def _solved(model: Model, limits: TilingLimits, on_progress: Callable[[Progress], None] | None) -> Solution | None:
    """The end of the search, None if it was interrupted before it found anything."""
    try:
        return solve(
            model,
            backend=limits.backend,
            deterministic_limit=limits.work,
            time_limit_s=None if isinf(limits.clock.ends) else max(0.01, limits.clock.left_s),
            seed=limits.seed,
            on_progress=on_progress,
            stop=limits.clock.stop,
        )
    except LimitError:
        return None


def _scaled(
    on_progress: Callable[[Progress], None] | None, unit: int, constant: int
) -> Callable[[Progress], None] | None:
    if on_progress is None:
        return None

    def scaled(progress: Progress) -> None:
        costs = (None if cost is None else cost * unit + constant for cost in (progress.incumbent, progress.bound))
        incumbent, bound = costs
        on_progress(replace(progress, incumbent=incumbent, bound=bound))

    return scaled


class _GraphModel:
    """The model of a graph; its costs are in `unit`."""

    def __init__(self, graph: TilingGraph, capacities: Sequence[Capacity], *, priced: bool = True) -> None:
        self.graph, self.model = graph, Model("tilings")
        self.labels: list[list[Var]] = [self._variables(group.own) for group in graph.groups]
        for labels in self.labels:
            self.model.add_linear(((label, 1) for label in labels), 1, 1)
        for capacity in capacities:
            self.model.add_linear(self.terms(capacity), ub=capacity.limit)
        self.pairs: list[tuple[TileEdge, list[list[Var]]]] = []
        self.unit = 1
        if priced:
            self._price()
        else:
            self._forbid()

    def _price(self) -> None:
        graph = self.graph
        tables = [*(group.own for group in graph.groups), *(edge.costs for edge in graph.edges)]
        self.unit = max(1, gcd(*(int(np.gcd.reduce(costs[costs < FORBIDDEN], axis=None)) for costs in tables)))
        terms = [
            (label, cost // self.unit)
            for group, labels in zip(graph.groups, self.labels, strict=True)
            for label, cost in zip(labels, group.own.tolist(), strict=True)
            if 0 < cost < FORBIDDEN
        ]
        for edge in graph.edges:
            pairs = [self._variables(row) for row in edge.costs]
            self.pairs.append((edge, pairs))
            for label, row in zip(self.labels[edge.one], pairs, strict=True):
                self.model.add_linear([(label, -1), *((pair, 1) for pair in row)], 0, 0)
            for label, column in zip(self.labels[edge.other], zip(*pairs, strict=True), strict=True):
                self.model.add_linear([(label, -1), *((pair, 1) for pair in column)], 0, 0)
            for costs, row in zip(edge.costs.tolist(), pairs, strict=True):
                priced = (each for each in zip(row, costs, strict=True) if 0 < each[1] < FORBIDDEN)
                terms += [(pair, cost // self.unit) for pair, cost in priced]
        self.model.minimize(terms)

    def _forbid(self) -> None:
        for edge in self.graph.edges:
            for one, other in np.argwhere(edge.costs >= FORBIDDEN).tolist():
                self.model.add_linear([(self.labels[edge.one][one], 1), (self.labels[edge.other][other], 1)], ub=1)

    def _variables(self, costs: Costs) -> list[Var]:
        """A 0-1 variable for each cost; it is 0 for what is forbidden."""
        return [self.model.int_var(0, int(cost < FORBIDDEN)) for cost in costs.tolist()]

    def terms(self, capacity: Capacity) -> tuple[tuple[Var, int], ...]:
        return tuple(
            (label, int(weight))
            for group, weights in capacity.weights
            for label, weight in zip(self.labels[group], weights, strict=True)
            if weight
        )

    def hint(self, choice: Sequence[int]) -> None:
        for labels, chosen in zip(self.labels, choice, strict=True):
            for number, label in enumerate(labels):
                self.model.hint(label, number == chosen)
        for edge, pairs in self.pairs:
            for one, row in enumerate(pairs):
                for other, pair in enumerate(row):
                    self.model.hint(pair, one == choice[edge.one] and other == choice[edge.other])

    def choice(self, solution: Solution) -> tuple[int, ...]:
        return tuple(
            max(range(len(labels)), key=lambda number, labels=labels: solution.values[labels[number]])  # type: ignore[misc]
            for labels in self.labels
        )
