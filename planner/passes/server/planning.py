"""From a problem of serving parameters to a checked plan: the whole pass in one function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict

from treadle.planner.documents.plan import InputRef, Plan, Provenance
from treadle.planner.errors import InputError
from treadle.planner.passes.server.bound import lower_bound, sentence
from treadle.planner.passes.server.check import check
from treadle.planner.passes.server.decided import ServerOptions, best_of, decisions_of
from treadle.planner.passes.server.decisions import ServerDecisions
from treadle.planner.passes.server.problem import ServerProblem
from treadle.planner.search.certified import certified
from treadle.planner.search.clock import Clock
from treadle.planner.solver import Progress
from treadle.planner.version import TOOL

DEFAULTS = ServerOptions()


def plan_server(
    problem: ServerProblem,
    *,
    options: ServerOptions = DEFAULTS,
    clock: Clock | None = None,
    inputs: Mapping[str, InputRef] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_plan: Callable[[Plan[ServerDecisions]], None] | None = None,
) -> Plan[ServerDecisions]:
    """The chunk map of the least predicted time, checked. The limit of `clock` and Ctrl-C leave sizes of chunks
    untried and small maps as longest-processing-time-first has them.

    Raises InputError for a problem that is not sound, InfeasibleError where a server has too little memory, LimitError
    where the time had passed before that was proved.
    """
    for path, found, expected in problem.problems():
        raise InputError(f"found {found}, expected {expected}", where="problem of a parameter server", path=path)
    with (clock or Clock()).listening() as clock:
        best = best_of(problem, options, clock)
        decisions = decisions_of(best, options)
        interrupted = clock.stop.is_set()
        plan = certified(
            decisions,
            time_ns=decisions.time_ns,
            bound=lower_bound(problem).of_plan(decisions.time_ns),
            sentence=sentence,
            check=check,
            inputs=inputs or {},
            provenance=Provenance(
                tool=TOOL,
                method="longest processing time first, CP-SAT where small",
                options={name: value for name, value in asdict(options).items() if value is not None},
                limit_fired=(best.chunk_map.cut or clock.late()) and not interrupted,
                interrupted=interrupted,
            ),
        )
    if on_plan is not None:
        on_plan(plan)
    return plan
