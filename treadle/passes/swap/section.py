"""A swap plan as a section of the report: three streams over time, the bytes on the device, and every copy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter

from treadle.passes.swap.copies import Copy, Covered, copies_of, trips_of, waits_of
from treadle.passes.swap.figure import ROWS, WAITING, convergence_svg, streams_svg
from treadle.planner.documents.plan import Generation, Plan
from treadle.planner.documents.scalars import format_bytes, format_time, many
from treadle.planner.passes.swap.decisions import SwapDecisions
from treadle.planner.passes.swap.timeline_of import begins, dropped, footprints, frees_of, label, start_bytes, tasks_of
from treadle.planner.timeline.simulator import Schedule, simulate
from treadle.report.page import Picture, Section, Table, titled
from treadle.report.timeline_figure import Bar, thinned

THIN = 400
"""The most bars in a row, or changes of the bytes, of a picture; thinner ones are merged."""
VISIBLE = 500
"""A role is drawn from this part of the memory on."""
CLOSER = 40
"""How much closer the second picture looks."""
LARGEST, LONGEST = 60, 20
"""Rows of the tables of trips and of waits."""
NAMES = {
    "parameter": "parameters",
    "state": "state",
    "input": "inputs",
    "activation": "activations",
    "gradient": "gradients",
}


def swap_section(name: str, plan: Plan[SwapDecisions]) -> Section:
    """The section of one swap plan."""
    decisions = plan.decisions
    schedule = simulate(*tasks_of(decisions), start_bytes(decisions))
    copies = copies_of(decisions, schedule)
    pictures = [
        Picture(
            streams_picture(decisions, schedule),
            "One iteration: operators, copies to the device and copies to the host, coloured by what they copy.",
        )
    ]
    close = busiest(copies, schedule.makespan)
    if close is not None:
        picture = streams_picture(decisions, schedule, close)
        pictures.append(Picture(picture, "The part of the iteration in which copies in both directions are busiest."))
    log = plan.provenance.search_log
    if len(log) > 1:
        pictures.append(
            Picture(
                _convergence(log, decisions.problem.ideal_ns),
                "The search: simulated times of each generation of candidates.",
            )
        )
    tables = (
        _roles(decisions, copies),
        _trips(decisions, schedule),
        _waits(decisions, schedule),
        _pool(decisions),
    )
    return Section(titled("Swap", name), _text(decisions, copies), tuple(t for t in tables if t.rows), tuple(pictures))


def streams_picture(decisions: SwapDecisions, schedule: Schedule, window_ns: tuple[int, int] | None = None) -> str:
    """SVG of an iteration, or of a part of it."""
    begin, end = window_ns or (0, max(1, schedule.makespan))
    inside = (begin / 1e3, end / 1e3)
    bars: list[Bar] = []
    for row in ROWS:
        found = _row(decisions, schedule, row)
        near = (bar for bar in found if bar.start_us < inside[1] and bar.start_us + bar.duration_us > inside[0])
        bars += thinned(near, (inside[1] - inside[0]) / THIN)
    return streams_svg(
        bars,
        _drawn(_levels(decisions, schedule), (begin, end), decisions.problem.arena_bytes),
        memory_bytes=decisions.problem.arena_bytes,
        window_us=inside,
    )


def busiest(copies: Sequence[Copy], makespan: int) -> tuple[int, int] | None:
    """The `CLOSER`-th part of the iteration in which copies in both directions run longest; None where a picture of the
    whole shows every copy."""
    if len(copies) <= CLOSER:
        return None
    ways = [Covered((copy.start, copy.end) for copy in copies if copy.kind == way) for way in ("in", "out")]

    def copying(begin: int) -> tuple[int, int, int]:
        times = [covered(begin + width) - covered(begin) for covered in ways]
        return min(times), sum(times), -begin

    width = max(1, makespan // CLOSER)
    begin = max((at * width // 4 for at in range(4 * CLOSER - 3)), key=copying)
    return begin, begin + width


def _text(decisions: SwapDecisions, copies: Sequence[Copy]) -> str:
    problem = decisions.problem
    share = problem.ideal_ns / max(1, decisions.time_ns)
    hidden, copying = sum(copy.hidden_ns for copy in copies), sum(copy.ns for copy in copies)
    moved = (
        f"{format_bytes(decisions.in_bytes)} come in and {format_bytes(decisions.out_bytes)} go out in "
        f"{len(copies):,} copies; operators run during {hidden / copying:.1%} of the time that copies "
        "take."
        if copying
        else "Nothing is copied."
    )
    again = len(decisions.runs) - len({run.op for run in decisions.runs})
    repeated = f"{many(again, 'operator call')} repeated instead of a copy. " if again else ""
    return (
        f"An iteration takes {format_time(decisions.time_ns)}, at {share:.1%} of the speed without any copy "
        f"({format_time(problem.ideal_ns)}); the operators wait {format_time(decisions.idle_ns)}. {moved} "
        f"{repeated}Tensors "
        f"take {format_bytes(decisions.peak_bytes)} at most, of {format_bytes(problem.arena_bytes)} left for them of "
        f"the device's {format_bytes(problem.machine.memory_bytes)}. Allocator {decisions.allocator}, "
        f"{many(len(problem.ops), 'operator')}, {many(len(problem.tensors), 'tensor')}."
    )


def _row(decisions: SwapDecisions, schedule: Schedule, row: str) -> Iterator[Bar]:
    """The bars of one stream in time order, for `compute` with what it waits."""
    free = 0
    found = [place for place, node in enumerate(decisions.nodes) if node.kind == row]
    for place in sorted(found, key=lambda place: (schedule.start[place], schedule.end[place])):
        begin, end = schedule.start[place], schedule.end[place]
        if row == "compute" and begin > free:
            yield Bar(row, free / 1e3, (begin - free) / 1e3, WAITING)
        node = decisions.nodes[place]
        tensor = None if row == "compute" else decisions.problem.tensors[node.item]
        group, name = (NAMES[tensor.role], tensor.id) if tensor else ("operators", decisions.problem.ops[node.item].id)
        if end > begin:
            yield Bar(row, begin / 1e3, (end - begin) / 1e3, group, name)
        free = max(free, end)
    if row == "compute" and schedule.makespan > free:
        yield Bar(row, free / 1e3, (schedule.makespan - free) / 1e3, WAITING)


def _levels(decisions: SwapDecisions, schedule: Schedule) -> list[tuple[int, dict[str, int]]]:
    """(ns, bytes by role) from each change on."""
    problem, size = decisions.problem, footprints(decisions)
    roles = [NAMES[tensor.role] for tensor in problem.tensors]
    level = {name: 0 for name in NAMES.values() if name in roles}
    for resident in decisions.initial:
        level[roles[resident.tensor]] += size[resident.tensor]
    changes = [(0, 0, 0)]
    for place, (node, gone) in enumerate(zip(decisions.nodes, frees_of(decisions), strict=True)):
        changes += [(schedule.start[place], tensor, size[tensor]) for tensor in begins(problem, node)]
        changes += [(schedule.end[place], tensor, -size[tensor]) for tensor in gone]
    found = []
    for time, now in groupby(sorted(changes), key=itemgetter(0)):
        for _, tensor, more in now:
            level[roles[tensor]] += more
        found.append((time, dict(level)))
    return [*found, (schedule.makespan, dict(level))]


def _drawn(
    levels: Sequence[tuple[int, dict[str, int]]], window_ns: tuple[int, int], top: int
) -> list[tuple[float, dict[str, int]]]:
    """The levels in the window, times in us. Where changes are close the fullest moment stands for its neighbours.
    Roles too small to see next to `top` bytes are left out."""
    begin, end = window_ns
    inside = [at for at, (time, _) in enumerate(levels) if begin <= time <= end]
    shown = levels[max(0, inside[0] - 1) : inside[-1] + 2] if inside else levels
    width = max(1, (end - begin) // THIN)
    points: list[tuple[float, dict[str, int]]] = []
    last: tuple[int, dict[str, int]] | None = None
    for place, near in groupby(shown, key=lambda moment: moment[0] // width):
        close = list(near)
        if last is not None and place > last[0] // width + 1:
            points.append((last[0] / 1e3, last[1]))
        points.append((close[0][0] / 1e3, max((level for _, level in close), key=lambda level: sum(level.values()))))
        last = close[-1]
    seen = [name for name in points[0][1] if max(level[name] for _, level in points) * VISIBLE > top]
    return [(time, {name: level[name] for name in seen}) for time, level in points]


def _convergence(log: Sequence[Generation], ideal_ns: int) -> str:
    return convergence_svg(
        {
            "worst": [(one.number, one.worst_ns / 1e6) for one in log],
            "mean": [(one.number, one.mean_ns / 1e6) for one in log],
            "best so far": [(one.number, one.best_ns / 1e6) for one in log],
        },
        ideal_ns / 1e6,
    )


def _roles(decisions: SwapDecisions, copies: Sequence[Copy]) -> Table:
    """What moves, by role."""
    tensors, rows = decisions.problem.tensors, []
    without_copy = Counter[str](tensors[tensor].role for tensor in dropped(decisions))
    for role, name in NAMES.items():
        own = [copy for copy in copies if tensors[copy.tensor].role == role]
        time = sum(copy.ns for copy in own)
        if not own and not without_copy[role]:
            continue
        rows.append(
            (
                name,
                str(sum(tensor.role == role for tensor in tensors)),
                str(len({copy.tensor for copy in own})),
                format_bytes(sum(tensors[copy.tensor].bytes for copy in own if copy.kind == "out")),
                format_bytes(sum(tensors[copy.tensor].bytes for copy in own if copy.kind == "in")),
                str(without_copy[role]),
                f"{sum(copy.hidden_ns for copy in own) / time:.1%}" if time else "",
            )
        )
    head = ("role", "tensors", "copied", "out", "in", "dropped without a copy", "copy time behind operators")
    return Table(head, tuple(rows), "Copies by the role of the tensor.")


def _trips(decisions: SwapDecisions, schedule: Schedule) -> Table:
    """The largest tensors that come and go."""
    problem, rows = decisions.problem, []
    trips = trips_of(decisions, schedule)
    for trip in trips[:LARGEST]:
        tensor = problem.tensors[trip.tensor]
        out = _span(trip.out) or ("" if trip.left is None else f"dropped at {trip.left / 1e6:,.3f}")
        exposed = trip.exposed_ns
        copied = [copy for copy in (trip.out, trip.back) if copy]
        hidden = f"all but {exposed / 1e6:,.3f} ms" if exposed else "yes" if copied else ""
        rows.append((tensor.id, tensor.role, format_bytes(tensor.bytes), out, _span(trip.back), hidden))
    head = ("tensor", "role", "bytes", "out (ms)", "in (ms)", "hidden behind operators")
    many_trips = f"The largest of {len(trips):,}" if len(trips) > LARGEST else "All"
    return Table(head, tuple(rows), f"{many_trips} moves out of the device and back.", words=True)


def _span(copy: Copy | None) -> str:
    return f"{copy.start / 1e6:,.3f} to {copy.end / 1e6:,.3f}" if copy else ""


def _waits(decisions: SwapDecisions, schedule: Schedule) -> Table:
    """Where the compute stream stands still."""
    waits = sorted(waits_of(decisions, schedule), key=lambda wait: (-wait[0], wait[1]))
    rows = [
        (
            label(decisions.problem, decisions.nodes[place]),
            f"{time / 1e6:,.3f}",
            "" if before is None else label(decisions.problem, decisions.nodes[before]),
        )
        for time, place, before in waits[:LONGEST]
    ]
    which = f"The longest of {len(waits):,} waits" if len(waits) > LONGEST else "Waits"
    return Table(("operator", "waits (ms)", "for"), tuple(rows), f"{which} of the operators.", words=True)


def _pool(decisions: SwapDecisions) -> Table:
    """The classes of the pool, those that take most memory first."""
    sizes = decisions.problem.object_sizes
    rows = []
    for number, one in enumerate(decisions.pool, 1):
        own = [size for size, at in zip(sizes, decisions.class_of, strict=True) if at == number]
        span = format_bytes(own[0]) if len(own) == 1 else f"{format_bytes(own[0])} to {format_bytes(own[-1])}"
        whole = one.object_bytes * one.count
        rows.append((whole, (str(number), format_bytes(one.object_bytes), str(one.count), format_bytes(whole), span)))
    rows.sort(key=lambda row: -row[0])
    head = ("class", "bytes of one slot", "slots", "all slots", "tensors")
    return Table(head, tuple(row for _, row in rows), "Slots of the memory pool, by class.")
