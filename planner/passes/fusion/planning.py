"""From a program and a machine to a checked fusion plan: the best of its schedules, the bound and the gap to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import msgspec

from treadle.planner.documents.plan import InputRef, Plan, Provenance
from treadle.planner.documents.tuned import Tuned
from treadle.planner.errors import CheckFailed
from treadle.planner.passes.fusion.bound import lower_bound, sentence
from treadle.planner.passes.fusion.check import check
from treadle.planner.passes.fusion.consistency import inconsistent
from treadle.planner.passes.fusion.decisions import AS_WRITTEN, COMPUTATION_FUSED, FusionDecisions, Rival
from treadle.planner.passes.fusion.explanations import decisions
from treadle.planner.passes.fusion.notation import notation
from treadle.planner.passes.fusion.price import price
from treadle.planner.passes.fusion.program import Program
from treadle.planner.passes.fusion.prune import pointwise_first
from treadle.planner.passes.fusion.ranking import (
    DEFAULTS,
    FusionOptions,
    FusionProblem,
    Ranking,
    nanoseconds,
    peers_on,
    rank_schedules,
)
from treadle.planner.passes.fusion.text import show
from treadle.planner.search.certified import certified
from treadle.planner.search.clock import Clock
from treadle.planner.solver import Progress
from treadle.planner.version import TOOL


def plan_fusion(
    problem: FusionProblem,
    *,
    options: FusionOptions = DEFAULTS,
    clock: Clock | None = None,
    inputs: Mapping[str, InputRef] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_plan: Callable[[Plan[FusionDecisions]], None] | None = None,
) -> Plan[FusionDecisions]:
    """The schedule of least predicted time, checked.

    When `clock` has expired, by its limit or by Ctrl-C, some schedules are left out, but never the program itself.
    Raises InputError where the machine has too few ranks or no links for it, or a dimension has no extent.
    """
    plan = plan_of(rank_schedules(problem, options, clock, on_progress), inputs or {})
    if on_plan is not None:
        on_plan(plan)
    return plan


def plan_of(found: Ranking, inputs: Mapping[str, InputRef], tuned: tuple[Tuned, ...] = ()) -> Plan[FusionDecisions]:
    """The schedule of least predicted time, or of least measured time among those of the first of `tuned`.

    Its last two rivals are the program as it was written, and with its computation fused. Raises CheckFailed where the
    independent checker finds anything wrong, which would be a bug.
    """
    times = {each.name: round(each.measured_ns or 0) for each in tuned[0].measured} if tuned else {}
    slowest = max(times.values(), default=0) + 1
    found = replace(found, ranked=tuple(sorted(found.ranked, key=lambda ranked: times.get(ranked.name, slowest))))
    made = decisions(found)
    decided = msgspec.structs.replace(
        made, rivals=(*made.rivals, *_peers(found)), measured_ns=dict(sorted(times.items()))
    )
    if findings := list(inconsistent(decided)):
        name = found.space.program.name
        raise CheckFailed(f"{name}: the plan fails its check; this is a bug, please report it", tuple(findings))
    bound = lower_bound(found.space.program, found.bindings, found.machine, found.space.options.tuning)
    return certified(
        decided,
        time_ns=decided.time_ns,
        bound=bound.of_plan(decided.time_ns),
        sentence=sentence,
        check=check,
        inputs=inputs,
        provenance=Provenance(
            tool=TOOL,
            method="enumeration",
            options={} if found.clock.limit_s is None else {"time_limit_s": found.clock.limit_s},
            tuned=tuned,
            limit_fired=found.limit_fired or not found.space.enumeration.complete,
            interrupted=found.clock.stop.is_set(),
        ),
    )


def _peers(found: Ranking) -> tuple[Rival, ...]:
    """Schedules without a search: a launch for each operation, and the computation fused but no collective. Products
    are those of a library, such as cuBLAS, or our own where the plan may have both and they are faster."""
    program = found.space.program
    fused = pointwise_first(program)[0]
    machine = peers_on(found.machine)

    def rival(words: str, peer: Program) -> Rival:
        priced = price(peer, found.bindings, machine, found.space.options.tuning)
        return Rival(name=words + notation(peer), time_ns=sum(map(nanoseconds, priced.groups_us)), schedule=show(peer))

    return rival(AS_WRITTEN, program), rival(COMPUTATION_FUSED, fused)
