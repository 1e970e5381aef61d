"""Pictures of a server plan: how long each part is busy in an exchange, and which core handles which keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from treadle.planner.documents.scalars import format_bytes, format_time, many
from treadle.planner.passes.server.decisions import PartLoad
from treadle.report.svg import PALETTE, HoverArea, bytes_unit, figure, label_colour, text_of, time_unit

SERVER, OTHER, BOTTLENECK, INK = PALETTE[4], PALETTE[1], PALETTE[5], "#1b1f24"
REST = PALETTE[7]
KEY_COLOURS = (PALETTE[0], PALETTE[1], PALETTE[2], PALETTE[3], PALETTE[4], PALETTE[5], PALETTE[6])
ROW = 0.2
INSIDE, GAP = 0.5, 4
"""Bars longer than this share of the axis have their text inside; points between a text and the end of its bar."""


@dataclass(frozen=True)
class CoreRow:
    """A core and the bytes that it handles of each key that has a colour, those of all others last."""

    label: str
    bytes: tuple[int, ...]
    chunks: int


def parts_svg(parts: Sequence[PartLoad], bottleneck: PartLoad | None, compute_ns: int) -> str:
    """SVG of the busy time of each part from top to bottom, the bottleneck marked; the computation, if any, is a
    line."""
    longest = max(1, *(part.time_ns for part in parts))
    end = max(longest, compute_ns) if compute_ns <= 2 * longest else longest
    scale, unit = time_unit(end / 1e3)
    per = 1e3 * scale
    with figure(10, 0.8 + ROW * len(parts)) as (drawn, axes):
        for row, part in enumerate(parts):
            colour = BOTTLENECK if part is bottleneck else OTHER if _of_others(part.part) else SERVER
            axes.barh(row, part.time_ns / per, height=0.72, color=colour)
            inside = part.time_ns > INSIDE * end
            axes.annotate(
                _load(part),
                (part.time_ns / per, row),
                (-GAP if inside else GAP, 0),
                textcoords="offset points",
                va="center",
                ha="right" if inside else "left",
                fontsize=7,
                fontweight="bold" if part is bottleneck else "normal",
                color=label_colour(colour) if inside else INK,
            )
        shown = 0 < compute_ns <= end
        if shown:
            axes.axvline(compute_ns / per, color=INK, linewidth=1.1, linestyle="--")
        axes.set_yticks(range(len(parts)), [part.part for part in parts])
        for tick, part in zip(axes.get_yticklabels(), parts, strict=True):
            tick.set(fontsize=8, fontweight="bold" if part is bottleneck else "normal")
        axes.set(xlabel=f"busy in an exchange of all workers ({unit})", xlim=(0, 1.02 * end / per))
        axes.set_ylim(len(parts) - 0.4, -0.6)
        colours = {"bottleneck": BOTTLENECK, "busiest server": SERVER, "workers, racks, all cores": OTHER}
        handles = [axes.barh([0], [0], color=colour) for colour in colours.values()]
        lines = [axes.plot([], [], color=INK, linewidth=1.1, linestyle="--")[0]] * shown
        labels = [*colours, *["computation"] * shown]
        axes.legend([*handles, *lines], labels, loc="upper left", bbox_to_anchor=(1.16, 1), frameon=False)
        areas = [
            HoverArea(0, part.time_ns / per, f"{part.part}: {_load(part)}", row - 0.4, row + 0.4)
            for row, part in enumerate(parts)
        ]
        return text_of(drawn, [(axes, areas)])


def chunks_svg(rows: Sequence[CoreRow], keys: Sequence[str]) -> str:
    """SVG of the bytes on each core, in colours of `keys`; the last of them stands for all that have none of their
    own."""
    totals = [sum(row.bytes) for row in rows]
    size, unit = bytes_unit(max(totals))
    mean = sum(totals) / len(rows) / size
    with figure(10, 0.8 + ROW * len(rows)) as (drawn, axes):
        areas, lefts = [], [0.0] * len(rows)
        for place, name in enumerate(keys):
            colour = REST if place == len(KEY_COLOURS) else KEY_COLOURS[place]
            widths = [row.bytes[place] / size for row in rows]
            axes.barh(range(len(rows)), widths, left=lefts, height=0.72, color=colour, label=name)
            areas += [
                HoverArea(
                    left, left + width, f"{row.label}\n{name}: {format_bytes(row.bytes[place])}", at - 0.4, at + 0.4
                )
                for at, (row, left, width) in enumerate(zip(rows, lefts, widths, strict=True))
                if width
            ]
            lefts = [left + width for left, width in zip(lefts, widths, strict=True)]
        axes.axvline(mean, color=INK, linewidth=1.1, linestyle="--", label="an even share")
        for at, (row, total) in enumerate(zip(rows, totals, strict=True)):
            axes.annotate(
                f"{format_bytes(total)}, {many(row.chunks, 'chunk')}",
                (max(total / size, mean), at),
                (GAP, 0),
                textcoords="offset points",
                va="center",
                fontsize=7,
            )
        axes.set_yticks(range(len(rows)), [row.label for row in rows], fontsize=8)
        axes.set(xlabel=f"gradients of one worker ({unit})", ylim=(len(rows) - 0.4, -0.6))
        axes.legend(loc="upper left", bbox_to_anchor=(1.16, 1), frameon=False)
        return text_of(drawn, [(axes, areas)])


def _of_others(name: str) -> bool:
    return name in ("worker link", "worker core", "shared cores", "rack link")


def _load(part: PartLoad) -> str:
    """Time, and bytes against the rate if they are known."""
    if part.load is None or part.rate is None:
        return format_time(part.time_ns)
    return f"{format_time(part.time_ns)}: {format_bytes(part.load)} at {part.rate / 1e9:.4g} GB/s"
