"""What a fusion plan tells beside its schedule, held against its two programs; with a machine, priced again.

Its transformations must make the schedule again, its launches be those of the schedule, its rivals schedules of the
same program that are not faster. Only here does a check use the transformations; treadle.planner.passes.fusion.check
has none of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import get_args

from treadle.planner.documents.hardware import Hardware
from treadle.planner.errors import InputError
from treadle.planner.machine.collectives import Algorithm, Tuning
from treadle.planner.machine.rates import CHANNELS, Machine, machine_of
from treadle.planner.passes.fusion.calls import TRANSFORMS, replay
from treadle.planner.passes.fusion.canonical import canonical_hash
from treadle.planner.passes.fusion.counts import counts
from treadle.planner.passes.fusion.decisions import AS_WRITTEN, COMPUTATION_FUSED, FusionDecisions, Rival, StageChoice
from treadle.planner.passes.fusion.dims import PARTS
from treadle.planner.passes.fusion.layouts import WORLD
from treadle.planner.passes.fusion.parsing import parse
from treadle.planner.passes.fusion.pieces import together
from treadle.planner.passes.fusion.planning import CLOSE, nanoseconds, peers_on
from treadle.planner.passes.fusion.price import price
from treadle.planner.passes.fusion.program import Bindings, Program
from treadle.planner.passes.fusion.prune import pointwise_first
from treadle.planner.passes.fusion.reasons import choices_of, members_of, taken_by
from treadle.planner.passes.fusion.spelling import spelled
from treadle.planner.passes.fusion.stages import PRODUCTS, Stage, groups, moves_data, stages

PEERS = (AS_WRITTEN, COMPUTATION_FUSED)
TIMES = r"[0-9,]+\.[0-9] us to [0-9,]+\.[0-9] us"
"""What a reason tells of the time."""
MOST_RIVALS = 48
"""Rivals that are read and priced again; the peers at the end of the list are among them."""


def bindings_of(decisions: FusionDecisions) -> Bindings:
    return Bindings(decisions.extents, decisions.ranks, decisions.groups, decisions.parts)


def check_sizes(decisions: FusionDecisions, program: Program) -> Iterator[str]:
    """Every dimension has a size, and groups are as many as the program is of."""
    names = {name for value in program.inputs for extent in value.type.shape for name in extent.names}
    used = {name.removesuffix(PARTS) for name in names}
    if used != set(decisions.extents):
        yield f"extents: of {', '.join(sorted(decisions.extents))}, the program has {', '.join(sorted(used))}"
    reach = 1 + max(value.type.group.offset for value in program.by_name.values())
    grouped = any(value.type.group != WORLD for value in program.inputs if value.type.shape)
    if decisions.groups < reach or (not grouped and decisions.groups != 1):
        yield f"groups: {decisions.groups}, the program is of {f'at least {reach}' if grouped else '1'}"


def check_told(decisions: FusionDecisions, program: Program, schedule: Program) -> Iterator[str]:
    """Everything that needs no machine."""
    if findings := list(_replayed(decisions, program, schedule)):
        yield from findings
        return
    yield from _counted(decisions, schedule)
    yield from _launches(decisions, schedule)
    yield from _reasons(decisions, program)
    yield from _measured(decisions, schedule)


def _replayed(decisions: FusionDecisions, program: Program, schedule: Program) -> Iterator[str]:
    try:
        made = replay(program, decisions.transforms)
    except InputError as error:
        yield f"transforms: {error}"
        return
    if canonical_hash(made) != canonical_hash(schedule):
        yield "transforms: make another schedule of the program"


def _counted(decisions: FusionDecisions, schedule: Program) -> Iterator[str]:
    bindings, counted = bindings_of(decisions), counts(schedule)
    between = decisions.volume_between_groups
    for words, told, count in (
        ("sends", decisions.volume, counted.volume),
        ("sends to the next group", between, counted.between),
        ("loads and stores", decisions.traffic, counted.traffic),
        ("keeps as state", decisions.state, counted.state),
    ):
        if told != (found := float(count.value(bindings))):
            yield f"elements that each rank {words}: {told:,.0f}, the schedule has {found:,.0f}"


def _launches(decisions: FusionDecisions, schedule: Program) -> Iterator[str]:
    """Kinds and members of the stages, algorithms that exist for those that have one, and times that fit together."""
    for told, stage in zip(decisions.stages, stages(schedule), strict=True):
        what_it_is = (told.name, told.kind, told.members)
        if what_it_is != (stage.name, stage.kind, members_of(stage)):
            expected = f"{stage.name}, {stage.kind} of {', '.join(members_of(stage))}"
            yield f"stages: {told.name}, {told.kind} of {', '.join(told.members)}, the schedule has {expected}"
        yield from _runs(told, any(map(moves_data, stage.nodes)))
        yield from _made(decisions, told, stage)
    meet = {stage.name for group in groups(schedule) for each in together(schedule, group) for stage in each[1:]}
    for told in decisions.stages:
        if told.overlaps != (told.name in meet):
            runs, expected = ("overlaps", "in turn") if told.overlaps else ("runs in turn", "overlapped")
            yield f"stages: {told.name} {runs} with the one before, generated kernels run it {expected}"
    for before, after in pairwise(decisions.stages):
        if after.overlaps and not before.start_ns <= after.start_ns <= before.end_ns <= after.end_ns:
            first, second = (f"from {each.start_ns} to {each.end_ns} ns" for each in (before, after))
            yield f"stages: {after.name} runs {second}, {before.name}, which it overlaps, {first}"
    followed = {before.name for before, after in pairwise(decisions.stages) if after.overlaps}
    for told in decisions.stages:
        has = told.end_ns - told.start_ns
        if not told.overlaps and told.name not in followed and abs(has - told.time_ns) > 1:
            yield f"stages: {told.name} takes {told.time_ns} ns by itself, and has {has} ns without an overlap"


def _runs(told: StageChoice, moves: bool) -> Iterator[str]:
    choice = (told.algorithm, told.protocol, told.channels)
    if not moves and choice != (None, None, None):
        yield f"stages: {told.name} has an algorithm, protocol or channels, and moves nothing between ranks"
    if moves and None in choice:
        yield f"stages: {told.name} has no algorithm, protocol or channels, and moves data between ranks"
    if told.algorithm is not None and told.algorithm not in get_args(Algorithm):
        yield f"stages: {told.name} runs on {told.algorithm!r}, expected one of {', '.join(get_args(Algorithm))}"
    if told.channels is not None and told.channels > CHANNELS:
        yield f"stages: {told.name} has {told.channels} channels, expected at most {CHANNELS}"


def _made(decisions: FusionDecisions, told: StageChoice, stage: Stage) -> Iterator[str]:
    """A library makes products by themselves, where it takes less time than our kernel."""
    if told.own_ns is None:
        return
    if not decisions.library or stage.kind not in PRODUCTS:
        yield f"stages: {told.name} is a call of a library, expected one for a product, in a plan that may have them"
    beside = [after.name for before, after in pairwise(decisions.stages) if before.name == told.name and after.overlaps]
    if told.overlaps or beside:
        yield f"stages: {told.name} is a call of a library and overlaps, which only our own kernels do"
    if told.own_ns <= told.time_ns:
        yield f"stages: {told.name} is a call of a library of {told.time_ns} ns, our own kernel takes {told.own_ns} ns"


def _reasons(decisions: FusionDecisions, program: Program) -> Iterator[str]:
    """What was taken, where that is told, is the list of transformations; what was refused is one of them."""
    found = tuple(taken_by(program, decisions.transforms, bindings_of(decisions)))
    if decisions.taken and len(decisions.taken) != len(found):
        yield f"taken: {len(decisions.taken)} transformations, the schedule is made by {len(found)}"
    for told, reason in zip(decisions.taken, found, strict=False):
        times = re.escape(reason.why) + ("; " if reason.why else "") + TIMES
        same = (told.transform, told.on, told.code, told.witness) == (reason.transform, reason.on, None, None)
        if not same or not re.fullmatch(times, told.why):
            expected = f"{reason.transform} of {', '.join(reason.on)}: {reason.why}"
            yield f"taken: {told.transform} of {', '.join(told.on)}: {told.why}, expected {expected}"
    if len(set(decisions.refused)) < len(decisions.refused):
        yield "refused: one reason stands there twice"
    for told in decisions.refused:
        if told.transform.partition(" ")[0] not in TRANSFORMS:
            yield f"refused: found transformation {told.transform!r}, expected one of {', '.join(TRANSFORMS)}"
        elif told.code is None or told.witness is None:
            yield f"refused: {told.transform} of {', '.join(told.on)} without a code and a witness"


def _measured(decisions: FusionDecisions, schedule: Program) -> Iterator[str]:
    times, name = decisions.measured_ns, spelled(schedule)
    known = {name, *(rival.name for rival in decisions.rivals if not rival.name.startswith(PEERS))}
    if unknown := sorted(set(times) - known):
        yield f"measured: {', '.join(unknown)}, neither the schedule nor a rival"
    elif times and times.get(name, max(times.values()) + 1) > min(times.values()):
        yield f"measured: {name} is not the fastest, which is taken"


# Rivals.


@lru_cache(maxsize=2 * MOST_RIVALS)
def read(schedule: str) -> Program:
    """The schedule of a rival, remembered between checks. Raises InputError."""
    return parse(schedule, "$.decisions.rivals")


def rivals_of(decisions: FusionDecisions) -> tuple[Rival, ...]:
    """Those that are looked at."""
    return (*decisions.rivals[:-2][: MOST_RIVALS - 2], *decisions.rivals[-2:])


def check_rivals(decisions: FusionDecisions, program: Program) -> Iterator[str]:
    """Names, number and times of the rivals; what their schedules mean is for treadle.planner.passes.fusion.check to
    say."""
    others = [rival for rival in decisions.rivals if not rival.name.startswith(PEERS)]
    if decisions.considered != 1 + len(others):
        yield f"considered: {decisions.considered} schedules, the plan and its rivals are {1 + len(others)}"
    least = min((rival.time_ns for rival in others), default=decisions.time_ns)
    if not decisions.measured_ns and decisions.time_ns > (1 + CLOSE) * least + 1:
        yield f"rivals: one takes {least} ns, the plan {decisions.time_ns} ns, and neither was measured"
    faster = [rival for rival in decisions.rivals if rival.name.startswith(PEERS) and rival.time_ns < decisions.time_ns]
    if decisions.library and not decisions.measured_ns and faster:
        yield f"rivals: {faster[0].name} takes {faster[0].time_ns} ns, less than the plan's {decisions.time_ns} ns"
    peers = {AS_WRITTEN: program, COMPUTATION_FUSED: pointwise_first(program)[0]}
    for rival in decisions.rivals:
        for words, peer in peers.items():
            if rival.name.startswith(words) and canonical_hash(read(rival.schedule)) != canonical_hash(peer):
                yield f"rivals: {rival.name} is not the program {words.rstrip(': ')}"
    for rival in rivals_of(decisions):
        words = next((words for words in PEERS if rival.name.startswith(words)), "")
        if rival.name != (name := words + spelled(read(rival.schedule))):
            yield f"rivals: found the name {rival.name}, its schedule is {name}"
    seen = Counter([decisions.schedule, *(rival.schedule for rival in others)])
    if max(seen.values()) > 1:
        yield "rivals: one schedule stands there twice"


# With the machine.


def _measured_on(decisions: FusionDecisions) -> Tuning:
    """What a measured plan says that all its collectives run on; else everything is tried."""
    told = {(stage.algorithm, stage.protocol, stage.channels) for stage in decisions.stages if stage.algorithm}
    if not decisions.measured_ns or len(told) != 1:
        return Tuning()
    ((algorithm, protocol, channels),) = told
    return Tuning((algorithm,), (str(protocol),), (channels or 1,))  # type: ignore[arg-type]


def priced_on(decisions: FusionDecisions, hardware: Hardware) -> Machine:
    """The machine of a plan, with the products that it may have. Raises InputError as `machine_of` does."""
    machine = machine_of(hardware)
    return machine if decisions.library else machine.without_library


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
    for told, stage in zip(decisions.stages, choices_of(schedule, priced), strict=True):
        runs = (stage.algorithm, stage.protocol, stage.channels)
        if (told.algorithm, told.protocol, told.channels) != runs:
            yield f"stages: {told.name} is fastest on {', '.join(map(str, runs))}"
        if (told.own_ns is None) != (stage.own_ns is None):
            yield f"stages: {told.name} is fastest as {'our own kernel' if stage.own_ns is None else 'a library call'}"
        elif told.own_ns is not None and stage.own_ns is not None and abs(told.own_ns - stage.own_ns) > 1:
            yield f"stages: {told.name} takes {told.own_ns} ns in our own kernel, on the hardware {stage.own_ns} ns"
        for field in ("time_ns", "start_ns", "end_ns"):
            ours, theirs = getattr(told, field), getattr(stage, field)
            if abs(ours - theirs) > 1 + len(decisions.stages) * (field != "time_ns"):
                yield f"stages: {field} of {told.name} is {ours}, on the hardware {theirs}"
    if decisions.taken and decisions.taken != tuple(taken_by(program, decisions.transforms, bindings, machine)):
        yield "taken: the times that it tells are not those on the hardware"
    for rival in rivals_of(decisions):
        runs_on = peers_on(machine) if rival.name.startswith(PEERS) else machine
        other = price(read(rival.schedule), bindings, runs_on)
        found = sum(map(nanoseconds, other.groups_us))
        if abs(found - rival.time_ns) > len(other.groups_us):
            yield f"rivals: {rival.name} takes {rival.time_ns} ns, on the hardware {found} ns"
