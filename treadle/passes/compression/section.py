"""A compression plan as a section of the report: three lanes over time for it and for each rival, and every group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from treadle.passes.compression.figure import LANES, ExchangeLanes, exchanges_svg
from treadle.passes.compression.words import compressed, compressors_of, exposed_ns, name_of, reason, sent
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_bytes, format_time, many
from treadle.planner.passes.compression.decisions import CompressionDecisions, GradientGroup
from treadle.planner.passes.compression.problem import DTYPE_BYTES, CompressionProblem
from treadle.planner.passes.compression.timeline_of import tasks_of
from treadle.planner.timeline.simulator import Schedule, Task, simulate
from treadle.report.page import Picture, Section, Table, titled
from treadle.report.timeline_figure import Bar, thinned

THIN = 400
"""The most bars in a lane; thinner ones are merged."""
LINKS = {"flat": "all ranks", "intra": "inside nodes", "inter": "between nodes"}


def compression_section(name: str, plan: Plan[CompressionDecisions]) -> Section:
    """The section of one compression plan."""
    decisions = plan.decisions
    candidates = {"this plan": decisions.groups, **{name_of(rival): rival.groups for rival in decisions.rivals}}
    exchanges = {label: exchange_of(decisions.problem, groups, label) for label, groups in candidates.items()}
    end = max(each.end_us for each in exchanges.values())
    drawn = [
        ExchangeLanes(
            each.title,
            tuple(bar for lane in LANES for bar in thinned((b for b in each.bars if b.row == lane), end / THIN)),
            each.backward_us,
            each.end_us,
        )
        for each in exchanges.values()
    ]
    caption = (
        "The plan, and what it was compared with. An encoding on the device delays the backward pass, so there is a "
        "gap in its lane; what lies on the shaded ground is not hidden behind the backward pass."
    )
    tables = (*((_rivals(decisions),) if decisions.rivals else ()), _groups(decisions))
    pictures = (Picture(exchanges_svg(drawn), caption),)
    return Section(titled("Compression", name), _text(plan), tables, pictures)


def exchange_of(problem: CompressionProblem, groups: Sequence[GradientGroup], label: str) -> ExchangeLanes:
    """The three lanes of one choice of groups."""
    tasks, resources = tasks_of(problem, groups)
    schedule = simulate(tasks, resources)
    backward = schedule.end[len(problem.gradients) - 1] / 1e3
    after = format_time(schedule.makespan - schedule.end[len(problem.gradients) - 1])
    whole = format_time(problem.forward_ns + schedule.makespan)
    title = f"{label}: {whole} an iteration, {after} of it after the backward pass"
    bars = sorted(_bars(problem, groups, tasks, schedule), key=lambda bar: bar.start_us)
    return ExchangeLanes(title, tuple(bars), backward, schedule.makespan / 1e3)


def _bars(
    problem: CompressionProblem, groups: Sequence[GradientGroup], tasks: Sequence[Task], schedule: Schedule
) -> Iterator[Bar]:
    """A bar for each task: gradients by name, steps by the gradients of their group."""
    count = len(problem.gradients)
    for place, (task, start) in enumerate(zip(tasks, schedule.start, strict=True)):
        what, _, rest = task.name.partition(" ")
        word, _, where = what.partition("@")
        if place < count:
            lane, colour, label = LANES[0], "backward pass", rest
        elif word in ("pack", "issue", "compress", "decompress"):
            names = {
                "pack": "copy into one buffer",
                "issue": "start of a collective",
                "compress": f"encode on the {where}",
            }
            lane, colour = LANES[1], names.get(word, f"decode on the {where}")
            label = f"{colour.split()[0]} {span_of(groups[int(rest)])}"
        else:
            lane, colour, label = LANES[2], LINKS[where], f"{word} {span_of(groups[int(rest)])}"
        if task.duration:
            yield Bar(lane, start / 1e3, task.duration / 1e3, colour, label)


def span_of(group: GradientGroup) -> str:
    """Numbers of its gradients: `3` or `3-7`."""
    return str(group.first) if group.first == group.last else f"{group.first}-{group.last}"


def _text(plan: Plan[CompressionDecisions]) -> str:
    decisions = plan.decisions
    problem, found = decisions.problem, compressed(decisions)
    ranks = f"{many(problem.machines, 'node')} of {many(problem.devices, 'rank')}"
    gradients = len(problem.gradients)
    if found.groups:
        used = compressors_of(found.groups)
        what = f"{found.gradients} of {many(gradients, 'gradient')} are compressed: {used}."
    else:
        what = f"Nothing is compressed: {reason(plan)}."
    exposed = format_time(exposed_ns(problem, decisions.time_ns))
    plain = format_time(exposed_ns(problem, decisions.uncompressed_ns))
    return (
        f"{what} On {ranks} an iteration is predicted to take {format_time(decisions.time_ns)}, and "
        f"{format_time(decisions.uncompressed_ns)} with every gradient sent as it is and alone. The exchange adds "
        f"{exposed} to the operators ({plain} uncompressed); a rank sends {sent(decisions)}."
    )


def _rivals(decisions: CompressionDecisions) -> Table:
    problem, rows = decisions.problem, []
    candidates = [("this plan", decisions.groups, decisions.time_ns)]
    candidates += [(name_of(rival), rival.groups, rival.time_ns) for rival in decisions.rivals]
    for label, groups, time in candidates:
        encoded = sum(group.last - group.first + 1 for group in groups if group.compressor is not None)
        tasks, _ = tasks_of(problem, groups)
        work = tasks[len(problem.gradients) :]
        coding = {
            place: sum(task.duration for task in work if task.resources[0].startswith(place))
            for place in ("device", "host")
        }
        rows.append(
            (
                label,
                format_time(time),
                f"{decisions.uncompressed_ns / max(1, time):.2f}x",
                f"{encoded} of {len(problem.gradients)}",
                str(len(groups)),
                format_time(coding["device"]),
                format_time(coding["host"]),
                format_time(exposed_ns(problem, time)),
            )
        )
    head = ("choice", "iteration", "speed-up", "compressed", "groups", "encode, decode on "
            "the device", "on the host", "added by the exchange")  # fmt: skip
    return Table(head, tuple(rows), "The plan and what it was compared with.")


def _groups(decisions: CompressionDecisions) -> Table:
    rows = []
    for group in decisions.groups:
        inside = decisions.problem.gradients[group.first : group.last + 1]
        names = inside[0].name if len(inside) == 1 else f"{inside[0].name} to {inside[-1].name}"
        size = format_bytes(DTYPE_BYTES * decisions.problem.elements(group.first, group.last))
        rows.append((span_of(group), names, size, group.compressor or "as it is", ", ".join(group.steps)))
    head = ("group", "gradients", "bytes", "compressor", "steps")
    return Table(head, tuple(rows), "Groups of gradients, in the order in which they become ready.", words=True)
