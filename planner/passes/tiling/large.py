"""The plan of a ruled problem of any size: the graph of rules, its best choice, and a bound on all choices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import monotonic

import numpy as np

from treadle.planner.errors import InfeasibleError, LimitError
from treadle.planner.passes.tiling.ascent import Ascended, Tables, ascended, first_choice
from treadle.planner.passes.tiling.budget import Budget, Choice
from treadle.planner.passes.tiling.contract import contract
from treadle.planner.passes.tiling.decisions import TilingMethod
from treadle.planner.passes.tiling.graph import FORBIDDEN, Costs, TilingGraph, cost_of
from treadle.planner.passes.tiling.greedy import greedy
from treadle.planner.passes.tiling.live_memory import live_memory
from treadle.planner.passes.tiling.planning import TilingOptions
from treadle.planner.passes.tiling.problem import ArrayTiling, TilingProblem
from treadle.planner.passes.tiling.ruled import RuledGraph, ruled_graph
from treadle.planner.passes.tiling.sweeps import swept
from treadle.planner.search.clock import Expired
from treadle.planner.solver import Progress, relative_gap

FINE = 1024
"""Parts of a unit of cost in which messages count, where numbers stay below LARGEST."""
LARGEST = 2**42
Tilings = tuple[ArrayTiling, ...]
Placed = tuple[Tilings, tuple[Tilings, ...], tuple[Tilings, ...]]
"""Tilings of arrays, and what each node reads and makes."""
Solved = tuple[Tilings, tuple[Tilings, ...], tuple[Tilings, ...], TilingMethod, int]
"""The same, how they were found, and a bound: on the cost, or on moved bytes for the model exact."""


def solved_ruled(
    problem: TilingProblem,
    options: TilingOptions,
    expired: Expired,
    on_progress: Callable[[Progress], None] | None = None,
    on_choice: Callable[[Tilings, tuple[Tilings, ...], tuple[Tilings, ...]], None] | None = None,
) -> Solved:
    """The best tilings found until `expired`, or those of the method of `options`; proved best if the bound equals
    their cost. With the model exact, best are those that move the fewest bytes, for these are their time.

    on_choice: called with the tilings, reads and makes of each better plan. Raises InfeasibleError where no tilings are
    possible, LimitError where none was found that fits into the memory.
    """
    began = monotonic()
    ruled = in_bytes(problem, ruled_graph(problem)) if problem.model == "exact" else ruled_graph(problem)

    def offer(choice: Choice, cost: int, bound: int) -> None:
        if on_progress is not None:
            on_progress(Progress(cost, bound, relative_gap(cost, bound), monotonic() - began, "messages"))
        if on_choice is not None:
            on_choice(*_placed(ruled, choice))

    search = _Search(problem, ruled, expired, offer)
    best = search.swept() if options.method == "sweep" else search.best()
    cost = cost_of(ruled.graph, best.choice)
    if cost is None:
        raise InfeasibleError(f"{problem.name}: no tilings satisfy all rules and fixed tilings")
    method: TilingMethod = "exact" if best.bound == cost else "blocks"
    return (*_placed(ruled, best.choice), best.method or method, best.bound)


def in_bytes(problem: TilingProblem, ruled: RuledGraph) -> RuledGraph:
    """The graph of elements with moved bytes as its costs; tables that were the same stay the same."""
    sizes = {group: array.item_bytes for group, array in zip(ruled.array_groups, problem.arrays, strict=True)}
    known: dict[tuple[int, int], Costs] = {}
    edges = []
    for edge in ruled.graph.edges:
        key = (id(edge.costs), sizes.get(edge.one) or sizes[edge.other])
        if key not in known:
            known[key] = np.where(edge.costs < FORBIDDEN, edge.costs * key[1], FORBIDDEN)
        edges.append(replace(edge, costs=known[key]))
    return replace(ruled, graph=TilingGraph(ruled.graph.groups, tuple(edges)))


def _placed(ruled: RuledGraph, choice: Sequence[int]) -> Placed:
    labels = ruled.node_labels(choice)
    return ruled.tilings(choice), tuple(label.reads for label in labels), tuple(label.makes for label in labels)


@dataclass(frozen=True)
class _Found:
    choice: Choice
    bound: int
    method: TilingMethod | None = None


class _Search:
    def __init__(
        self,
        problem: TilingProblem,
        ruled: RuledGraph,
        expired: Expired,
        offer: Callable[[Choice, int, int], None],
    ) -> None:
        self.problem, self.ruled, self.expired, self.offer = problem, ruled, expired, offer
        self.budget: Budget | None = None
        if problem.memory_bytes is not None:
            memory = live_memory(problem, ruled)
            self.budget = Budget(ruled.graph, memory, problem.memory_bytes, problem.name)

    def best(self) -> _Found:
        first, _ = first_choice(*tables(self.ruled.graph))
        if self.budget is None:
            free = free_best(self.ruled.graph, first, self.expired, self.offer)
            return _Found(free.choice, free.bound)
        seen = [self.budget.held(first)]
        fits = self.budget.fitting(seen, self.expired)
        self.offer(fits.choice, fits.cost, 0)
        free = free_best(self.ruled.graph, first, self.expired)
        best = self.budget.solved(free, fits, seen, self.expired, self.offer)
        return _Found(best.choice, best.bound)

    def swept(self) -> _Found:
        """What the greedy search and changes of single groups find, with the bound of the best."""
        bound = self.best().bound
        small = contract(self.ruled.graph)
        choice = small.expanded(swept(small.graph, small.contracted(greedy(self.ruled.graph).choice)))
        if self.budget is not None and self.budget.held(choice).peak > self.budget.limit:
            raise LimitError(f"{self.problem.name}: sweep finds no tilings that fit; the method exact may")
        return _Found(choice, bound, "sweep")


def free_best(
    graph: TilingGraph, first: Choice, expired: Expired, offer: Callable[[Choice, int, int], None] | None = None
) -> Ascended:
    """The best choice without a limit of memory, from a first one."""
    known = cost_of(graph, first)
    cost = FORBIDDEN if known is None else known
    unit = max(1, min(FINE, LARGEST // (cost + 1)))

    def found(choice: Choice, cost: int, bound: int) -> None:
        if offer is not None and cost < FORBIDDEN * unit:
            offer(choice, cost // unit, -(-bound // unit))

    found(first, cost * unit, 0)
    best = ascended(*_scaled(graph, unit, cost), unit, Ascended(first, cost * unit, 0), expired, found)
    return Ascended(best.choice, best.cost // unit, -(-best.bound // unit))


def tables(graph: TilingGraph) -> tuple[tuple[Costs, ...], Tables]:
    """The costs of groups, and the edges with theirs."""
    return tuple(group.own for group in graph.groups), [(edge.one, edge.other, edge.costs) for edge in graph.edges]


def _scaled(graph: TilingGraph, unit: int, cap: int) -> tuple[tuple[Costs, ...], Tables]:
    """Costs in parts of a unit, those above `cap` as `cap` + 1; tables that were the same stay the same."""
    own, edges = tables(graph)
    known: dict[int, Costs] = {}
    for costs in (*own, *(table for _, _, table in edges)):
        if id(costs) not in known:
            known[id(costs)] = np.minimum(costs, cap + 1) * unit
    return tuple(known[id(each)] for each in own), [(one, other, known[id(table)]) for one, other, table in edges]
