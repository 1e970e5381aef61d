"""Plans and traces in a notebook: cards, one picture, a short table, in styles that hold for nothing else."""

from __future__ import annotations

import hashlib

from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import Document, format_bytes, format_time
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import MissingBackendError
from treadle.planner.passes import pass_of
from treadle.report.inline import inlined
from treadle.report.page import Card, Picture, Section, Table, template
from treadle.report.sections import plan_cards, plan_section
from treadle.report.svg import PALETTE, HoverArea, bytes_unit, figure, text_of

MOST_ROWS = 8


def drawn(document: Document) -> str | None:
    """HTML of a plan or a trace for a notebook; None for other kinds."""
    match document:
        case Plan():
            title = pass_of(document).describe(document.decisions)
            return _html(title, plan_cards(document), _plan_section(document))
        case Trace():
            return _html(f"trace {document.name}", *_trace_parts(document))
        case _:
            return None


def _html(title: str, cards: tuple[Card, ...], section: Section) -> str:
    picture = section.pictures[0] if section.pictures else None
    svg = ""
    if picture is not None:
        svg = inlined(picture.svg, f"treadle-{hashlib.sha256(picture.svg.encode()).hexdigest()[:12]}-")
    return template("notebook.html.j2").render(title=title, cards=cards, section=section, picture=picture, svg=svg)


def _plan_section(plan: Plan) -> Section:
    try:
        section = plan_section("plan", plan)
    except MissingBackendError as error:
        return Section("", f"No picture: {error}")
    return Section("", section.text, (), section.pictures)


def _trace_parts(trace: Trace) -> tuple[tuple[Card, ...], Section]:
    from treadle.capture.summary import own_calls, summarize

    summary = summarize(trace, MOST_ROWS)
    facts, peak = summary["trace"], summary["peak"]
    time = facts["time_ns"]
    weights = facts["bytes"].get("parameter", 0)
    cards = (
        Card("operators", f"{sum(facts['ops'].values()):,}", None, f"{trace.mode}, from {trace.source}"),
        Card(
            "parameters",
            format_bytes(weights),
            None,
            f"{facts['parameters']:,} numbers" if facts["parameters"] else "",
        ),
        Card("operators' time", "not known" if time is None else format_time(time), None, f"costs: {facts['costs']}"),
        Card(
            "peak of live tensors",
            format_bytes(peak["bytes"]) if peak else "not known",
            None,
            f"in operator {peak['op']}" if peak else "",
        ),
    )
    rows = tuple(
        (row["operator"] or "-", str(row["calls"]), "-" if row["time_ns"] is None else format_time(row["time_ns"]))
        for row in summary["operators"]
    )
    table = Table(("operator", "calls", "time"), rows, "Operators that take most time.")
    try:
        pictures = (
            (Picture(_curve(own_calls(trace), peak["curve"]), "Bytes of live tensors over the operators."),)
            if peak
            else ()
        )
        return cards, Section("", "", (table,), pictures)
    except MissingBackendError as error:
        return cards, Section("", f"No picture: {error}", (table,))


def _curve(trace: Trace, levels: list[int]) -> str:
    """SVG of live bytes over the ops of `trace`."""
    unit, name = bytes_unit(max(levels, default=0))
    shown = max(1, len(levels) // 160)
    areas = []
    for start in range(0, len(levels), shown):
        part = levels[start : start + shown]
        place = start + part.index(max(part))
        names = f"{trace.ops[place].id}: {format_bytes(levels[place])}, operator {place + 1} of {len(levels)}"
        areas.append(HoverArea(start, start + len(part), names))
    with figure(8, 2.2) as (drawn, axes):
        axes.fill_between(
            range(len(levels) + 1), [*(level / unit for level in levels), 0], step="post", linewidth=0, color=PALETTE[0]
        )
        axes.set(xlabel="operator", ylabel=f"live tensors ({name})", xlim=(0, len(levels)), ylim=(0, None))
        return text_of(drawn, [(axes, areas)])
