"""A fusion plan as a section of the report: its stages over time, what it moves, its rivals, what was turned down."""

from __future__ import annotations

from collections.abc import Iterator

from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import many
from treadle.planner.passes.fusion.decisions import FusionDecisions, Reason, StageChoice
from treadle.planner.passes.fusion.notation import legend, notation
from treadle.planner.passes.fusion.parsing import parse
from treadle.report.page import Picture, Section, Table, titled
from treadle.report.timeline_figure import Bar, timeline_svg

MOST_ROWS = 40
"""Launches that get a row of the picture each; of more, those of a kind share one."""


def fusion_section(name: str, plan: Plan[FusionDecisions]) -> Section:
    """Stages over time, a table of them, the rivals, and every transformation that was taken or refused."""
    decisions = plan.decisions
    few = len(decisions.stages) <= MOST_ROWS
    return Section(
        title=titled("Fusion", name),
        text=_text(decisions),
        tables=tuple(_tables(decisions)),
        pictures=(
            Picture(
                timeline_svg([_bar(stage, stage.name if few else stage.kind) for stage in decisions.stages]),
                "Launches of the schedule. One that overlaps starts on what the launch before has finished.",
            ),
        ),
    )


def _text(decisions: FusionDecisions) -> str:
    sizes = ", ".join(f"{name} = {extent:,}" for name, extent in sorted(decisions.extents.items()))
    ranks = many(decisions.ranks, "rank")
    where = f"{many(decisions.groups, 'group')} of {ranks}" if decisions.groups > 1 else ranks
    count = len(decisions.stages)
    launches = "1 launch" if count == 1 else f"{count} launches"
    schedule = notation(parse(decisions.schedule, "schedule"))
    sent_on = (
        f"{decisions.volume_between_groups:,.0f} of them to the next group, " if decisions.volume_between_groups else ""
    )
    words = [
        f"{sizes} on {where}: {schedule}, which is {launches} in {decisions.time_ns / 1000:,.1f} us, predicted.",
        f"({legend(schedule)}.)",
        f"Each rank sends {decisions.volume:,.0f} elements, {sent_on}loads and stores {decisions.traffic:,.0f}, and "
        f"keeps {decisions.state:,.0f} of state.",
    ]
    return " ".join(words)


def _bar(stage: StageChoice, row: str) -> Bar:
    label = "" if stage.name in stage.members else ", ".join(stage.members)
    return Bar(row, stage.start_ns / 1000, (stage.end_ns - stage.start_ns) / 1000, stage.kind, label)


def _tables(decisions: FusionDecisions) -> Iterator[Table]:
    yield Table(
        ("launch", "kind", "operations", "us", "algorithm", "protocol", "channels", "overlaps"),
        tuple(
            (
                stage.name,
                stage.kind,
                ", ".join(stage.members),
                f"{stage.time_ns / 1000:,.2f}",
                stage.algorithm or "-",
                stage.protocol or "-",
                str(stage.channels or "-"),
                "the one before" if stage.overlaps else "-",
            )
            for stage in decisions.stages
        ),
        "Launches in order, with the time of each in isolation.",
        words=True,
    )
    if decisions.rivals:
        yield Table(
            ("schedule", "us", "times as long as the plan"),
            tuple(
                (rival.name, f"{rival.time_ns / 1000:,.2f}", f"{rival.time_ns / max(1, decisions.time_ns):.2f}")
                for rival in sorted(decisions.rivals, key=lambda rival: (rival.time_ns, rival.name))
            ),
            f"The best other schedules, of {decisions.considered:,} that were priced.",
        )
    if decisions.taken:
        rows = [(each.transform, _on(each), each.why) for each in decisions.taken]
        yield Table(("transformation", "on", "why"), tuple(rows), "Transformations taken, in this order.", words=True)
    if decisions.refused:
        refused = dict.fromkeys((each.transform, _on(each), each.why, each.code or "-") for each in decisions.refused)
        yield Table(("transformation", "on", "why", "code"), tuple(refused), "Transformations refused.", words=True)


def _on(reason: Reason) -> str:
    return ", ".join(reason.on)
