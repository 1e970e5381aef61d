"""TACCL's three stages: routes by an integer program, orders by list scheduling, then batches and exact times.

See `routing`, `ordering` and `contiguity` for the stages (TACCL, section 5.5). A reduction runs the routes of its
mirror image backwards (section 5.6). Where that leaves a gap to the bound, routes made for reductions are tried too:
sums of one chunk take turns in the model (A15 of `routing`), and an allreduce gets routes of its own for either half.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from treadle.planner.documents.sketch import Order
from treadle.planner.errors import LimitError
from treadle.planner.passes.collective.algorithm import Transfer
from treadle.planner.passes.collective.bound import is_unrestricted, lower_bound
from treadle.planner.passes.collective.contiguity import Batched, batch
from treadle.planner.passes.collective.limits import Effort
from treadle.planner.passes.collective.ordering import Ordering, best_of_halves, best_ordering
from treadle.planner.passes.collective.problem import Problem, build_problem
from treadle.planner.passes.collective.route_moves import Trees, moves_of
from treadle.planner.passes.collective.routing import Routing, route
from treadle.planner.passes.collective.scheduling import Move
from treadle.planner.passes.collective.synthesis import Draft, Request
from treadle.planner.search.bound import Argument, Bound

MAX_TURNS = 4000
"""Possible transfers up to which a reduction is routed a second time, with sums that take turns."""

MOST_SAVED = 1.5
"""How many times as soon as its orders a schedule hardly ends with messages of several chunks."""


@dataclass(frozen=True)
class Ordered:
    """Routes as moves, in order. `routing` is the one whose time and status count."""

    routing: Routing
    moves: tuple[Move, ...]
    ordering: Ordering
    name: str


def synthesize(request: Request, effort: Effort) -> Draft:
    """The best algorithm that routing, ordering and contiguity find.

    Raises InputError for inputs that do not fit together, InfeasibleError when the sketch leaves no routing,
    LimitError when the limits ended the search without one.
    """
    problem = build_problem(
        request.collective, request.hardware, request.sketch, request.size_bytes, request.root, demands=request.demands
    )
    bound = lower_bound(problem)
    effort.require_sooner(bound.time_ns, "its pieces take at least")
    proved = None
    best: Ordered | None = None
    for found in candidates(problem, effort, request.sketch.order):
        if found.routing.bound_ns > bound.time_ns and is_unrestricted(problem):
            bound = proved = Bound(found.routing.bound_ns, Argument("routing"), "these pieces")
        if best is None or found.ordering.schedule.makespan < best.ordering.schedule.makespan:
            best = found
        if best.ordering.schedule.makespan <= bound.time_ns:
            break
    assert best is not None
    effort.require_sooner(int(best.ordering.schedule.makespan / MOST_SAVED), "its orders leave no hope of less than")
    final = batch(best.moves, best.ordering, problem.batching, effort, floor=bound.time_ns)
    return Draft(
        problem=problem,
        transfers=transfers(best.moves, final),
        method=f"{best.name}, ordering ({best.ordering.name}), contiguity",
        status=status(best.routing, final),
        bound=proved,
        routing_ns=best.routing.time_ns,
        ordering_ns=best.ordering.schedule.makespan,
        fixed=True,
    )


def candidates(problem: Problem, effort: Effort, portfolio: Order) -> Iterator[Ordered]:
    """Routes in the order in which they are tried: TACCL's, then those made for reductions."""
    mirrored = route(problem, effort)
    inverts = problem.half != "forward"
    name = "routing of the mirrored collective" if inverts else "routing"
    yield ordered(problem, mirrored, name, portfolio, mirrored.trees)
    if not inverts or sum(map(len, problem.allowed)) > MAX_TURNS or effort.exhausted():
        return
    try:
        turns = route(problem, effort, backwards=True, turns=True)
    except LimitError:
        return
    yield ordered(problem, turns, "routing of sums", portfolio, turns.trees, mirrored.trees)


def ordered(
    problem: Problem, routing: Routing, name: str, portfolio: Order, trees: Trees, spread: Trees | None = None
) -> Ordered:
    """Stage 2 with the heuristics of `portfolio`."""
    moves = moves_of(problem, trees, spread)
    if problem.half == "both":
        ordering = best_of_halves(moves, problem.ranks, sum(map(len, trees)), portfolio)
    else:
        ordering = best_ordering(moves, problem.ranks, portfolio)
    return Ordered(routing, moves, ordering, name)


def transfers(moves: tuple[Move, ...], final: Batched) -> tuple[Transfer, ...]:
    """Transfers by (send time, source, destination, chunk); messages of a link are numbered in the order they leave."""
    schedule = final.schedule
    indices = sorted(
        range(len(moves)),
        key=lambda i: (schedule.send[i], moves[i].src, moves[i].dst, schedule.batch[i], moves[i].chunk),
    )
    numbers: dict[tuple[int, int], dict[int, int]] = {}
    result = []
    for index in indices:
        move = moves[index]
        of_link = numbers.setdefault((move.src, move.dst), {})
        number = of_link.setdefault(schedule.batch[index], len(of_link))
        result.append(
            Transfer(move.chunk, move.src, move.dst, schedule.send[index], schedule.arrive[index], number, move.reduce)
        )
    return tuple(result)


def status(routing: Routing, final: Batched) -> str:
    """What the solver proved, stage by stage."""
    word = {True: "optimal", False: "feasible"}
    refined = word[routing.optimal and routing.settled]
    return f"routing {word[routing.optimal]}, refinement {refined}, contiguity {word[final.optimal]}"
