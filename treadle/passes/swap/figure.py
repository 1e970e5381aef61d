"""A swap plan over time: three streams, and below them the bytes on the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from treadle.planner.documents.scalars import format_time
from treadle.report.levels import level_areas
from treadle.report.svg import PALETTE, HoverArea, bytes_unit, figure, label_colour, text_of, time_unit
from treadle.report.timeline_figure import Bar, bar_area

ROWS = ("compute", "in", "out")
WAITING = "compute waits"
# Roles have the colours that they have in pictures of memory plans.
COLOURS = dict(
    zip(
        ("parameters", "inputs", "state", "activations", "gradients", "operators", WAITING),
        (*PALETTE[:5], "#57606a", "#D55E00"),
        strict=True,
    )
)


def streams_svg(
    bars: Sequence[Bar],
    points: Sequence[tuple[float, Mapping[str, int]]],
    *,
    memory_bytes: int,
    window_us: tuple[float, float],
) -> str:
    """SVG of the part `window_us` of an iteration, in which all `bars` are, in the rows of `ROWS`.

    Groups of bars and the bytes of points, (time in us, bytes by name) at each change in time order, are named as in
    `COLOURS`.
    """
    begin, end = window_us
    scale, unit = time_unit(end)
    top = max(memory_bytes, *(sum(level.values()) for _, level in points))
    amount, of = bytes_unit(top)
    with figure(10, 4.4, nrows=2, sharex=True, height_ratios=(3, 4)) as (drawn, (streams, memory)):
        for group in dict.fromkeys(bar.group for bar in bars):
            chosen = [bar for bar in bars if bar.group == group]
            streams.barh(
                [ROWS.index(bar.row) for bar in chosen],
                [bar.duration_us / scale for bar in chosen],
                left=[bar.start_us / scale for bar in chosen],
                height=0.76,
                color=COLOURS[group],
                edgecolor="white",
                linewidth=0.4 if len(bars) <= 200 else 0.0,
            )
        for bar in bars:
            left, right = max(bar.start_us, begin), min(bar.start_us + bar.duration_us, end)
            if bar.label and (right - left) / (end - begin) * 110 > len(bar.label):
                middle = (left + right) / 2 / scale
                colour = label_colour(COLOURS[bar.group])
                streams.text(
                    middle, ROWS.index(bar.row), bar.label, ha="center", va="center", fontsize=6.5, color=colour
                )
        streams.set_yticks(range(len(ROWS)), ROWS)
        streams.set(ylim=(len(ROWS) - 0.5, -0.5))
        memory.stackplot(
            [time / scale for time, _ in points],
            [[level[name] / amount for _, level in points] for name in points[0][1]],
            colors=[COLOURS[name] for name in points[0][1]],
            step="post",
            linewidth=0,
        )
        memory.axhline(memory_bytes / amount, color="#000000", linewidth=1.6)
        memory.set(
            xlabel=f"predicted time ({unit})",
            ylabel=f"on the device ({of})",
            xlim=(begin / scale, end / scale),
            ylim=(0, top / amount * 1.03),
        )
        present = {bar.group for bar in bars} | set(points[0][1])
        names = [name for name in COLOURS if name in present]
        handles = [streams.barh([0], [0], color=COLOURS[name]) for name in names]
        handles.append(memory.plot([], [], color="#000000", linewidth=1.6)[0])
        streams.legend(
            handles, [*names, "memory for tensors"], loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False
        )
        levels = level_areas([(time / scale, level) for time, level in points], scale * 1e3, {})
        return text_of(
            drawn, [(streams, [bar_area(bar, ROWS.index(bar.row), scale) for bar in bars]), (memory, levels)]
        )


def convergence_svg(curves: Mapping[str, Sequence[tuple[int, float]]], ideal_ms: float) -> str:
    """SVG of the search: (generation, ms) by label, and the time without any copy."""
    with figure(10, 3.2) as (drawn, axes):
        for (label, points), colour in zip(curves.items(), PALETTE, strict=False):
            axes.plot(*zip(*points, strict=True), color=colour, linewidth=1.6, label=label)
        axes.axhline(ideal_ms, color="#57606a", linewidth=1.2, linestyle="--", label="without any copy")
        axes.set(xlabel="generation", ylabel="simulated iteration (ms)", ylim=(0, None))
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(axis="y", color="#eef1f4")
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)
        return text_of(drawn, [(axes, _generations(curves))])


def _generations(curves: Mapping[str, Sequence[tuple[int, float]]]) -> list[HoverArea]:
    """A area for each generation, with its times."""
    times: dict[int, list[str]] = {}
    for label, points in curves.items():
        for number, ms in points:
            times.setdefault(number, []).append(f"{label}: {format_time(ms * 1e6)}")
    return [
        HoverArea(number - 0.5, number + 0.5, "\n".join((f"generation {number}", *lines)))
        for number, lines in times.items()
    ]
