"""From hardware, sketch and size to a checked collective plan: the whole pass in one function (TACCL, section 5.5)."""

from __future__ import annotations

from typing import Literal

from planner.collective.algorithm import Collective, CollectiveDecisions, Transfer
from planner.collective.bound import PROVED_BY_SOLVER, Bound, is_unrestricted, lower_bound
from planner.collective.check import check
from planner.collective.collectives import ROOTED
from planner.collective.contiguity import Batched, batch
from planner.collective.limits import Effort, Limits, OnProgress
from planner.collective.moves import inverted_moves, moves_of
from planner.collective.ordering import Ordering, best_of_halves, best_ordering
from planner.collective.problem import Problem, build_problem
from planner.collective.routing import Routing, route
from planner.collective.scheduling import Move
from planner.documents import digest
from planner.errors import CheckFailed
from planner.hardware import Hardware
from planner.plan import VERSION, Certificate, InputRef, Plan, Prediction, Provenance
from planner.scalars import MEBIBYTE
from planner.sketch import Sketch
from planner.solver.interrupt import stop_on_sigint

Protocol = Literal["Simple", "LL", "LL128"]

DEFAULT_LIMITS = Limits()
CHECKER = "planner.collective.check"
TOOL = "treadle"


def plan_collective(
    collective: Collective,
    hardware: Hardware,
    sketch: Sketch,
    *,
    size_bytes: int | None = None,
    root: int = 0,
    instances: int | None = None,
    protocol: Protocol | Literal["auto"] | None = None,
    limits: Limits = DEFAULT_LIMITS,
    on_progress: OnProgress | None = None,
    hardware_file: str | None = None,
    sketch_file: str | None = None,
) -> Plan:
    """The best plan found for `collective` with `size_bytes` of input on every rank (default: the sketch's size).

    `on_progress` hears the stage and the solver's progress in ns. `hardware_file` and `sketch_file` are recorded as
    names of the inputs. Raises InputError for inputs that do not fit together, InfeasibleError when the sketch leaves
    no routing, LimitError when the limits ended the search without one, CheckFailed should the result be wrong.
    """
    with stop_on_sigint() as stop:
        effort = Effort(limits, on_progress, stop)
        problem = build_problem(collective, hardware, sketch, size_bytes, root)
        routing = route(problem, effort)
        moves = moves_of(problem, routing.trees)
        ordering = order(problem, routing, moves)
        bound = lower_bound(problem)
        if routing.bound_ns > bound.time_ns and is_unrestricted(problem):
            bound = Bound(routing.bound_ns, PROVED_BY_SOLVER)
        final = batch(moves, ordering, problem.batching, effort, floor=bound.time_ns)
    decisions = CollectiveDecisions(
        collective=collective,
        ranks=problem.ranks,
        chunkup=problem.chunkup,
        chunk_bytes=problem.chunk_bytes,
        input_bytes=problem.input_bytes,
        root=problem.root if collective in ROOTED else None,
        links=tuple(problem.links.values()),
        ports=problem.ports,
        transfers=transfers(moves, final),
        makespan_ns=final.schedule.makespan,
        routing_ns=routing.time_ns,
        ordering_ns=ordering.schedule.makespan,
        instances=instances or sketch.instances or instances_for(problem),
        protocol=protocol_for(problem.input_bytes) if protocol is None or protocol == "auto" else protocol,
    )
    findings = check(decisions)
    if findings:
        raise CheckFailed("the collective plan failed its own check; this is a bug, please report it", tuple(findings))
    objective = decisions.makespan_ns
    return Plan(
        version=VERSION,
        inputs={
            "hardware": InputRef(file=hardware_file or hardware.name, digest=digest(hardware)),
            "sketch": InputRef(file=sketch_file or sketch.name, digest=digest(sketch)),
        },
        decisions=decisions,
        prediction=Prediction(time_us=objective / 1000),
        certificate=Certificate(
            verdict="accepted",
            checker=CHECKER,
            objective=objective,
            lower_bound=bound.time_ns,
            unit="ns",
            argument=bound.argument,
            gap=(objective - bound.time_ns) / objective if objective else 0.0,
            optimal=objective == bound.time_ns,
        ),
        provenance=Provenance(
            tool=TOOL,
            method=f"routing, ordering ({ordering.name}), contiguity",
            options={
                "routing_limit": limits.routing,
                "scheduling_limit": limits.scheduling,
                **({} if limits.time_s is None else {"time_limit_s": limits.time_s}),
            },
            solver_status=status(routing, final),
            limit_fired=effort.limit_fired,
            interrupted=effort.interrupted,
        ),
    )


def order(problem: Problem, routing: Routing, moves: tuple[Move, ...]) -> Ordering:
    """Stage 2 for the collective at hand."""
    if problem.half != "both":
        return best_ordering(moves, problem.ranks)
    return best_of_halves(moves, problem.ranks, len(inverted_moves(problem, routing.trees)))


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


def instances_for(problem: Problem) -> int:
    """1 for small inputs or where many links are used, 8 where few links must carry much (spec 4.2, pass 7)."""
    policies = {hyperedge.policy for hyperedge in problem.topology.hyperedges}
    if "uc-max" in policies:
        return 1
    return 8 if "uc-min" in policies or problem.input_bytes > MEBIBYTE else 1


def protocol_for(input_bytes: int) -> Protocol:
    """LL up to 64 KB, LL128 up to 1 MB, Simple above (spec section 8, number 18)."""
    return "LL" if input_bytes <= 2**16 else "LL128" if input_bytes <= MEBIBYTE else "Simple"
