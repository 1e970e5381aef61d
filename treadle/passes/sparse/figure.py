"""What each scheme takes for one gradient: bars of time between nodes and on them, the chosen one marked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from treadle.planner.documents.scalars import format_time
from treadle.report.svg import PALETTE, HoverArea, figure, text_of, time_unit

LINK, WORK = PALETTE[0], PALETTE[1]
CHOSEN, DENSE, LEAST = "#009E73", "#1b1f24", "#D55E00"
CUT = 4
"""The axis ends at this many times of the chosen scheme; longer bars are cut, so that short ones can be compared."""
FAINT = 0.35
"""Opacity of schemes that the plan may not choose."""


@dataclass(frozen=True)
class SchemeBar:
    """One scheme; `allowed` says whether its sums add the participants in an order that the plan may have.

    What a node does on its own is `work_ns`: kernels, and exchanges between its ranks.
    """

    name: str
    link_ns: int
    work_ns: int
    chosen: bool = False
    allowed: bool = True

    @property
    def time_ns(self) -> int:
        return self.link_ns + self.work_ns

    @property
    def label(self) -> str:
        return f"{self.name} \N{BLACK RIGHT-POINTING TRIANGLE}" if self.chosen else self.name

    @property
    def described(self) -> str:
        """Name and times, for the one who points at it."""
        note = "" if self.allowed else "\nsums in another order, which the plan may not have"
        parts = f"{format_time(self.link_ns)} between nodes, {format_time(self.work_ns)} on the node"
        return f"{self.name}: {format_time(self.time_ns)}\n{parts}{note}"


def schemes_svg(bars: Sequence[SchemeBar], dense_ns: int, least_ns: int) -> str:
    """SVG of the schemes of one gradient, from top to bottom, with the dense exchange and the lower bound as lines."""
    longest = max(1, *(bar.time_ns for bar in bars))
    end = min(longest, CUT * max((bar.time_ns for bar in bars if bar.chosen), default=longest) or longest)
    scale, unit = time_unit(end / 1e3)
    per = 1e3 * scale
    rows = range(len(bars))
    with figure(10, 0.75 + 0.215 * len(bars)) as (drawn, axes):
        for ns, before, colour in (("link_ns", None, LINK), ("work_ns", "link_ns", WORK)):
            for faint in (False, True):
                own = [(row, bar) for row, bar in enumerate(bars) if bar.allowed is not faint]
                axes.barh(
                    [row for row, _ in own],
                    [getattr(bar, ns) / per for _, bar in own],
                    left=[getattr(bar, before) / per if before else 0.0 for _, bar in own],
                    height=0.72,
                    color=colour,
                    alpha=FAINT if faint else None,
                )
        lines = [axes.axvline(dense_ns / per, color=DENSE, linewidth=1.1)] if dense_ns <= end else []
        lines.append(axes.axvline(least_ns / per, color=LEAST, linewidth=1.1, linestyle="--"))
        for row, bar in enumerate(bars):
            if bar.time_ns <= end:
                axes.text(bar.time_ns / per, row, f" {format_time(bar.time_ns)}", va="center", fontsize=7)
            else:
                words = f" {format_time(bar.time_ns)} \N{RIGHTWARDS ARROW}"
                axes.text(end / per, row, words, va="center", fontsize=7, fontweight="bold")
        axes.set_yticks(rows, [bar.label for bar in bars])
        for tick, bar in zip(axes.get_yticklabels(), bars, strict=True):
            tick.set(
                color=CHOSEN if bar.chosen else "#57606a" if not bar.allowed else "#1b1f24",
                fontweight="bold" if bar.chosen else "normal",
                fontsize=8,
            )
        axes.set(xlabel=f"predicted time ({unit})", xlim=(0, end / per), ylim=(len(bars) - 0.4, -0.6))
        handles = [axes.barh([0], [0], color=LINK), axes.barh([0], [0], color=WORK), *lines]
        labels = ["links between nodes", "on the node", *(["dense"] if dense_ns <= end else []), "lower bound"]
        if not all(bar.allowed for bar in bars):
            handles.append(axes.barh([0], [0], color=LINK, alpha=FAINT))
            labels.append("sums in another order")
        axes.legend(handles, labels, loc="upper left", bbox_to_anchor=(1.12, 1), frameon=False)
        areas = [
            HoverArea(0, min(bar.time_ns, end) / per, bar.described, row - 0.4, row + 0.4)
            for row, bar in enumerate(bars)
        ]
        return text_of(drawn, [(axes, areas)])
