"""The methods on the published graph: greedy, sweeps, exact, and tilings for comparison."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from treadle.planner.documents.scalars import format_bytes
from treadle.planner.errors import InfeasibleError, LimitError
from treadle.planner.passes.tiling.capacity import fits
from treadle.planner.passes.tiling.contract import SmallGraph, contract
from treadle.planner.passes.tiling.decisions import GreedyStep, TilingMethod
from treadle.planner.passes.tiling.exact import TilingLimits, dearest, exactly, least_capacity
from treadle.planner.passes.tiling.graph import FORBIDDEN, TilingGraph, cost_of
from treadle.planner.passes.tiling.greedy import greedy
from treadle.planner.passes.tiling.problem import ArrayTiling, TilingProblem
from treadle.planner.passes.tiling.published import PublishedGraph, published_graph
from treadle.planner.passes.tiling.sweeps import swept
from treadle.planner.solver import Progress

Choice = tuple[int, ...]
BOUND_WORK = 1.0
"""Deterministic seconds of the exact search where only its bound is wanted."""


@dataclass(frozen=True)
class SolvedTiling:
    """Tilings of all arrays and how they were found. No tilings cost less than `bound`."""

    tilings: tuple[ArrayTiling, ...]
    method: TilingMethod
    bound: int
    steps: tuple[GreedyStep, ...] = ()
    late: bool = False
    searched: bool = False
    """Whether a solver ran for the bound."""


def solved_published(
    problem: TilingProblem, method: str, limits: TilingLimits, on_progress: Callable[[Progress], None] | None = None
) -> SolvedTiling:
    """Tilings by `method`; auto takes the exact ones if the search ends, else the best known. All have the bound of the
    exact search.

    Raises InputError for an unsound problem, InfeasibleError where tilings are fixed to what excludes each other or
    nothing fits into the memory, LimitError where the method finds nothing that fits.
    """
    made = published_graph(problem)
    small = contract(made.graph, made.capacities)
    first = greedy(made.graph, made.second)
    local = small.expanded(local_search(made.graph, small, first.choice))
    if method not in ("auto", "exact"):
        limits = replace(limits, work=BOUND_WORK)
    proof = exactly(made.graph, made.capacities, known=local, limits=limits, on_progress=on_progress)
    if proof.infeasible:
        raise InfeasibleError(_least(problem, made, limits))
    steps: tuple[GreedyStep, ...] = ()
    name: TilingMethod
    match method:
        case "greedy":
            choice, steps, name = first.choice, first.steps, "greedy"
        case "sweep":
            choice, name = local, "sweep"
        case "row":
            choice, name = small.expanded(along(made.graph, small, "S0")), "row"
        case "column":
            choice, name = small.expanded(along(made.graph, small, "S1")), "column"
        case "worst":
            choice, name = _worst(made, limits), "worst"
        case _:
            choice, name = _best(made, proof.choice, local)
    if not fits(made.capacities, choice):
        raise LimitError(f"{problem.name}: {name} finds no tilings that fit; the method exact may")
    return SolvedTiling(made.tilings(choice), name, proof.bound, steps, proof.late, proof.searched)


def local_search(graph: TilingGraph, small: SmallGraph, first: Choice) -> Choice:
    """The best choice of the small graph that sweeps end in, from `first` of the whole graph, from all rows, all
    columns and all blocks; those that fit before others, of equal ones the first."""
    starts = (small.contracted(first), *(along(graph, small, label) for label in ("S0", "S1", "B")))
    found = [swept(small.graph, start, small.capacities) for start in starts]

    def key(choice: Choice) -> tuple[bool, int]:
        cost = cost_of(small.graph, choice)
        return not fits(small.capacities, choice), FORBIDDEN if cost is None else cost

    return min(found, key=key)


def along(graph: TilingGraph, small: SmallGraph, label: str) -> Choice:
    """The choice of the small graph that gives all arrays but views that label where they have it."""
    choice = []
    for members in small.members:
        root, labels = members[0]
        at = [graph.groups[root].labels[each] for each in labels]
        choice.append(at.index(label) if label in at else 0)
    return tuple(choice)


def _best(made: PublishedGraph, exact: Choice | None, local: Choice) -> tuple[Choice, TilingMethod]:
    if exact is None or (fits(made.capacities, local) and _cost(made, local) < _cost(made, exact)):
        return local, "sweep"
    return exact, "exact"


def _cost(made: PublishedGraph, choice: Choice) -> int:
    cost = cost_of(made.graph, choice)
    assert cost is not None
    return cost


def _worst(made: PublishedGraph, limits: TilingLimits) -> Choice:
    found = exactly(dearest(made.graph), made.capacities, limits=limits).choice
    if found is None:
        raise LimitError("the search for the worst tilings found none within its limits")
    return found


def _least(problem: TilingProblem, made: PublishedGraph, limits: TilingLimits) -> str:
    """Why nothing fits, with the least memory that something fits into."""
    if made.memory and (least := least_capacity(made.graph, made.memory, made.second, limits)) is not None:
        has, needs = (f"{format_bytes(count)} ({count} bytes)" for count in (problem.memory_bytes or 0, least))
        return f"{problem.name}: no tilings fit into {has} at each worker; the least that suffices is {needs}"
    return f"{problem.name}: fixed tilings take more than {format_bytes(problem.dup_bytes)} of second copies"
