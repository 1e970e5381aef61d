"""Exchanges of gradients over time, one below the other: backward pass, encodings and decodings, links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from treadle.report.svg import figure, label_colour, text_of, time_unit
from treadle.report.timeline_figure import Bar, bar_area

LANES = ("backward", "encode, decode", "links")
COLOURS = {
    "backward pass": "#57606a",
    "copy into one buffer": "#F0E442",
    "start of a collective": "#8C6D31",
    "encode on the device": "#D55E00",
    "decode on the device": "#E69F00",
    "encode on the host": "#CC79A7",
    "decode on the host": "#999999",
    "inside nodes": "#56B4E9",
    "between nodes": "#0072B2",
    "all ranks": "#009E73",
}
VISIBLE = 0.005
"""Bars from this share of the axis on have a white edge, which would cover shorter ones."""
SHADE = "#fbe3d6"
"""Behind what comes after the last operator of the backward pass."""


@dataclass(frozen=True)
class ExchangeLanes:
    """One exchange in three lanes; `bars` have a row of LANES and a group of COLOURS, times are from the start of the
    backward pass on."""

    title: str
    bars: tuple[Bar, ...]
    backward_us: float
    """When the last operator of the backward pass ends, encodings in between included."""
    end_us: float


def exchanges_svg(exchanges: Sequence[ExchangeLanes]) -> str:
    """SVG of several exchanges on one axis of time."""
    end = max(1e-3, *(each.end_us for each in exchanges))
    scale, unit = time_unit(end)
    block = len(LANES) + 1
    with figure(10, 0.7 + 0.98 * len(exchanges)) as (drawn, axes):
        areas = []
        for number, exchange in enumerate(exchanges):
            base = number * block
            place = {lane: base + at for at, lane in enumerate(LANES)}
            left, right = exchange.backward_us / scale, exchange.end_us / scale
            axes.fill_between([left, right], base - 0.45, base + len(LANES) - 0.55, color=SHADE, linewidth=0)
            for group in dict.fromkeys(bar.group for bar in exchange.bars):
                chosen = [bar for bar in exchange.bars if bar.group == group]
                axes.barh(
                    [place[bar.row] for bar in chosen],
                    [bar.duration_us / scale for bar in chosen],
                    left=[bar.start_us / scale for bar in chosen],
                    height=0.76,
                    color=COLOURS[group],
                    edgecolor="white",
                    linewidth=[0.4 if bar.duration_us > VISIBLE * end else 0.0 for bar in chosen],
                )
            for bar in exchange.bars:
                if bar.label and bar.duration_us / end * 110 > len(bar.label):
                    middle, colour = (bar.start_us + bar.duration_us / 2) / scale, label_colour(COLOURS[bar.group])
                    axes.text(middle, place[bar.row], bar.label, ha="center", va="center", fontsize=6.5, color=colour)
            axes.text(0, base - 0.55, exchange.title, ha="left", va="bottom", fontsize=8.5, fontweight="bold")
            areas += [bar_area(bar, place[bar.row], scale) for bar in exchange.bars]
        rows = range(len(exchanges) * block)
        axes.set_yticks([row for row in rows if row % block < len(LANES)], LANES * len(exchanges))
        axes.set(xlabel=f"predicted time of the backward pass and the exchange ({unit})", xlim=(0, end / scale * 1.002))
        axes.set(ylim=(len(exchanges) * block - 1.4, -1.3))
        present = {bar.group for exchange in exchanges for bar in exchange.bars}
        names = [name for name in COLOURS if name in present]
        handles = [axes.barh([0], [0], color=COLOURS[name]) for name in names]
        handles.append(axes.fill_between([0, 0], 0, 0, color=SHADE, linewidth=0))
        labels = [*names, "after the backward pass"]
        axes.legend(handles, labels, loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)
        return text_of(drawn, [(axes, areas)])
