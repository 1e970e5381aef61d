"""Whether a compression plan may run, from its decisions alone: groups, steps, sums, order, times, bytes and rivals.

It shares no code with the options, payloads and timeline of the planner, nor with its methods.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from treadle.planner.machine.compressors import ALGORITHMS, keeps_residual
from treadle.planner.passes.compression.check_rivals import plain_steps, wrong_rivals
from treadle.planner.passes.compression.check_steps import misstep
from treadle.planner.passes.compression.check_sums import wrong_sum
from treadle.planner.passes.compression.check_timeline import TimedTask, starts
from treadle.planner.passes.compression.check_work import counted
from treadle.planner.passes.compression.decisions import CompressionDecisions, GradientGroup
from treadle.planner.passes.compression.problem import DTYPE_BYTES, CompressionProblem


def check(decisions: CompressionDecisions) -> list[str]:
    """Findings; none for a plan that may run, whose times and bytes are those of its steps."""
    found = [f"{path}: found {seen}, expected {expected}" for path, seen, expected in decisions.problems()]
    for path, groups in decisions.divisions if not found else ():
        found += [*_cover(decisions.problem, groups, path), *_groups(decisions.problem, groups, path)]
    if not found:
        wrong = wrong_rivals(decisions.problem, decisions.rivals)
        found += [f"{path}: found {seen}, expected {expected}" for path, seen, expected in wrong]
    found = found or [*_order(decisions)]
    return found or [*_figures(decisions)]


def _cover(problem: CompressionProblem, groups: Sequence[GradientGroup], path: str) -> Iterator[str]:
    """Every gradient in one group, in order."""
    following, gradients = 0, problem.gradients
    for number, group in enumerate(groups):
        if group.first != following:
            what = f"gradient {group.first} ({gradients[group.first].name})"
            yield f"{path}[{number}].first: found {what}, expected {following}, the next one in order"
        following = group.last + 1
    if following != len(gradients):
        what = f"the last one at gradient {following - 1}"
        yield f"{path}: found {what}, expected all {len(gradients)} gradients"


def _groups(problem: CompressionProblem, groups: Sequence[GradientGroup], where: str) -> Iterator[str]:
    """Steps that may be executed, that sum up all ranks, and that stay within the limits of the problem."""
    sums: dict[tuple[str, ...], str | None] = {}
    for number, group in enumerate(groups):
        path = f"{where}[{number}]"
        findings = [*_compressor(problem, group, path), *_limits(problem, group, path)]
        name = group.compressor or ""
        wrong = misstep(group.steps, summable=_summable(problem, name), planned=problem.planned is not None)
        if wrong is not None:
            place, found, expected = wrong
            findings.append(f"{path}.steps[{place}]: found {found}, expected {expected}")
        elif not findings:
            if group.steps not in sums:
                sums[group.steps] = wrong_sum(group.steps, problem.machines, problem.devices)
            if (words := sums[group.steps]) is not None:
                findings.append(f"{path}.steps: {words}, expected the sum of all ranks")
        yield from findings


def _summable(problem: CompressionProblem, name: str) -> bool:
    """Whether payloads can be added up, which is known of treadle's own compressors only."""
    algorithm = ALGORITHMS.get(name.partition(":")[0])
    return algorithm is not None and algorithm.summable


def _compressor(problem: CompressionProblem, group: GradientGroup, path: str) -> Iterator[str]:
    """A compressor of the problem at each place, and none where nothing is compressed."""
    places = [(at, step.partition("@")[2]) for at, step in enumerate(group.steps) if "compress@" in step]
    if group.compressor is None:
        for at, _ in places[:1]:
            yield f"{path}.steps[{at}]: found {group.steps[at]}, expected no compression in a group without compressor"
        return
    known = {cost.place for cost in problem.compressors if cost.name == group.compressor}
    if not known:
        names = ", ".join(dict.fromkeys(cost.name for cost in problem.compressors)) or "none"
        yield f"{path}.compressor: found {group.compressor!r}, expected one of the problem: {names}"
    elif not places:
        yield f"{path}.compressor: found {group.compressor!r}, expected none, since no step compresses"
    for at, place in places if known else ():
        if place not in known:
            there = " or ".join(sorted(known))
            yield f"{path}.steps[{at}]: found {group.steps[at]}, expected {group.compressor} on the {there}"


def _limits(problem: CompressionProblem, group: GradientGroup, path: str) -> Iterator[str]:
    """Bytes of a group of several gradients, and encodings."""
    size, most = DTYPE_BYTES * _elements(problem, group), problem.group_bytes
    if most is not None and group.last > group.first and size > most:
        yield f"{path}: found {size} bytes in a group of several gradients, expected at most {most}"
    encodings = sum(step.startswith("compress@") for step in group.steps)
    if problem.compressions is not None and encodings > problem.compressions:
        yield f"{path}.steps: found {encodings} encodings of a gradient, expected at most {problem.compressions}"


def _order(decisions: CompressionDecisions) -> Iterator[str]:
    """Every collective once, those of a group in the order of its steps: ranks that issue them so wait for no cycle."""
    groups = decisions.groups
    left = [[at for at, step in enumerate(group.steps) if "compress@" not in step] for group in groups]
    for place, sent in enumerate(decisions.order):
        path, what = f"$.decisions.order[{place}]", f"step {sent.step} of group {sent.group}"
        step = groups[sent.group].steps[sent.step]
        if "compress@" in step:
            yield f"{path}: found {what}, which is {step}, expected a collective"
        elif sent.step not in left[sent.group]:
            yield f"{path}: found {what} again, expected each collective once"
        elif left[sent.group][0] != sent.step:
            earlier = left[sent.group][0]
            yield f"{path}: found {what}, expected step {earlier} first: ranks would deadlock"
        if sent.step in left[sent.group]:
            left[sent.group].remove(sent.step)
    for number, missing in enumerate(left):
        if missing:
            yield f"$.decisions.order: found no step {missing[0]} of group {number}, expected every collective"


def _figures(decisions: CompressionDecisions) -> Iterator[str]:
    """Times, bytes and the order in which collectives start, counted again."""
    problem = decisions.problem
    taken, order, sent = _executed(problem, decisions.groups)
    if [(each.group, each.step) for each in decisions.order] != order:
        place = next(at for at, each in enumerate(decisions.order) if (each.group, each.step) != order[at])
        mine, right = decisions.order[place], order[place]
        found = f"found step {mine.step} of group {mine.group}"
        yield f"$.decisions.order[{place}]: {found}, expected step {right[1]} of group {right[0]}, which starts first"
    plain = plain_steps(problem)
    alone = [GradientGroup(first=at, last=at, steps=plain) for at in range(len(problem.gradients))]
    truth = {"time_ns": taken, "uncompressed_ns": _executed(problem, alone)[0], "sent_bytes": sent}
    for name, value in truth.items():
        if getattr(decisions, name) != value:
            yield f"$.decisions.{name}: found {getattr(decisions, name)}, expected {value}"
    for place, rival in enumerate(decisions.rivals):
        if rival.time_ns != (takes := _executed(problem, rival.groups)[0]):
            yield f"$.decisions.rivals[{place}].time_ns: found {rival.time_ns}, expected {takes}"


def _executed(problem: CompressionProblem, groups: Sequence[GradientGroup]) -> tuple[int, list[tuple[int, int]], int]:
    """ns of an iteration, (group, step) of each collective by its start, bytes that a rank sends."""
    tasks = [
        TimedTask(gradient.backward_ns, ("device",), at - 1 if at else None, 1)
        for at, gradient in enumerate(problem.gradients)
    ]
    collectives: list[tuple[int, int, int]] = []
    sent = 0
    for number, group in enumerate(groups):
        before, elements = group.last, _elements(problem, group)
        if group.last > group.first and problem.pack is not None and keeps_residual(group.compressor):
            tasks.append(TimedTask(problem.pack.at(elements), ("device",), before))
            before = len(tasks) - 1
        for at, work in enumerate(counted(problem, group.compressor, group.steps, elements)):
            worker = f"host {number % problem.host_workers}"
            if work.issue_ns:
                tasks.append(TimedTask(work.issue_ns, ("device",), before))
                before = len(tasks) - 1
            tasks.append(TimedTask(work.ns, tuple(worker if one == "host" else one for one in work.resources), before))
            before = len(tasks) - 1
            sent += work.sent_bytes
            if "compress@" not in group.steps[at]:
                collectives.append((before, number, at))
    start = starts(tasks)
    order = [(number, at) for task, number, at in sorted(collectives, key=lambda one: (start[one[0]], one[0]))]
    taken = problem.forward_ns + max(begin + task.ns for begin, task in zip(start, tasks, strict=True))
    return taken, order, sent


def _elements(problem: CompressionProblem, group: GradientGroup) -> int:
    return sum(gradient.elements for gradient in problem.gradients[group.first : group.last + 1])
