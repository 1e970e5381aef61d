"""The decisions of a fusion plan as its document states them: stages, what was taken and refused, and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import floor
from typing import Literal, cast

from treadle.planner.errors import InputError
from treadle.planner.machine.collectives import DEFAULT, Tuning
from treadle.planner.machine.rates import Machine
from treadle.planner.passes.fusion.counts import Counts, counts
from treadle.planner.passes.fusion.decisions import FusionDecisions, Reason, Rival, StageChoice, TransformCall
from treadle.planner.passes.fusion.price import SchedulePrice, price
from treadle.planner.passes.fusion.program import Bindings, Program
from treadle.planner.passes.fusion.ranking import NS, Ranked, Ranking, nanoseconds
from treadle.planner.passes.fusion.refusal import InvalidTransform
from treadle.planner.passes.fusion.stages import Stage, stages
from treadle.planner.passes.fusion.text import show
from treadle.planner.passes.fusion.transform_calls import apply, subjects

Protocol = Literal["Simple", "LL", "LL128"]


def decisions(plan: Ranking) -> FusionDecisions:
    """The document of a plan: its chosen schedule, all others as rivals, everything taken and refused."""
    chosen, bindings = plan.chosen, plan.bindings
    counted = chosen.counts
    return FusionDecisions(
        program=show(plan.space.program),
        schedule=show(chosen.program),
        extents=dict(bindings.extents),
        parts=dict(bindings.parts),
        ranks=bindings.ranks,
        groups=bindings.groups,
        nodes=plan.machine.nodes,
        transforms=chosen.calls,
        stages=tuple(stage_choices(chosen)),
        time_ns=chosen.time_ns,
        volume=float(counted.volume.value(bindings)),
        volume_between_groups=float(counted.between.value(bindings)),
        traffic=float(counted.traffic.value(bindings)),
        state=float(counted.state.value(bindings)),
        library="library" in plan.machine.makers,
        considered=len(plan.ranked),
        taken=taken(plan),
        refused=refused(plan),
        rivals=tuple(Rival(name=x.name, time_ns=x.time_ns, schedule=show(x.program)) for x in plan.ranked[1:]),
    )


def taken(plan: Ranking) -> tuple[Reason, ...]:
    """The transformations of the chosen schedule, in order, and what each of them changes."""
    space = plan.space
    return tuple(taken_by(space.program, plan.chosen.calls, plan.bindings, plan.machine, space.options.tuning))


def refused(plan: Ranking) -> tuple[Reason, ...]:
    """Transformations that do not apply, every reason once: those of the chosen schedule first, then of the others; and
    overlaps of the chosen schedule that would apply, but save nothing."""
    found: dict[tuple[object, ...], Reason] = {}
    for reason in _refused(plan):
        found.setdefault((reason.transform, reason.code, reason.witness, reason.on[:1]), reason)
    return tuple(found.values())


def stage_choices(chosen: Ranked) -> Iterator[StageChoice]:
    """Launches with their times in the schedule."""
    return choices_of(chosen.program, chosen.price)


def choices_of(schedule: Program, priced: SchedulePrice) -> Iterator[StageChoice]:
    """Launches with their times. In an overlap each begins behind the first pieces of those before it and ends before
    the last pieces of those after it."""
    launched = {stage.name: stage for stage in stages(schedule)}
    parts, begin = list(priced.stages), 0
    for us in priced.groups_us:
        group = [parts.pop(0)]
        while parts and parts[0].overlaps:
            group.append(parts.pop(0))
        end = begin + nanoseconds(us)
        for at, part in enumerate(group):
            yield StageChoice(
                name=part.name,
                kind=part.kind,
                members=members_of(launched[part.name]),
                time_ns=nanoseconds(part.total_us),
                start_ns=begin + floor(NS * sum(other.head_us for other in group[:at])),
                end_ns=end - floor(NS * sum(other.tail_us for other in group[at + 1 :])),
                algorithm=part.config.algorithm if part.config else None,
                protocol=cast(Protocol, part.config.protocol) if part.config else None,
                channels=part.config.channels if part.config else None,
                overlaps=part.overlaps,
                own_ns=nanoseconds(part.own_us) if part.own_us is not None else None,
            )
        begin = end


def members_of(stage: Stage) -> tuple[str, ...]:
    """What a plan calls the operations of a launch."""
    return stage.named or (stage.name,)


def taken_by(
    program: Program,
    calls: Iterable[TransformCall],
    bindings: Bindings,
    machine: Machine | None = None,
    tuning: Tuning = DEFAULT,
) -> Iterator[Reason]:
    """What each of the calls changes, one after the other; on a machine also of the time. Raises as `apply`."""
    before, us = counts(program), price(program, bindings, machine, tuning).total_us if machine else 0.0
    for call in calls:
        program = apply(program, call).program
        after, why = counts(program), []
        if machine:
            now = price(program, bindings, machine, tuning).total_us
            why, us = [f"{us:,.1f} us to {now:,.1f} us"], now
        yield Reason(
            transform=told_as(call), on=subjects(call), why="; ".join([*_changes(before, after, bindings), *why])
        )
        before = after


def _changes(before: Counts, after: Counts, bindings: Bindings) -> Iterator[str]:
    for what in ("launches", "volume", "between", "traffic", "state"):
        old, new = getattr(before, what), getattr(after, what)
        if old != new:
            yield f"{'volume between groups' if what == 'between' else what} {old} to {new}"


def _refused(plan: Ranking) -> Iterator[Reason]:
    space, chosen = plan.space, plan.chosen
    here = next((at for at, found in enumerate(space.enumeration.schedules) if found is chosen.found), None)
    overlaps = space.chains_of(chosen.found)
    ordered = sorted(space.enumeration.refusals, key=lambda refusal: refusal.source != here)
    first = [refusal for refusal in ordered if refusal.source == here]
    yield from (_reason(refusal.calls[-1], refusal.error) for refusal in first)
    for chain, error in overlaps.refused:
        yield Reason(transform="overlap", on=chain, why=_why(error), code=error.code, witness=error.witness)
    used = {overlap.members for overlap in chosen.program.overlaps}
    alone = {part.name: part.total_us for part in chosen.price.stages}
    for chain, program in overlaps.programs.items():
        if chain not in used:
            us, code = sum(alone[name] for name in chain), "slower"
            why = f"it may overlap, but saves nothing of its {us:,.1f} us, or less than chains that share its stages"
            try:
                price(program, plan.bindings, plan.machine, space.options.tuning)
            except InputError as error:
                code, why = "multiprocessors", str(error)
            yield Reason(transform="overlap", on=chain, why=why, code=code, witness=" -> ".join(chain))
    yield from (_reason(refusal.calls[-1], refusal.error) for refusal in ordered[len(first) :])


def _reason(call: TransformCall, error: InvalidTransform) -> Reason:
    return Reason(transform=told_as(call), on=subjects(call), why=_why(error), code=error.code, witness=error.witness)


def _why(error: InvalidTransform) -> str:
    return str(error).removeprefix(f"{error.transform}: ")


def told_as(call: TransformCall) -> str:
    """The transformation with its policy, as reasons name it."""
    policy = call.arguments.get("policy")
    return f"{call.transform} {policy}" if policy else call.transform
