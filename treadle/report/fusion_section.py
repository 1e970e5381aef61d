"""A fusion plan as a section of the report: its stages over time, what it moves, its rivals, what was turned down."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from planner.fusion.decisions import FusionDecisions, StageChoice
from planner.plan import Plan
from treadle.cli.output import many
from treadle.report.page import Picture, Section, Table
from treadle.report.timeline_figure import Bar, timeline_svg

MOVING = ("all", "reduce", "broadcast", "send")
"""How kinds of stages that use links begin, apart from the fused ones."""


def fusion_section(name: str, plan: Plan, decisions: FusionDecisions) -> Section:
    """Stages over time, a table of them, the rivals, and every transformation that was taken or refused."""
    return Section(
        title=f"{name}: fusion",
        text=_text(plan, decisions),
        tables=tuple(_tables(decisions)),
        pictures=(
            Picture(
                timeline_svg([_bar(stage) for stage in decisions.stages]),
                "Launches of the schedule. One that overlaps starts on what the launch before has finished.",
            ),
        ),
    )


def _text(plan: Plan, decisions: FusionDecisions) -> str:
    sizes = ", ".join(f"{name} = {extent:,}" for name, extent in sorted(decisions.extents.items()))
    ranks = many(decisions.ranks, "rank")
    where = f"{many(decisions.groups, 'group')} of {ranks}" if decisions.groups > 1 else ranks
    count = len(decisions.stages)
    launches = "1 launch" if count == 1 else f"{count} launches"
    words = [
        f"{sizes} on {where}: {launches} in {decisions.time_ns / 1000:,.1f} us, predicted.",
        f"The proven bound is {plan.certificate.gap:.1%} below.",
        f"Each rank sends {decisions.volume:,.0f} elements, loads and stores {decisions.traffic:,.0f}, and keeps "
        f"{decisions.state:,.0f} of state.",
    ]
    slowest = max(decisions.rivals, key=lambda rival: rival.time_ns, default=None)
    if slowest is not None and decisions.time_ns:
        words.append(f"{slowest.name} takes {slowest.time_ns / decisions.time_ns:.2f} times as long.")
    return " ".join(words)


def _bar(stage: StageChoice) -> Bar:
    row = "communication" if "fused" in stage.kind or stage.kind.startswith(MOVING) else "computation"
    label = stage.name if stage.name in stage.members else f"{stage.name}: {', '.join(stage.members)}"
    return Bar(row, stage.start_ns / 1000, (stage.end_ns - stage.start_ns) / 1000, stage.kind, label)


def _tables(decisions: FusionDecisions) -> Iterator[Table]:
    yield Table(
        ("launch", "kind", "operations", "us", "protocol", "channels", "overlaps"),
        tuple(
            (
                stage.name,
                stage.kind,
                ", ".join(stage.members),
                f"{stage.time_ns / 1000:,.2f}",
                stage.protocol or "-",
                str(stage.channels or "-"),
                "the launch before" if stage.overlaps else "-",
            )
            for stage in decisions.stages
        ),
        "Launches in order; us are of each by itself",
    )
    if decisions.rivals:
        yield Table(
            ("schedule", "us", "times the plan"),
            tuple(
                (rival.name, f"{rival.time_ns / 1000:,.2f}", f"{rival.time_ns / max(1, decisions.time_ns):.2f}")
                for rival in sorted(decisions.rivals, key=lambda rival: (rival.time_ns, rival.name))
            ),
            f"Other schedules, of {decisions.considered:,} that were priced",
        )
    for title, reasons in (("Taken", decisions.taken), ("Refused", decisions.refused)):
        if reasons:
            counts = Counter(
                (each.transform, ", ".join(each.on), " ".join(filter(None, (each.code, each.witness))), each.why)
                for each in reasons
            )
            yield Table(("transformation", "on", "code and witness", "why"), tuple(counts), title, words=True)
