"""A memory plan as a policy of selective activation checkpointing: `policy.py` for `torch.utils.checkpoint`.

A checkpointed region is a module. Its forward pass saves its inputs and what the policy says; when the backward pass
first needs another of its values, its forward pass is recomputed as far as needed, and what later backward nodes read
stays. So a choice of regions and saved values is a `treadle.planner.passes.memory.lower.RecomputeSchedule`, whose peak
and time are known before anything runs. By that prediction regions are chosen among all depths of the module tree, and
values are saved beyond what the plan keeps, or instead of it, as far as the budget allows.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from treadle.codegen.memory.framework_step import backward_of, fixed_nodes, nodes_of, run_of, schedule_of, updating
from treadle.codegen.memory.kept_values import kept_nodes, operator_name, same_operators
from treadle.codegen.python_text import PythonTree, labelled, layout, literal
from treadle.codegen.templates import quote, template
from treadle.planner.documents.scalars import format_bytes
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import InputError
from treadle.planner.passes.memory.decisions import MemoryDecisions
from treadle.planner.passes.memory.lower import RecomputeSchedule
from treadle.planner.passes.memory.problem import MemoryProblem
from treadle.planner.passes.memory.program import RunForward
from treadle.planner.passes.memory.simulate import Simulation

FILE_NAME = "policy.py"
MOST_TRIED = 200
"""Further values that are tried, those first that take longest to recompute."""


@dataclass(frozen=True)
class Selective:
    """`regions` are modules, `place[i]` is the region of forward node i or None, `saved` lives from the forward to the
    backward pass."""

    regions: tuple[str, ...]
    place: tuple[str | None, ...]
    saved: frozenset[int]
    schedule: RecomputeSchedule
    predicted: Simulation


def generate(decisions: MemoryDecisions, trace: Trace) -> tuple[dict[str, str], Selective]:
    """The policy as {relative path: text}, and what it carries of the plan. Raises InputError for a trace that does not
    say which module makes each call."""
    chosen, kept = choose(decisions, trace), kept_nodes(decisions)
    digits = policy(decisions.problem, trace, chosen).items()
    regions = tuple(labelled(f"{quote(region)}: ", literal(calls)) for region, calls in digits)
    text = template("torch/policy.py.j2").render(
        name=trace.name,
        budget=format_bytes(decisions.problem.budget_bytes),
        regions_of=len(chosen.regions),
        carried=len(kept & chosen.schedule.kept[0]),
        kept=len(kept),
        more=len(chosen.schedule.kept[0] - kept),
        held=len(chosen.schedule.kept[0]),
        peak=format_bytes(chosen.predicted.peak_bytes),
        planned=format_bytes(decisions.exact_peak_bytes),
        time=f"{chosen.predicted.time_ns / max(1, decisions.store_all_ns):.3f}x",
        regions=list(layout("REGIONS = ", PythonTree("{", regions, "}"), 0)),
        same=same_operators(),
    )
    return {FILE_NAME: text}, chosen


def choose(decisions: MemoryDecisions, trace: Trace) -> Selective:
    """The regions with the least predicted time whose peak holds the budget, else those of least peak."""
    problem = decisions.problem
    ops = {op.id: op for op in trace.ops}
    modules = [next((ops[name].modules for name in node.ops if name in ops), ()) for node in problem.fwd]
    if not any(modules):
        raise InputError(
            "found no module names of the ops, expected a trace captured by this version", where=trace.name
        )
    kept = kept_nodes(decisions)
    fixed = fixed_nodes(problem, trace)
    again = {name.partition("#")[0] for op in trace.ops for name in op.modules if "#" in name}
    found = []
    for depth, wanted in itertools.product(range(1 + max(map(len, modules))), (kept, frozenset[int]())):
        place = _not_nested([_region(names, depth, again) for names in modules])
        while True:
            whole = _selective(problem, fixed, place, wanted)
            # A region of which nothing is computed again costs a wrapper and gains nothing.
            busy = {place[run.node] for stage in whole.schedule.runs[1:] for run in stage}
            if {name for name in place if name is not None} <= busy:
                break
            place = [name if name in busy else None for name in place]
        found.append(whole)
    refined = [_refined(problem, fixed, one) for one in found]
    fits = [one for one in refined if one.predicted.peak_bytes <= problem.budget_bytes]
    if fits:
        return min(fits, key=lambda one: (one.predicted.time_ns, one.predicted.peak_bytes))
    return min(refined, key=lambda one: (one.predicted.peak_bytes, one.predicted.time_ns))


def _refined(problem: MemoryProblem, fixed: frozenset[int], one: Selective) -> Selective:
    """Save more where that saves time and leaves the peak within the budget, or where it was. A region computes all
    that its needs depend on, even where the plan keeps a later value instead."""
    most = max(problem.budget_bytes, one.predicted.peak_bytes)
    again = {
        run.node: problem.fwd[run.node].impls[run.impl].time(True) for runs in one.schedule.runs[1:] for run in runs
    }
    for i in sorted(again, key=lambda i: (-again[i], i))[:MOST_TRIED]:
        tried = _selective(problem, fixed, list(one.place), one.saved | {i})
        if tried.predicted.time_ns < one.predicted.time_ns and tried.predicted.peak_bytes <= most:
            one = tried
    return one


def policy(problem: MemoryProblem, trace: Trace, chosen: Selective) -> dict[str, dict[str, str]]:
    """By region and operator: a digit for each call in order, 1 where its result is saved."""
    saved = {name for node in chosen.saved for name in problem.fwd[node].ops} | updating(trace)
    region_of = {op: chosen.place[i] for i, node in enumerate(problem.fwd) for op in node.ops}
    found: dict[str, dict[str, str]] = {region: {} for region in chosen.regions}
    for op in trace.ops:
        inside = [name for name in op.modules if name in found]
        region = region_of.get(op.id) or (inside[0] if inside else None)
        if op.phase == "forward" and region is not None and op.intermediate_of is None:
            name = operator_name(op.target)
            calls = found[region]
            calls[name] = calls.get(name, "") + ("1" if op.id in saved else "0")
    return {
        region: {name: digits for name, digits in sorted(calls.items()) if "1" in digits}
        for region, calls in found.items()
    }


def _not_nested(place: list[str | None]) -> list[str | None]:
    """Without regions that hold others: what lies in them and in none of the others stays outside of regions."""
    names = {name for name in place if name is not None}
    outer = {".".join(parts[:end]) for parts in (name.split(".") for name in names) for end in range(1, len(parts))}
    return [None if name in outer else name for name in place]


def _region(names: tuple[str, ...], depth: int, again: set[str]) -> str | None:
    """The module at `depth` of the call stack `names`; the innermost one where the stack is less deep. A module that
    is called more than once in a step cannot have one policy, so what is inside it stays outside of regions."""
    if depth == 0 or not names or any(name.partition("#")[0] in again for name in names[:depth]):
        return None
    return names[min(depth, len(names)) - 1]


def _selective(
    problem: MemoryProblem, fixed: frozenset[int], place: list[str | None], kept: frozenset[int]
) -> Selective:
    """What PyTorch's checkpointing of the regions in `place` does, and all that lives from forward to backward.

    A region is recomputed when any of its values is read that was not saved, and what it saved stays until then. Its
    inputs stay until the last of its backward nodes has run, for they are arguments of the function to call again.
    """
    nodes = nodes_of(problem)
    members: dict[str, list[int]] = {}
    for i in nodes:
        creator = problem.fwd[i].creator
        if creator is not None:
            place[i] = place[creator]
        if (name := place[i]) is not None:
            members.setdefault(name, []).append(i)
    chosen = backward_of(problem)
    direct = frozenset(i for impl in chosen for i in impl.needs)
    crossing = {(i, j) for i in nodes for j in problem.fwd[i].inputs if place[j] != place[i]}
    entering = {j for i, j in crossing if place[i] is not None or j in direct}
    saved = frozenset(
        fixed.intersection(nodes) | entering | (kept & set(nodes)) | {i for i in direct if place[i] is None}
    )
    runs: list[tuple[RunForward, ...]] = [tuple(run_of(problem, i) for i in nodes)]
    needs: list[set[int]] = []
    available: frozenset[int] = saved
    last: dict[str, int] = {}
    for stage, impl in enumerate(chosen):
        again: list[int] = []
        held: set[int] = set()
        for name in dict.fromkeys(place[i] for i in sorted(impl.needs)):
            if name is None:
                continue
            last[name] = stage
            if not available.issuperset(direct.intersection(members[name])):
                end = max(i for i in members[name] if i in direct)
                again += [i for i in members[name] if i <= end and i not in available]
                held |= available.intersection(members[name])
        runs.append(tuple(run_of(problem, i) for i in sorted(again)))
        needs.append(held.union(impl.needs))
        available |= direct.intersection(again)
    for i, j in crossing:
        if (region := place[i]) is not None and region in last:
            needs[last[region]].add(j)
    schedule, predicted = schedule_of(problem, runs, [tuple(sorted(read)) for read in needs])
    regions = tuple(dict.fromkeys(name for name in place if name is not None))
    return Selective(regions, tuple(place), saved, schedule, predicted)
