"""Curves of trainings over steps, and the report page that has them next to their tables."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import NamedTuple

from benchmarks.common import Table, cell
from treadle.report import page as report
from treadle.report.svg import PALETTE, figure, text_of


class Curves(NamedTuple):
    """Loss and norm of the residual by step, of one training; losses are means of some steps and begin later."""

    label: str
    losses: Sequence[float]
    residuals: Sequence[float]


def picture(trained: Sequence[Curves]) -> str:
    """SVG of two panels: losses, and norms of residuals where there are any. The first training sets the scale of
    losses, the residuals at a third of the steps that of norms: those of trainings that diverge leave the panel."""
    with figure(11, 4.2, ncols=2) as (drawn, (losses, residuals)):
        for place, each in enumerate(trained):
            colour, style = PALETTE[place % len(PALETTE)], ("-", "--", ":")[place // len(PALETTE) % 3]
            steps = range(1, len(each.residuals) + 1)
            losses.plot(steps[-len(each.losses) :], each.losses, style, color=colour, label=each.label, linewidth=1)
            if any(each.residuals):
                residuals.plot(steps, each.residuals, style, color=colour, linewidth=1)
        thirds = [each.residuals[len(each.residuals) // 3] for each in trained if any(each.residuals)]
        losses.set(ylim=(0, 1.3 * trained[0].losses[0]), xscale="log", xlabel="step", ylabel="loss")
        residuals.set(xscale="log", yscale="log", xlabel="step", ylabel="norm of the residuals of rank 0")
        residuals.set_ylim(top=10 * max(filter(isfinite, thirds), default=1.0))
        for axis in (losses.xaxis, residuals.xaxis, residuals.yaxis):
            axis.set_major_formatter("{x:g}")
        drawn.legend(loc="outside right upper", frameon=False, fontsize=7)
        return text_of(drawn)


def page(shown: Sequence[tuple[Table, Sequence[Curves]]]) -> str:
    """HTML with a section for each table and its trainings."""
    sections = tuple(
        report.Section(
            table.title, " ".join(table.notes), (_printed(table),), (report.Picture(picture(trained), CAPTION),)
        )
        for table, trained in shown
    )
    return report.render(report.Page("Accuracy", "Training with each compressor", sections=sections))


CAPTION = "Mean loss of the last steps, and what payloads have lost. A training ends once it reaches its loss."


def _printed(table: Table) -> report.Table:
    head = tuple(table.rows[0])
    return report.Table(head, tuple(tuple(cell(row[each]) for each in head) for row in table.rows), table.title)
