"""From a problem of tiling to a checked plan: the whole pass in one function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import ceil

from treadle.planner.documents.plan import InputRef, Plan, Provenance
from treadle.planner.errors import InputError
from treadle.planner.passes.tiling.check import check
from treadle.planner.passes.tiling.decided import decided, least_ns
from treadle.planner.passes.tiling.decisions import AskedMethod, TilingDecisions
from treadle.planner.passes.tiling.exact import TilingLimits
from treadle.planner.passes.tiling.problem import ArrayTiling, TilingProblem
from treadle.planner.passes.tiling.published_search import solved_published
from treadle.planner.search.bound import Argument, Bound
from treadle.planner.search.certified import certified
from treadle.planner.search.clock import Clock
from treadle.planner.search.incumbent import Incumbent
from treadle.planner.solver import Progress
from treadle.planner.version import TOOL

SHARED = "what operators and arrays cost at least each on its own, after they shared costs with their neighbours"
SENTENCES = {
    "nothing": "no cost is below zero",
    "eliminated": "all tilings were compared, array by array: for each choice of its neighbours the best of its own",
    "searched": "an exact search by CP-SAT excludes all tilings that cost less",
    "proved": f"all tilings that cost less are excluded, by elimination and by {SHARED}",
    "shared": SHARED,
}
METHODS = {
    "greedy": "greedy, maximum connectivity first",
    "sweep": "greedy, rows, columns, blocks, each followed by re-choices of single groups",
    "blocks": "elimination, messages between neighbours, re-choices",
    "row": "all arrays cut along axis 0",
    "column": "all arrays cut along axis 1",
    "worst": "exact search for what costs most",
}
PROOFS = {
    "searched": "elimination, then exact search by CP-SAT",
    "proved": "elimination, messages between neighbours until bound and cost met",
}


@dataclass(frozen=True)
class TilingOptions:
    """`seed`: of searches that draw numbers."""

    method: AskedMethod = "auto"
    seed: int = 0


DEFAULTS = TilingOptions()
PlacedNodes = tuple[tuple[ArrayTiling, ...], ...]


def plan_tiling(
    problem: TilingProblem,
    *,
    options: TilingOptions = DEFAULTS,
    clock: Clock | None = None,
    inputs: Mapping[str, InputRef] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_plan: Callable[[Plan[TilingDecisions]], None] | None = None,
) -> Plan[TilingDecisions]:
    """A tiling for each array, checked.

    Raises InputError for a problem that is not sound, InfeasibleError where fixed tilings contradict each other or
    memory is too small for any plan, LimitError where limits ended the search before it found one.
    """
    for path, found, expected in problem.problems():
        raise InputError(f"found {found}, expected {expected}", where="problem of tiling", path=path)
    if problem.model == "seed" and not problem.published:
        raise InputError("found model seed, expected exact or time for rules or several axes", where=problem.name)
    if options.method not in ("auto", "exact", "sweep") and not problem.published:
        raise InputError(
            f"the method {options.method} is for the models seed and exact on one axis without rules",
            where=problem.name,
        )

    timed = clock or Clock()
    in_ns = None if on_progress is None else partial(_reported, on_progress, problem)

    def plan(decisions: TilingDecisions, bound: int, kind: str, late: bool = False) -> Plan[TilingDecisions]:
        if kind == "shared" and least_ns(problem, bound) == decisions.time_ns:
            kind = "proved"
        method = METHODS.get(decisions.method) or PROOFS.get(kind, "elimination, array by array")
        return certified(
            decisions,
            time_ns=decisions.time_ns,
            peak_bytes=decisions.memory_bytes,
            bound=Bound(least_ns(problem, bound), Argument(kind if bound else "nothing")).of_plan(decisions.time_ns),
            sentence=lambda bound: bound.argument.printed(SENTENCES),
            check=check,
            inputs=inputs or {},
            provenance=Provenance(
                tool=TOOL,
                method=method,
                options=asdict(options),
                limit_fired=late and bound < decisions.cost and not timed.stop.is_set(),
                interrupted=timed.stop.is_set(),
            ),
        )

    with timed.listening():
        if problem.published:
            limits = TilingLimits(options.seed, timed)
            solved = solved_published(problem, options.method, limits, in_ns)
            decisions = decided(problem, solved.tilings, method=solved.method, steps=solved.steps)
            kind = "searched" if solved.searched else "eliminated"
            made = plan(decisions, solved.bound, kind, solved.late)
        else:
            from treadle.planner.passes.tiling.large import solved_ruled

            better = Incumbent[Plan[TilingDecisions]](on_plan) if on_plan is not None else None

            def offered(tilings: tuple[ArrayTiling, ...], reads: PlacedNodes, makes: PlacedNodes) -> None:
                if better is not None:
                    better.offer(plan(decided(problem, tilings, reads, makes, method="sweep"), 0, "shared"))

            tilings, reads, makes, method, bound = solved_ruled(problem, options, timed.over, in_ns, offered)
            made = plan(decided(problem, tilings, reads, makes, method=method), bound, "shared", timed.late())
    if on_plan is not None:
        on_plan(made)
    return made


def _reported(on_progress: Callable[[Progress], None], problem: TilingProblem, progress: Progress) -> None:
    """Costs of a search as times in ns."""
    incumbent, bound = (
        None if cost is None else least_ns(problem, ceil(cost)) for cost in (progress.incumbent, progress.bound)
    )
    on_progress(replace(progress, incumbent=incumbent, bound=bound))
