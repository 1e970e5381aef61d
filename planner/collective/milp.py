"""TACCL's three stages: routes by an integer program, orders by list scheduling, then batches and exact times.

See `routing`, `ordering` and `contiguity` for the stages (TACCL, section 5.5).
"""

from __future__ import annotations

from planner.collective.algorithm import Transfer
from planner.collective.bound import PROVED_BY_SOLVER, Bound, is_unrestricted, lower_bound
from planner.collective.contiguity import Batched, batch
from planner.collective.draft import Draft, Request
from planner.collective.limits import Effort
from planner.collective.moves import inverted_moves, moves_of
from planner.collective.ordering import Ordering, best_of_halves, best_ordering
from planner.collective.problem import Problem, build_problem
from planner.collective.routing import Routing, route
from planner.collective.scheduling import Move
from planner.sketch import Order


def synthesize(request: Request, effort: Effort) -> Draft:
    """The best algorithm that routing, ordering and contiguity find.

    Raises InputError for inputs that do not fit together, InfeasibleError when the sketch leaves no routing,
    LimitError when the limits ended the search without one.
    """
    problem = build_problem(
        request.collective, request.hardware, request.sketch, request.size_bytes, request.root, demands=request.demands
    )
    routing = route(problem, effort)
    moves = moves_of(problem, routing.trees)
    ordering = order(problem, routing, moves, request.sketch.order)
    bound = lower_bound(problem)
    proved = None
    if routing.bound_ns > bound.time_ns and is_unrestricted(problem):
        bound = proved = Bound(routing.bound_ns, PROVED_BY_SOLVER)
    final = batch(moves, ordering, problem.batching, effort, floor=bound.time_ns)
    return Draft(
        problem=problem,
        transfers=transfers(moves, final),
        method=f"routing, ordering ({ordering.name}), contiguity",
        status=status(routing, final),
        bound=proved,
        routing_ns=routing.time_ns,
        ordering_ns=ordering.schedule.makespan,
    )


def order(problem: Problem, routing: Routing, moves: tuple[Move, ...], portfolio: Order) -> Ordering:
    """Stage 2 for the collective at hand, with the heuristics of `portfolio`."""
    if problem.half != "both":
        return best_ordering(moves, problem.ranks, portfolio)
    return best_of_halves(moves, problem.ranks, len(inverted_moves(problem, routing.trees)), portfolio)


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
