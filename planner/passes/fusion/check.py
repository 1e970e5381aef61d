"""The independent checker of a fusion plan: it reads only the plan and shares no code with what makes plans.

It uses the parser, the types of a program, and the reference interpreter, but no transformations, search, prices or
bounds; treadle.planner.passes.fusion.consistency checks a plan by those.

The schedule must mean what the program means: both are run by the reference interpreter, on data of whole numbers, for
several small sizes and numbers of ranks, and every output and every updated state must be the same to the last bit. Its
kernels and overlaps must be launches that can run: no cycle of data or of reads before writes, the operations that the
policy of a kernel allows, one iteration space, chains of producers and consumers. Stages must be these launches, their
times make up the whole, and rivals mean what the program means and not be faster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treadle.planner.errors import CheckFailed, InputError
from treadle.planner.passes.fusion.check_launches import SUMS, check_kernels, check_order
from treadle.planner.passes.fusion.check_stages import check_stages
from treadle.planner.passes.fusion.decisions import CLOSE, PEERS, FusionDecisions, Rival
from treadle.planner.passes.fusion.dims import PARTS
from treadle.planner.passes.fusion.evaluate import evaluate
from treadle.planner.passes.fusion.layouts import WORLD, Local, Replicated, Sliced
from treadle.planner.passes.fusion.parsing import parse
from treadle.planner.passes.fusion.program import Bindings, Input, Program
from treadle.planner.passes.fusion.slice_maps import global_indices

MOST_RIVALS = 48
"""Rivals that are read and run; the peers at the end of the list are among them."""


def check(decisions: FusionDecisions) -> list[str]:
    """Everything wrong with a plan on its own; an empty list accepts it."""
    try:
        program = parse(decisions.program, "$.decisions.program")
        schedule = parse(decisions.schedule, "$.decisions.schedule")
    except InputError as error:
        return [str(error)]
    findings = [*_sizes(decisions, program), *_contract(program, schedule), *check_kernels(schedule)]
    if not findings:
        findings += [*check_order(schedule), *check_stages(decisions, schedule)]
    if not findings:
        findings += _meaning(program, schedule, decisions)
    if not findings:
        findings += [*_rivals(program, decisions), *_times_of_rivals(decisions)]
    return findings


def _sizes(decisions: FusionDecisions, program: Program) -> Iterator[str]:
    """Every dimension has a size, and there are as many groups as the program needs."""
    names = {name for value in program.inputs for extent in value.type.shape for name in extent.names}
    used = {name.removesuffix(PARTS) for name in names}
    if used != set(decisions.extents):
        yield f"extents: of {', '.join(sorted(decisions.extents))}, the program has {', '.join(sorted(used))}"
    reach = 1 + max(value.type.group.offset for value in program.by_name.values())
    grouped = any(value.type.group != WORLD for value in program.inputs if value.type.shape)
    if decisions.groups < reach or (not grouped and decisions.groups != 1):
        yield f"groups: {decisions.groups}, the program is of {f'at least {reach}' if grouped else '1'}"


def _contract(program: Program, schedule: Program) -> Iterator[str]:
    """Inputs and outputs are those of the program, but for state that became sliced."""
    ours, theirs = ({value.name: value.type for value in each.inputs} for each in (program, schedule))
    if list(ours) != list(theirs):
        yield f"schedule: inputs {', '.join(theirs)}, the program has {', '.join(ours)}"
        return
    for name, type_ in ours.items():
        other = theirs[name]
        if (type_.dtype, type_.shape, type_.group) != (other.dtype, other.shape, other.group):
            yield f"schedule: input {name} is another tensor than the program's"
        sliced = isinstance(type_.layout, Replicated) and isinstance(other.layout, Sliced)
        if type_.layout != other.layout and not (sliced and name in program.updates):
            yield f"schedule: input {name} lives elsewhere than in the program, and is no state that may be sliced"
    if set(program.updates) != set(schedule.updates):
        yield "schedule: updates other tensors than the program"
    if program.name != schedule.name:
        yield f"schedule: of {schedule.name}, the program is {program.name}"
    if len(program.outputs) != len(schedule.outputs):
        yield f"schedule: {len(schedule.outputs)} outputs, the program has {len(program.outputs)}"
    for ours_, theirs_ in zip(program.outputs, schedule.outputs, strict=False):
        mine, its = program.by_name[ours_].type, schedule.by_name[theirs_].type
        if mine != its:
            yield f"schedule: output {theirs_} is not of the type of the program's {ours_}"


TRIED_RANKS = (2, 3, 5)
EXTENTS = (5, 7, 3, 4, 6, 2)
"""Extents of the dimensions in order, in the first trial; in the second they are multiples of the ranks."""
TOLERANCE = {"f64": 1e-12, "f32": 1e-5, "f16": 1e-2, "bf16": 5e-2}
"""Relative tolerance where sums over all elements may be added up in another order."""


def _meaning(program: Program, schedule: Program, decisions: FusionDecisions) -> list[str]:
    """Differences of values for small sizes; a schedule that cannot be run at any of them is a finding too."""
    why = "it has no sizes"
    tried = 0
    for ranks in sorted({min(each, decisions.ranks) for each in TRIED_RANKS}):
        for multiple in (False, True):
            try:
                bindings, values, ours = _tried(program, _small(program, decisions, ranks, multiple))
                findings = _compared(program, ours, schedule, bindings, values)
            except CheckFailed as error:
                return [f"schedule: {error}"]
            except InputError as error:
                why = str(error)
                continue
            tried += 1
            if findings:
                return findings
    return [] if tried else [f"schedule: cannot be run by the interpreter: {why}"]


def _small(program: Program, decisions: FusionDecisions, ranks: int, multiple: bool) -> Bindings:
    names = sorted(decisions.extents)
    extents = {
        name: ranks * (1 + place % 2) if multiple else EXTENTS[place % len(EXTENTS)] for place, name in enumerate(names)
    }
    parts = {name: (extents[name] - 1, 1) for name in decisions.parts if extents[name] > 1}
    return Bindings(extents, ranks, min(decisions.groups, 2 + _reach(program)), parts)


Values = Mapping[str, NDArray[Any]]


def _tried(program: Program, bindings: Bindings) -> tuple[Bindings, Values, Values]:
    """Inputs for these sizes, and all values of the program. Raises InputError for sizes that it does not take."""
    values = {value.name: _whole_numbers(value, bindings) for value in program.inputs}
    return bindings, values, evaluate(program, bindings, values)


def _first_tried(program: Program, decisions: FusionDecisions) -> tuple[Bindings, Values, Values]:
    ranks = min(2, decisions.ranks)
    try:
        return _tried(program, _small(program, decisions, ranks, False))
    except InputError:  # some programs take only equal parts
        return _tried(program, _small(program, decisions, ranks, True))


def _compared(program: Program, ours: Values, schedule: Program, bindings: Bindings, values: Values) -> list[str]:
    theirs = evaluate(schedule, bindings, values)
    summed = any(node.op in SUMS and node.attribute("dim") is None for node in program.nodes)
    findings = []
    pairs = [(a, b, f"output {b}") for a, b in zip(program.outputs, schedule.outputs, strict=True)]
    pairs += [(program.updates[t].name, schedule.updates[t].name, f"state {t}") for t in sorted(program.updates)]
    for mine, its, what in pairs:
        expected = _assembled(program, ours, mine, bindings)
        found = _assembled(schedule, theirs, its, bindings)
        tolerance = TOLERANCE.get(program.by_name[mine].type.dtype, 0.0) if summed else 0.0
        if not np.allclose(expected, found, rtol=tolerance, atol=tolerance, equal_nan=True):
            size = ", ".join(f"{name}={extent}" for name, extent in sorted(bindings.extents.items()))
            findings.append(f"schedule: {what} is not the program's, for example for {size} on {bindings.ranks} ranks")
    return findings


def _whole_numbers(value: Input, bindings: Bindings) -> NDArray[np.float64]:
    """Small whole numbers, positive so that roots are defined; scalars are powers of two."""
    draw = np.random.default_rng(len(value.name) * 1009 + sum(map(ord, value.name)))
    shape = tuple(extent.value(bindings.values) for extent in value.type.shape)
    if value.type.dtype in ("i32", "i64"):
        return np.broadcast_to(draw.permutation(shape[0]) if shape else np.array(1), shape).astype(np.float64)
    if not shape:
        return np.array(draw.choice([0.25, 0.5, 2.0]))
    each = (bindings.groups, bindings.ranks, *shape) if isinstance(value.type.layout, Local) else shape
    return draw.integers(1, 6, each).astype(np.float64)


def _assembled(program: Program, values: Mapping[str, NDArray[Any]], name: str, bindings: Bindings) -> NDArray[Any]:
    """A value as the ranks together have it, by group: slices put together, else what every rank has. Only for the
    groups that have it."""
    of, found = program.by_name[name].type, np.asarray(values[name])
    first, last = of.group.offset, bindings.groups - _reach(program) + of.group.offset
    found = found[first:last]
    if not isinstance(of.layout, Sliced):
        return found
    whole = found[:, 0].reshape(found.shape[0], -1).copy()
    for rank in range(bindings.ranks):
        mine = global_indices(of.layout, found.shape[2:], bindings.ranks, rank)
        whole[:, mine] = found[:, rank].reshape(found.shape[0], -1)[:, mine]
    return np.broadcast_to(whole.reshape(found.shape[0], 1, *found.shape[2:]), found.shape)


def _reach(program: Program) -> int:
    """How many groups after its own a program sends to."""
    return max(value.type.group.offset for value in program.by_name.values())


# Rivals.


@lru_cache(maxsize=2 * MOST_RIVALS)
def read(schedule: str) -> Program:
    """The schedule of a rival, remembered between checks. Raises InputError."""
    return parse(schedule, "$.decisions.rivals")


def rivals_of(decisions: FusionDecisions) -> tuple[Rival, ...]:
    """The rivals that are checked: the first ones and the two peers."""
    return (*decisions.rivals[:-2][: MOST_RIVALS - 2], *decisions.rivals[-2:])


def _rivals(program: Program, decisions: FusionDecisions) -> Iterator[str]:
    """The first rival that differs from the program, each tried on one size."""
    bindings, values, ours = _first_tried(program, decisions)
    for rival in rivals_of(decisions):
        try:
            schedule = read(rival.schedule)
            findings = [*_contract(program, schedule), *check_kernels(schedule)] or [*check_order(schedule)]
            findings = findings or _compared(program, ours, schedule, bindings, values)
        except (InputError, CheckFailed) as error:
            findings = [str(error)]
        if findings:
            yield f"rivals: {rival.name}: {findings[0]}"
            return


def _times_of_rivals(decisions: FusionDecisions) -> Iterator[str]:
    """Rivals are distinct, as many as were considered, and none is faster."""
    others = [rival for rival in decisions.rivals if not rival.name.startswith(PEERS)]
    if decisions.considered != 1 + len(others):
        yield f"considered: {decisions.considered} schedules, the plan and its rivals are {1 + len(others)}"
    least = min((rival.time_ns for rival in others), default=decisions.time_ns)
    if not decisions.measured_ns and decisions.time_ns > (1 + CLOSE) * least + 1:
        yield f"rivals: one takes {least} ns, the plan {decisions.time_ns} ns, and neither was measured"
    faster = [rival for rival in decisions.rivals if rival.name.startswith(PEERS) and rival.time_ns < decisions.time_ns]
    if decisions.library and not decisions.measured_ns and faster:
        yield f"rivals: {faster[0].name} takes {faster[0].time_ns} ns, less than the plan's {decisions.time_ns} ns"
    seen = Counter([decisions.schedule, *(rival.schedule for rival in others)])
    if max(seen.values()) > 1:
        yield "rivals: one schedule stands there twice"
