"""Picture of a cost matrix: what each pair of hosts costs, hosts in the order of the groups that were found."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any

import numpy as np

from treadle.planner.documents.cost_matrix import CostMatrix
from treadle.planner.documents.scalars import many
from treadle.probe.pairs_summary import PairsSummary
from treadle.report.svg import HoverArea, styled, text_of

NAMED, HOVERED = 40, 32
"""Up to these numbers of hosts the axes name them, and a pointer shows the numbers of a pair."""
CELL, SIDE = 0.22, (2.6, 6.0)
"""Inches of a host along an axis, and the shortest and longest side of a map."""
MISSING = "#d9d9d9"


def pairs_svg(costs: CostMatrix, summary: PairsSummary) -> str:
    """SVG of a heat map of latencies, and one of rates if there are any; lines separate the groups."""
    count = len(costs.hosts)
    order = list(chain.from_iterable(summary.groups))
    latency = np.array([[np.nan if us is None else us for us in row] for row in costs.latency_us], dtype=float)
    rates = np.full((count, count), np.nan)
    for rate in costs.rates:
        for src, dst in ((rate.src, rate.dst), (rate.dst, rate.src)):
            rates[src, dst] = np.nanmin([rates[src, dst], rate.bytes_per_second / 1e6])
    maps: list[tuple[Any, str, str, str]] = [(latency, "latency", "us", "viridis_r")]
    if costs.rates:
        maps.append((rates, "rate of a stream", "MB/s", "viridis"))
    side = min(SIDE[1], max(SIDE[0], CELL * count))
    names = [costs.hosts[host].name for host in order]
    areas: list[tuple[Any, list[HoverArea]]] = []
    with styled(figsize=((side + 1.6) * len(maps), side + 1.0), layout="constrained") as drawn:
        drawn.suptitle(_title(costs, summary), fontsize=10, fontweight="bold", x=0.008, ha="left")
        for axes, (values, title, unit, colours) in zip(
            drawn.subplots(1, len(maps), squeeze=False)[0], maps, strict=True
        ):
            ordered = values[np.ix_(order, order)]
            np.fill_diagonal(ordered, np.nan)
            _map(drawn, axes, ordered, f"{title} ({unit})", colours)
            _lines(axes, [len(group) for group in summary.groups])
            _names(axes, names)
            areas.append((axes, _hovers(ordered, names, unit) if count <= HOVERED else []))
        return text_of(drawn, areas)


def _title(costs: CostMatrix, summary: PairsSummary) -> str:
    groups = f", {many(len(summary.groups), 'group')} of near hosts" if len(summary.groups) > 1 else ""
    return f"{costs.name}{groups}" + (f", measured {costs.measured_at}" if costs.measured_at else "")


def _map(drawn: Any, axes: Any, values: Any, title: str, colours: str) -> None:
    """Pairs that were not measured, and the diagonal, are grey."""
    import matplotlib as mpl

    colouring = mpl.colormaps[colours].with_extremes(bad=MISSING)
    image = axes.imshow(np.ma.masked_invalid(values), cmap=colouring, interpolation="nearest")
    drawn.colorbar(image, ax=axes, shrink=0.85)
    axes.set_title(title, fontsize=9)


def _lines(axes: Any, sizes: Sequence[int]) -> None:
    for edge in list(accumulate(sizes))[:-1]:
        for line in (axes.axhline, axes.axvline):
            line(edge - 0.5, color="white", linewidth=1.6)


def _names(axes: Any, names: Sequence[str]) -> None:
    if len(names) > NAMED:
        axes.set(xticks=[], yticks=[], xlabel=f"{len(names)} hosts, group after group")
        return
    short = [name if len(name) <= 18 else f"{name[:8]}...{name[-7:]}" for name in names]
    axes.set_xticks(range(len(names)), short, rotation=90, fontsize=7)
    axes.set_yticks(range(len(names)), short, fontsize=7)


def _hovers(values: Any, names: Sequence[str], unit: str) -> list[HoverArea]:
    return [
        HoverArea(x - 0.5, x + 0.5, f"{names[y]} - {names[x]}: {values[y, x]:.4g} {unit}", y - 0.5, y + 0.5)
        for y in range(len(names))
        for x in range(len(names))
        if x != y and not np.isnan(values[y, x])
    ]
