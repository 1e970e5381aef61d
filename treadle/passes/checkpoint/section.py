"""A checkpoint plan as a section of the report: how often, what survives, what it costs, when what is sent."""

from __future__ import annotations

from treadle.passes.checkpoint import words
from treadle.passes.checkpoint.figure import DRAWN_MACHINES, bars_of, holders_svg
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_time
from treadle.planner.passes.checkpoint.decisions import CheckpointDecisions
from treadle.planner.passes.checkpoint.events import happens, tasks_of
from treadle.report.page import Picture, Section, Table, titled
from treadle.report.timeline_figure import timeline_svg


def checkpoint_section(name: str, plan: Plan[CheckpointDecisions]) -> Section:
    """The section of one checkpoint plan."""
    return Section(
        titled("Checkpoints in memory", name),
        "; ".join(f"{what}: {text}" for what, text in words.lines(plan)) + ".",
        (_survival(plan), _waste(plan), _spans(plan)),
        (_iteration(plan.decisions), _holders(plan.decisions)),
    )


def _iteration(decisions: CheckpointDecisions) -> Picture:
    schedule = happens(decisions)
    caption = (
        "An iteration with a checkpoint, simulated with the queue of the links, buffers and copies to the host: it "
        f"ends after {format_time(schedule.makespan)}, planned {format_time(decisions.checkpoint_ns)}."
    )
    return Picture(timeline_svg(bars_of(tasks_of(decisions), schedule)), caption)


def _holders(decisions: CheckpointDecisions) -> Picture:
    machines = decisions.problem.machines
    left = f" The first {DRAWN_MACHINES} of {machines} are drawn." if machines > DRAWN_MACHINES else ""
    racks = " Lines part failure domains." if decisions.problem.domains else ""
    return Picture(holders_svg(decisions), f"Which machine holds whose state.{racks}{left}")


def _survival(plan: Plan[CheckpointDecisions]) -> Table:
    caption = "How likely a copy of every state is left in memory, each set of what is lost alike."
    return _table(words.SURVIVAL_HEAD, words.survival_rows(plan), caption)


def _waste(plan: Plan[CheckpointDecisions]) -> Table:
    caption = "What a failure wastes in the mean, and which share of the time trains."
    return _table(words.WASTE_HEAD, words.waste_rows(plan), caption)


def _spans(plan: Plan[CheckpointDecisions]) -> Table:
    caption = "The longest idle spans of the links, and what is sent in them."
    return _table(words.SPAN_HEAD, words.span_rows(plan), caption)


def _table(head: tuple[str, ...], rows: list[tuple[object, ...]], caption: str) -> Table:
    return Table(head, tuple(tuple(map(str, row)) for row in rows), caption)
