"""Tasks on resources over time, as bars in rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from treadle.planner.documents.scalars import format_time
from treadle.report.svg import PALETTE, HoverArea, figure, label_colour, text_of, time_unit


@dataclass(frozen=True)
class Bar:
    """One task: `row` is its resource, `group` decides its colour, times are in us."""

    row: str
    start_us: float
    duration_us: float
    group: str
    label: str = ""

    @property
    def described(self) -> str:
        """Name, group and times, for the one who points at it."""
        name = self.label if self.label == self.group else f"{self.label or 'several'} ({self.group})"
        times = f"{format_time(self.duration_us * 1e3)} from {format_time(self.start_us * 1e3)} on"
        return f"{name}\n{self.row}\n{times}"


def timeline_svg(bars: Sequence[Bar]) -> str:
    """SVG of `bars`; rows from top to bottom in order of appearance, labels where they fit, a legend of groups unless
    they are the rows."""
    rows = list(dict.fromkeys(bar.row for bar in bars))
    groups = list(dict.fromkeys(bar.group for bar in bars))
    end = max((bar.start_us + bar.duration_us for bar in bars), default=1.0)
    scale, unit = time_unit(end)
    colours = {group: PALETTE[place % len(PALETTE)] for place, group in enumerate(groups)}
    width = 10.0
    gap = 0.4 if len(bars) <= 200 else 0.0
    with figure(width, 0.9 + 0.28 * len(rows)) as (drawn, axes):
        for group, colour in colours.items():
            chosen = [bar for bar in bars if bar.group == group]
            axes.barh(
                [rows.index(bar.row) for bar in chosen],
                [bar.duration_us / scale for bar in chosen],
                left=[bar.start_us / scale for bar in chosen],
                height=0.72,
                color=colour,
                edgecolor="white",
                linewidth=gap,
                label=group,
            )
        for bar in bars:
            if bar.label and bar.duration_us / end * width * 11 > len(bar.label):
                middle = (bar.start_us + bar.duration_us / 2) / scale
                axes.text(
                    middle,
                    rows.index(bar.row),
                    bar.label,
                    ha="center",
                    va="center",
                    fontsize=6.5,
                    color=label_colour(colours[bar.group]),
                )
        axes.set_yticks(range(len(rows)), rows)
        axes.set(xlabel=f"predicted time ({unit})", xlim=(0, end / scale), ylim=(len(rows) - 0.5, -0.5))
        if len(groups) > 1 and groups != rows:
            axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)
        areas = [bar_area(bar, rows.index(bar.row), scale) for bar in bars]
        return text_of(drawn, [(axes, areas)])


def bar_area(bar: Bar, place: int, scale: float) -> HoverArea:
    """The area of a bar in row `place`, on an axis in units of `scale` us."""
    left, right = bar.start_us / scale, (bar.start_us + bar.duration_us) / scale
    return HoverArea(left, right, bar.described, place - 0.4, place + 0.4)


def thinned(bars: Iterable[Bar], narrow_us: float) -> Iterator[Bar]:
    """The same with bars that would be too thin put together. Of a run of these the group that takes most time gives
    the colour, and its part of the run the length, so that a row stays as full as it is."""
    run: list[Bar] = []
    for bar in bars:
        if run and bar.start_us + bar.duration_us - run[0].start_us > narrow_us:
            yield from _together(run)
            run = []
        run.append(bar)
    yield from _together(run)


def _together(run: Sequence[Bar]) -> Iterator[Bar]:
    if len(run) <= 1:
        yield from run
        return
    times: dict[str, float] = {}
    for bar in run:
        times[bar.group] = times.get(bar.group, 0.0) + bar.duration_us
    now = run[0].start_us
    for group, time in sorted(times.items(), key=lambda pair: -pair[1]):
        yield Bar(run[0].row, now, time, group)
        now += time
