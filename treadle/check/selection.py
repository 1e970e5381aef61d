"""Whether a selection says the truth about its plans: their names, and their times at the sizes in its table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec.structs import replace

from treadle.check.plan import require_accepted
from treadle.passes.collective.tuning import pricing
from treadle.planner.documents import store
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_bytes, many
from treadle.planner.documents.selection import Entry, Selection, other_methods
from treadle.planner.documents.sketch import Sketch
from treadle.planner.errors import CheckFailed, InputError
from treadle.planner.passes import require_pass
from treadle.planner.passes.collective.algorithm import CollectiveDecisions
from treadle.planner.passes.collective.pricing import Programs, label
from treadle.planner.passes.collective.retime import Retimed, retimed
from treadle.planner.passes.collective.rivals import fitted, rivals
from treadle.planner.passes.collective.universal import universal_bound


def plans_of(selection: Selection, path: Path | str) -> dict[str, Plan[CollectiveDecisions]]:
    """The plans next to a selection, by file name. Raises InputError where one is missing or another one."""
    plans: dict[str, Plan[CollectiveDecisions]] = {}
    for entry in selection.entries:
        file = str(Path(path).parent / entry.plan.file)
        plan = plans.get(entry.plan.file) or require_pass(store.load(file, Plan), CollectiveDecisions, file)
        if store.digest(plan) != entry.plan.digest:
            raise InputError(f"found another plan than the one that {Path(path).name} was made with", where=file)
        plans[entry.plan.file] = plan
    return plans


def against_plans(selection: Selection, plans: Mapping[str, Plan[CollectiveDecisions]]) -> Iterator[str]:
    """What the plans alone contradict."""
    for name, plan in sorted(plans.items()):
        decisions = plan.decisions
        if (decisions.collective, decisions.ranks) != (selection.collective, selection.ranks):
            yield f"{name}: {decisions.collective} of {decisions.ranks} ranks, expected {selection.name}"
        elif any(plan.inputs.get(role) != reference for role, reference in selection.inputs.items()):
            yield f"{name}: made from other inputs than the selection"
    yield from other_methods(selection, plans)


def against_times(
    selection: Selection,
    plans: Mapping[str, Plan[CollectiveDecisions]],
    made_from: Mapping[str, tuple[Hardware, Sketch]],
) -> Iterator[str]:
    """Every plan is timed again on the inputs it was `made_from`: predictions and bounds at the ends of the ranges, and
    that no other plan of the selection is better than the tolerance says."""
    again: dict[str, Retimed] = {}
    programs: dict[str, Programs] = {}
    priced = any(entry.simulated_us for entry in selection.entries)
    for name, plan in plans.items():
        again[name] = retimed(plan.decisions, *made_from[name])
        transport = plan.provenance.known.transport
        symmetric = None if transport is None else transport.symmetric
        prices = pricing(made_from[name][0], None, None)
        found = prices.programs(plan.decisions, symmetric=symmetric) if priced else None
        if found is not None:
            programs[name] = found
    for index, entry in enumerate(selection.entries):
        hardware, sketch = made_from[entry.plan.file]
        for end, size in enumerate((entry.min_bytes, entry.max_bytes)):
            time, problem = again[entry.plan.file].at(size)
            bound = universal_bound(problem.collective, hardware, sketch, size, problem.root, problem.demands).time_ns
            for what, stated, truth in (
                ("predicted", entry.predicted_us[end], time / 1000),
                ("bound", entry.bound_us[end], bound / 1000),
            ):
                if not math.isclose(stated, truth, rel_tol=1e-9):
                    yield f"entries[{index}]: {what} {stated:g} us at {format_bytes(size)}, the plan takes {truth:g} us"
        yield from _simulated(entry, f"entries[{index}]", programs.get(entry.plan.file))
    yield from _against_nccl(selection, plans, made_from, programs)
    for size in selection.sizes:
        used = selection.at(size)
        if used is None:
            yield f"no entry for {format_bytes(size)}, which was tried"
            continue
        rows = {(entry.plan.file, (entry.protocol, entry.instances)) for entry in selection.entries}
        times = {
            (name, key): programs[name].time_us(key, size) if name in programs else again[name].at(size)[0] / 1000
            for name, key in sorted(rows)
        }
        best = min(times, key=lambda row: (times[row], row))
        took = times[used.plan.file, (used.protocol, used.instances)]
        if took > (1 + selection.tolerance) * times[best] * (1 + 1e-9):
            yield f"{format_bytes(size)}: {used.plan.file} takes {took:g} us, {best[0]} only {times[best]:g} us"


def _against_nccl(
    selection: Selection,
    plans: Mapping[str, Plan[CollectiveDecisions]],
    made_from: Mapping[str, tuple[Hardware, Sketch]],
    programs: Mapping[str, Programs],
) -> Iterator[str]:
    """Whether NCCL's own times are those of its model on the profile, and ours next to them those of our programs."""
    if not selection.rivals:
        return  # a selection of before they were priced
    hardware, _ = made_from[selection.entries[0].plan.file]
    cuts = [*(entry.min_bytes for entry in selection.entries), selection.entries[-1].max_bytes + 1]
    truths = rivals(hardware, selection.collective, cuts, lambda size: None)
    stands = [replace(rival, plan_us=None) for rival in selection.rivals] == list(truths)
    if not stands or selection.rivals_fitted != fitted(hardware):
        yield "rivals: not those of NCCL's model on this profile"
        return
    for index, rival in enumerate(selection.rivals):
        used = selection.at(rival.min_bytes)
        if rival.plan_us is None or used is None or used.plan.file not in programs:
            continue
        for size, stated in zip((rival.min_bytes, rival.max_bytes), rival.plan_us, strict=True):
            truth = programs[used.plan.file].time_us((used.protocol, used.instances), size)
            if not math.isclose(stated, truth, rel_tol=1e-6, abs_tol=2e-3):
                yield f"rivals[{index}]: our program {stated:g} us at {format_bytes(size)}, this version {truth:g} us"


def _simulated(entry: Entry, where: str, programs: Programs | None) -> Iterator[str]:
    """Whether the program of an entry takes the simulated times that it states."""
    key = (entry.protocol, entry.instances)
    stated = entry.simulated_us.get(label(*key))
    if stated is None:
        if entry.simulated_us:
            yield f"{where}: no simulated time of {label(*key)}, which it uses"
        return
    for size, time in zip((entry.min_bytes, entry.max_bytes), stated, strict=True):
        truth = None if programs is None else programs.time_us(key, size)
        if time is None or (truth is not None and not math.isclose(time, truth, rel_tol=1e-6, abs_tol=2e-3)):
            yield f"{where}: simulated {time} us at {format_bytes(size)} by {label(*key)}, this version {truth} us"


def require_told(selection: Selection, plans: Mapping[str, Plan[CollectiveDecisions]], where: str) -> None:
    """Raises CheckFailed for a selection that its plans contradict, or a plan of it that is not accepted."""
    for name, plan in plans.items():
        require_accepted(plan, f"{where}: {name}")
    if findings := list(against_plans(selection, plans)):
        raise CheckFailed(f"{where}: rejected: {many(len(findings), 'finding')}", tuple(findings))
