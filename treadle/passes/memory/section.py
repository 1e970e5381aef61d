"""A memory plan as a section of the report: bytes over time, and what happens to each op."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import assert_never

from treadle.passes.memory.figure import memory_svg
from treadle.planner.documents.scalars import format_bytes, format_time, many
from treadle.planner.passes.memory.choices import forward_choices, short_name, uses
from treadle.planner.passes.memory.decisions import MemoryDecisions
from treadle.planner.passes.memory.plain import plain_peak, plain_time
from treadle.planner.passes.memory.problem import BackwardNode, ForwardNode
from treadle.planner.passes.memory.program import Drop, EnterStage, RunBackward, RunForward
from treadle.planner.passes.memory.simulate import curve
from treadle.report.page import Picture, Section, Table, titled
from treadle.report.timeline_figure import Bar, timeline_svg

THIN = 800
"""The most bars of a picture side by side; thinner ones are merged with their neighbours."""


def memory_section(name: str, decisions: MemoryDecisions, measured: Mapping[str, int]) -> Section:
    """The section of one memory plan. measured: peaks in bytes by label, drawn next to the curve."""
    problem = decisions.problem
    start, times = _backward_start(decisions), _durations(decisions)
    choices = [choice for choice in forward_choices(decisions) if problem.fwd[choice.node].kind == "op"]
    again, kept = sum(len(choice.again) for choice in choices), sum(choice.kept for choice in choices)
    text = (
        f"Peak {format_bytes(decisions.exact_peak_bytes)} under a budget of {format_bytes(problem.budget_bytes)}; "
        f"{_plain_peak(decisions)}keeping everything, with the fastest implementations, would take "
        f"{format_bytes(decisions.store_all_peak_bytes)}. Of {many(len(choices), 'forward op')}, the backward pass "
        f"finds {kept} kept, and {many(again, 'operator call')} run again. The step takes "
        f"{format_time(decisions.objective_ns)}{_overhead(decisions, sum(choice.again_ns for choice in choices))}."
    )
    picture = memory_svg(
        _points(decisions, times),
        budget_bytes=problem.budget_bytes,
        store_all_peak_bytes=decisions.store_all_peak_bytes,
        forward_ends_ns=sum(times[:start]),
        measured=measured,
    )
    return Section(
        titled("Memory", name),
        text,
        tuple(table for table in (_used(decisions), _forward(decisions), _backward(decisions)) if table.rows),
        (
            Picture(picture, "Live tensor bytes over the step, by category, as the plan predicts them."),
            Picture(
                timeline_svg(_bars(decisions, times, start)),
                "The operators of the step in the order in which the plan runs them.",
            ),
        ),
    )


def _plain_peak(decisions: MemoryDecisions) -> str:
    plain = plain_peak(decisions.problem)
    share = f"{decisions.exact_peak_bytes / plain:.2f}x" if plain else ""
    return f"that is {share} of plain PyTorch's {format_bytes(plain)}, and " if plain else ""


def _overhead(decisions: MemoryDecisions, again_ns: int) -> str:
    """What the step takes more than without a budget, and what for."""
    everything = decisions.store_all_ns
    if not everything:
        return ""
    more = decisions.objective_ns / everything - 1
    slower = more - again_ns / everything
    reasons = (
        f": {again_ns / everything:.1%} for recomputation, {slower:.1%} for implementations that need less memory"
        if slower >= 0.0005
        else ""
    )
    plain = plain_time(decisions.problem)
    against = f"{more:+.1%} against keeping everything{reasons}"
    if not plain:
        return f", {against}"
    of_plain = f"{decisions.objective_ns / plain - 1:+.1%}"
    peers = f"{of_plain} against plain PyTorch's operators"
    return (
        f", {peers} and against keeping everything{reasons}"
        if against.startswith(of_plain)
        else f", {peers}, {against}"
    )


def _used(decisions: MemoryDecisions) -> Table:
    families = [(family, list(found)) for family, found in itertools.groupby(uses(decisions), lambda use: use.family)]
    rows = tuple((family, str(sum(use.ops for use in found)), ", ".join(map(str, found))) for family, found in families)
    return Table(
        ("family", "operators", "implementations"), rows, "Implementations that the plan chose, by family.", words=True
    )


def _forward(decisions: MemoryDecisions) -> Table:
    """What becomes of each forward op's output, and how it is made."""
    rows = []
    for choice in forward_choices(decisions):
        node = decisions.problem.fwd[choice.node]
        first = "" if choice.first is None else _way(node, choice.first)
        again = sorted({_way(node, run) for run in choice.again})
        if not choice.again:
            fate = "kept" if choice.kept else "freed, not needed again"
        else:
            fate = f"{'kept, then ' if choice.kept else ''}recomputed" + (
                f" {len(choice.again)} times" if len(choice.again) > 1 else ""
            )
        rows.append(
            (
                _named(node, choice.node),
                format_bytes(node.out_bytes),
                fate,
                first,
                "" if again in ([], [first]) else ", ".join(again),
                f"{choice.again_ns / 1e3:,.1f}" if choice.again else "",
            )
        )
    head = (
        "forward op",
        "output",
        "kept or recomputed",
        "implementation",
        "implementation when recomputed",
        "us recomputed",
    )
    return Table(head, tuple(rows), "Forward ops in order.", words=True)


def _backward(decisions: MemoryDecisions) -> Table:
    """How each backward op runs: only where there was a choice."""
    problem, rows = decisions.problem, []
    for step in decisions.program:
        if isinstance(step, RunBackward) and len(problem.bwd[step.node].impls) > 1:
            node = problem.bwd[step.node]
            option = node.impls[step.impl]
            reads = ", ".join(_named(problem.fwd[i], i) for i in option.needs)
            rows.append(
                (
                    _named(node, step.node),
                    option.name,
                    option.family,
                    reads or "gradient only",
                    format_bytes(option.workspace_bytes) if option.workspace_bytes else "",
                    f"{option.time_ns / 1e3:,.1f}",
                )
            )
    head = ("backward op", "implementation", "family", "reads from the forward pass", "workspace", "us")
    return Table(head, tuple(rows), "Backward ops that have a choice of implementations, in order.", words=True)


def _named(node: ForwardNode | BackwardNode, number: int) -> str:
    """The op of a trace by its name there, any other node by its number."""
    kind = short_name(node.op)
    if not node.ops:
        return f"{kind} {number}"
    return node.ops[0] if node.ops[0].startswith(kind) else f"{node.ops[0]} ({kind})"


def _way(node: ForwardNode, run: RunForward) -> str:
    return node.impls[run.impl].name + (", in place" if run.inplace else "")


def _points(decisions: MemoryDecisions, times: Sequence[int]) -> list[tuple[int, dict[str, int]]]:
    """(time in ns, bytes by category) at each instruction and at the end; categories that stay empty are left out.

    Of many instructions those with most bytes stand for their neighbours, so that the peak stays what it is.
    """
    levels = [level for _, level in curve(decisions.problem, decisions.program)]
    used = [name for name in levels[0] if any(level[name] for level in levels)]
    highest: dict[int, tuple[int, dict[str, int]]] = {}
    now, width = 0, max(1, sum(times) // THIN)
    for level, time in zip(levels, times, strict=True):
        place = now // width if len(levels) > THIN else len(highest)
        before = highest.get(place)
        if before is None or sum(level.values()) > sum(before[1].values()):
            highest[place] = (now if before is None else before[0], {name: level[name] for name in used})
        now += time
    points = list(highest.values())
    return [*points, (now, points[-1][1])]


def _durations(decisions: MemoryDecisions) -> list[int]:
    """ns of each instruction."""
    problem, times, again = decisions.problem, [], False
    for step in decisions.program:
        match step:
            case EnterStage(k):
                again, time = k <= len(problem.bwd), 0
            case RunForward(node, impl, inplace):
                time = problem.fwd[node].time(impl, again, inplace)
            case RunBackward(node, impl):
                time = problem.bwd[node].impls[impl].time_ns
            case Drop():
                time = 0
            case _:
                assert_never(step)
        times.append(time)
    return times


def _backward_start(decisions: MemoryDecisions) -> int:
    stages = [place for place, step in enumerate(decisions.program) if isinstance(step, EnterStage)]
    return stages[1] if len(stages) > 1 else len(decisions.program)


def _bars(decisions: MemoryDecisions, times: Sequence[int], start: int) -> list[Bar]:
    problem, bars = decisions.problem, list[Bar]()
    now, narrow = 0.0, sum(times) / 1e3 / THIN
    for place, step in enumerate(decisions.program):
        match step:
            case RunForward(node):
                group, label = "forward" if place < start else "recompute", short_name(problem.fwd[node].op)
            case RunBackward(node):
                group, label = "backward", short_name(problem.bwd[node].op)
            case EnterStage() | Drop():
                continue
            case _:
                assert_never(step)
        duration = times[place] / 1e3
        last = bars[-1] if bars else None
        if last is not None and last.group == group and max(last.duration_us, duration) < narrow:
            bars[-1] = Bar(group, last.start_us, last.duration_us + duration, group)
        else:
            bars.append(Bar(group, now, duration, group, label))
        now += duration
    order = ("forward", "recompute", "backward")
    return sorted(bars, key=lambda bar: (order.index(bar.row), bar.start_us))
