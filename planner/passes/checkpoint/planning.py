"""From a problem of checkpoints in memory to a checked plan: the whole pass in one function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

from treadle.planner.documents.plan import InputRef, Plan, Provenance
from treadle.planner.documents.scalars import many
from treadle.planner.errors import InputError
from treadle.planner.passes.checkpoint.bound import lower_bound, sentence
from treadle.planner.passes.checkpoint.check import check
from treadle.planner.passes.checkpoint.decided import decided, host_memory
from treadle.planner.passes.checkpoint.decisions import CheckpointDecisions, Placing
from treadle.planner.passes.checkpoint.placement import Holders, published, ring
from treadle.planner.passes.checkpoint.problem import CheckpointProblem, Variant
from treadle.planner.passes.checkpoint.search import searched
from treadle.planner.search.certified import certified
from treadle.planner.search.clock import Clock, Expired
from treadle.planner.solver import Progress
from treadle.planner.version import TOOL


@dataclass(frozen=True)
class CheckpointOptions:
    """placement: None for the one that survives most. every: iterations between checkpoints, None for the interval that
    loses least. seed: of the search."""

    placement: Placing | None = None
    variant: Variant = "planned"
    every: int | None = None
    seed: int = 0


DEFAULTS = CheckpointOptions()


def plan_checkpoint(
    problem: CheckpointProblem,
    *,
    options: CheckpointOptions = DEFAULTS,
    clock: Clock | None = None,
    inputs: Mapping[str, InputRef] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_plan: Callable[[Plan[CheckpointDecisions]], None] | None = None,
) -> Plan[CheckpointDecisions]:
    """Holders of every state, its pieces and the interval, checked.

    Raises InputError for a problem that is not sound, InfeasibleError where memory is too small.
    """
    for path, found, expected in problem.problems():
        raise InputError(f"found {found}, expected {expected}", where="problem of checkpoints", path=path)
    host_memory(problem)  # a refusal does not wait for the search
    with (clock or Clock()).listening() as clock:
        placement, holders = placed(problem, options, clock.over)
        interrupted = clock.stop.is_set()
        late = clock.late() and not interrupted
        decisions = decided(problem, placement, holders, options.variant, options.every)
        plan = certified(
            decisions,
            time_ns=decisions.time_ns,
            bound=lower_bound(problem).of_plan(decisions.time_ns),
            sentence=sentence,
            check=check,
            inputs=inputs or {},
            provenance=Provenance(
                tool=TOOL,
                method="groups and a ring, local search of what they leave over; pieces in order of spans",
                options={name: value for name, value in asdict(options).items() if value is not None},
                limit_fired=late,
                interrupted=interrupted,
            ),
        )
    if on_plan is not None:
        on_plan(plan)
    return plan


def placed(problem: CheckpointProblem, options: CheckpointOptions, expired: Expired) -> tuple[Placing, Holders]:
    """The placement of the options. Raises InputError for groups where machines are left over."""
    name, holders = published(problem.machines, problem.copies)
    match options.placement:
        case "ring":
            return "ring", ring(problem.machines, problem.copies)
        case "groups" if name != "groups":
            left = many(problem.machines % problem.copies, "machine")
            raise InputError(f"groups of {problem.copies} leave {left} over; {name!r} are for that", where=problem.name)
        case "groups" | "groups and ring":
            return name, holders
        case "searched":
            return "searched", searched(problem, options.seed, expired)
    found = searched(problem, options.seed, expired)
    return ("searched" if found != holders else name), found
