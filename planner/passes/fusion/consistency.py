"""A fusion plan compared with what the planner's own code derives from it; with a machine, priced again.

It finds plans that were changed by hand or made by another version, but no fault of the planner, which
treadle.planner.passes.fusion.check finds. Its transformations must derive the schedule; counts, reasons, order and
names must follow from the schedule.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import structs

from treadle.planner.documents.hardware import Hardware
from treadle.planner.errors import InputError
from treadle.planner.machine.collectives import Tuning
from treadle.planner.machine.rates import Machine, machine_of
from treadle.planner.passes.fusion.canonical import canonical_hash
from treadle.planner.passes.fusion.check import read, rivals_of
from treadle.planner.passes.fusion.counts import counts
from treadle.planner.passes.fusion.decisions import AS_WRITTEN, COMPUTATION_FUSED, PEERS, FusionDecisions
from treadle.planner.passes.fusion.explanations import choices_of, taken_by
from treadle.planner.passes.fusion.notation import notation
from treadle.planner.passes.fusion.parsing import parse
from treadle.planner.passes.fusion.pieces import together
from treadle.planner.passes.fusion.price import price
from treadle.planner.passes.fusion.program import Bindings, Program
from treadle.planner.passes.fusion.prune import pointwise_first
from treadle.planner.passes.fusion.ranking import nanoseconds, peers_on
from treadle.planner.passes.fusion.stages import groups, stages
from treadle.planner.passes.fusion.transform_calls import TRANSFORMS, replay

TIME_CHANGE = r"[0-9,]+\.[0-9] us to [0-9,]+\.[0-9] us"
"""Pattern of the change in time that a reason states."""


def bindings_of(decisions: FusionDecisions) -> Bindings:
    return Bindings(decisions.extents, decisions.ranks, decisions.groups, decisions.parts)


def inconsistent(decisions: FusionDecisions) -> Iterator[str]:
    """Differences between a plan that the checker accepts and the planner's own code; without a machine."""
    program, schedule = (parse(text, "$.decisions") for text in (decisions.program, decisions.schedule))
    if findings := list(_replayed(decisions, program, schedule)):
        yield from findings
        return
    yield from _counted(decisions, schedule)
    yield from _launched(decisions, schedule)
    yield from _reasons(decisions, program)
    yield from _measured(decisions, schedule)
    yield from _rivals(decisions, program)


def _replayed(decisions: FusionDecisions, program: Program, schedule: Program) -> Iterator[str]:
    try:
        made = replay(program, decisions.transforms)
    except InputError as error:
        yield f"transforms: {error}"
        return
    if canonical_hash(made) != canonical_hash(schedule):
        yield "transforms: derive another schedule of the program"


def _counted(decisions: FusionDecisions, schedule: Program) -> Iterator[str]:
    bindings, counted = bindings_of(decisions), counts(schedule)
    between = decisions.volume_between_groups
    for words, stated, count in (
        ("sends", decisions.volume, counted.volume),
        ("sends to the next group", between, counted.between),
        ("loads and stores", decisions.traffic, counted.traffic),
        ("keeps as state", decisions.state, counted.state),
    ):
        if stated != (found := float(count.value(bindings))):
            yield f"elements that each rank {words}: {stated:,.0f}, the schedule has {found:,.0f}"


def _launched(decisions: FusionDecisions, schedule: Program) -> Iterator[str]:
    """Stages have the order of generated kernels, and overlap as those do."""
    order, has = ([stage.name for stage in of] for of in (decisions.stages, stages(schedule)))
    if order != has:
        yield f"stages: {', '.join(order)}, the schedule has them in the order {', '.join(has)}"
    meet = {stage.name for group in groups(schedule) for each in together(schedule, group) for stage in each[1:]}
    for mine in decisions.stages:
        if mine.overlaps != (mine.name in meet):
            runs, expected = ("overlaps", "in turn") if mine.overlaps else ("runs in turn", "overlapped")
            yield f"stages: {mine.name} {runs} with the one before, generated kernels run it {expected}"


def _reasons(decisions: FusionDecisions, program: Program) -> Iterator[str]:
    """Reasons for what was taken, if any, match the transformations; what was refused is a transformation."""
    found = tuple(taken_by(program, decisions.transforms, bindings_of(decisions)))
    if decisions.taken and len(decisions.taken) != len(found):
        yield f"taken: {len(decisions.taken)} transformations, the schedule is made by {len(found)}"
    for mine, reason in zip(decisions.taken, found, strict=False):
        times = re.escape(reason.why) + ("; " if reason.why else "") + TIME_CHANGE
        same = (mine.transform, mine.on, mine.code, mine.witness) == (reason.transform, reason.on, None, None)
        if not same or not re.fullmatch(times, mine.why):
            expected = f"{reason.transform} of {', '.join(reason.on)}: {reason.why}"
            yield f"taken: {mine.transform} of {', '.join(mine.on)}: {mine.why}, expected {expected}"
    if len(set(decisions.refused)) < len(decisions.refused):
        yield "refused: found one reason twice"
    for mine in decisions.refused:
        if mine.transform.partition(" ")[0] not in TRANSFORMS:
            yield f"refused: found transformation {mine.transform!r}, expected one of {', '.join(TRANSFORMS)}"
        elif mine.code is None or mine.witness is None:
            yield f"refused: {mine.transform} of {', '.join(mine.on)} without a code and a witness"


def _measured(decisions: FusionDecisions, schedule: Program) -> Iterator[str]:
    times, name = decisions.measured_ns, notation(schedule)
    known = {name, *(rival.name for rival in decisions.rivals if not rival.name.startswith(PEERS))}
    if unknown := sorted(set(times) - known):
        yield f"measured: {', '.join(unknown)}, neither the schedule nor a rival"
    elif times and times.get(name, max(times.values()) + 1) > min(times.values()):
        yield f"measured: {name} is not the fastest, which is taken"


def _rivals(decisions: FusionDecisions, program: Program) -> Iterator[str]:
    """Rivals have the names of their schedules, and peers are the schedules that their names state."""
    peers = {AS_WRITTEN: program, COMPUTATION_FUSED: pointwise_first(program)[0]}
    for rival in decisions.rivals:
        for words, peer in peers.items():
            if rival.name.startswith(words) and canonical_hash(read(rival.schedule)) != canonical_hash(peer):
                yield f"rivals: {rival.name} is not the program {words.rstrip(': ')}"
    for rival in rivals_of(decisions):
        words = next((words for words in PEERS if rival.name.startswith(words)), "")
        if rival.name != (name := words + notation(read(rival.schedule))):
            yield f"rivals: found the name {rival.name}, its schedule is {name}"


# With the machine.


def _measured_on(decisions: FusionDecisions) -> Tuning:
    """The one setting that all collectives of a measured plan run on; else every setting is tried."""
    stated = {(stage.algorithm, stage.protocol, stage.channels) for stage in decisions.stages if stage.algorithm}
    if not decisions.measured_ns or len(stated) != 1:
        return Tuning()
    ((algorithm, protocol, channels),) = stated
    return Tuning((algorithm,), (str(protocol),), (channels or 1,))  # type: ignore[arg-type]


def priced_on(decisions: FusionDecisions, hardware: Hardware) -> Machine:
    """The machine of a plan, with the products that it may have. Raises InputError as `machine_of` does."""
    machine = machine_of(hardware)
    return machine if decisions.library else machine.without_library


def priced_again(decisions: FusionDecisions, hardware: Hardware) -> FusionDecisions:
    """The same schedule at the prices of `hardware`. Raises InputError where it cannot run there."""
    if decisions.nodes != hardware.nodes or decisions.ranks * decisions.groups > hardware.ranks:
        size = f"{hardware.nodes} nodes of {hardware.ranks} ranks in all"
        raise InputError(f"{hardware.name} has {size}, the plan {decisions.nodes} nodes; plan again")
    schedule = parse(decisions.schedule, "$.decisions.schedule")
    priced = price(schedule, bindings_of(decisions), priced_on(decisions, hardware), _measured_on(decisions))
    total = sum(map(nanoseconds, priced.groups_us))
    return structs.replace(decisions, stages=tuple(choices_of(schedule, priced)), time_ns=total)


def check_prices(decisions: FusionDecisions, hardware: Hardware) -> Iterator[str]:
    """The schedule, what was taken and the rivals priced again."""
    program, schedule = (parse(text, "$.decisions") for text in (decisions.program, decisions.schedule))
    bindings, ranks = bindings_of(decisions), decisions.ranks * decisions.groups
    if decisions.nodes != hardware.nodes:
        yield f"nodes: {decisions.nodes}, {hardware.name} has {hardware.nodes}"
    if ranks > hardware.ranks:
        yield f"ranks: {ranks}, {hardware.name} has {hardware.ranks}"
        return
    try:
        machine = priced_on(decisions, hardware)
        priced = price(schedule, bindings, machine, _measured_on(decisions))
    except InputError as error:
        yield str(error)
        return
    total = sum(map(nanoseconds, priced.groups_us))
    if abs(total - decisions.time_ns) > len(decisions.stages):
        yield f"time: {decisions.time_ns} ns, on the hardware the schedule takes {total} ns"
        return
    for mine, stage in zip(decisions.stages, choices_of(schedule, priced), strict=True):
        runs = (stage.algorithm, stage.protocol, stage.channels)
        if (mine.algorithm, mine.protocol, mine.channels) != runs:
            yield f"stages: {mine.name} is fastest on {', '.join(map(str, runs))}"
        if (mine.own_ns is None) != (stage.own_ns is None):
            yield f"stages: {mine.name} is fastest as {'our own kernel' if stage.own_ns is None else 'a library call'}"
        elif mine.own_ns is not None and stage.own_ns is not None and abs(mine.own_ns - stage.own_ns) > 1:
            yield f"stages: {mine.name} takes {mine.own_ns} ns in our own kernel, on the hardware {stage.own_ns} ns"
        for field in ("time_ns", "start_ns", "end_ns"):
            ours, theirs = getattr(mine, field), getattr(stage, field)
            if abs(ours - theirs) > 1 + len(decisions.stages) * (field != "time_ns"):
                yield f"stages: {field} of {mine.name} is {ours}, on the hardware {theirs}"
    if decisions.taken and decisions.taken != tuple(taken_by(program, decisions.transforms, bindings, machine)):
        yield "taken: the times that it states are not those on the hardware"
    for rival in rivals_of(decisions):
        runs_on = peers_on(machine) if rival.name.startswith(PEERS) else machine
        other = price(read(rival.schedule), bindings, runs_on)
        found = sum(map(nanoseconds, other.groups_us))
        if abs(found - rival.time_ns) > len(other.groups_us):
            yield f"rivals: {rival.name} takes {rival.time_ns} ns, on the hardware {found} ns"
