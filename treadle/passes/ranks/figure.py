"""What hops between places cost, with the hosts as they were handed out and in the planned order: two heat maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from treadle.planner.documents.scalars import format_time
from treadle.planner.passes.ranks.cost import OrderCosts
from treadle.planner.passes.ranks.decisions import RanksDecisions
from treadle.report.svg import HoverArea, styled, text_of, time_unit

CELLS = 32
"""Cells along an axis; of more hosts a cell is the mean of several places in a row."""
NAMED = 24
"""Up to this number of hosts the axes name them."""
MOST_MARKS = 200
"""Pairs of places between which the pattern sends that are marked."""
MARK = "#D55E00"


def orders_svg(decisions: RanksDecisions) -> str:
    """SVG of both maps on one scale of colours; circles mark the places between which the pattern sends."""
    costs = OrderCosts(decisions.problem)
    hop = int(costs.hops.bytes.argmax()) if len(costs.hops.bytes) else None
    latency = costs.latency if hop is None else costs.matrix(hop, "sum")
    pairs = {*zip(costs.hops.src.tolist(), costs.hops.dst.tolist(), strict=True)}
    names = [host.name for host in decisions.problem.hosts]
    count = len(names)
    scale, unit = time_unit(float(latency.max()) / 1e3)
    top = float(latency.max()) / (1e3 * scale)
    areas = []
    with styled(figsize=(10, 4.9), layout="compressed") as drawn:
        plots = drawn.subplots(1, 2)
        for axes, title, order in (
            (plots[0], "as handed out", list(range(count))),
            (plots[1], "planned order", list(decisions.order)),
        ):
            laid = latency[np.ix_(order, order)]
            cells = _cells(laid / (1e3 * scale))
            edges = np.linspace(-0.5, count - 0.5, len(cells) + 1)
            mesh = axes.pcolormesh(edges, edges, cells, cmap="viridis_r", vmin=0, vmax=top or 1)
            axes.set(aspect="equal", ylim=(count - 0.5, -0.5))
            axes.set_title(title, fontsize=9)
            axes.set_xlabel(f"place, {unit} of a hop")
            if count <= CELLS and len(pairs) <= MOST_MARKS:
                marks = [[pair[end] for pair in sorted(pairs) if pair[0] != pair[1]] for end in (1, 0)]
                axes.plot(*marks, linestyle="none", marker="o", markersize=3.5, color="none", markeredgecolor=MARK)
            if count <= NAMED:
                axes.set_yticks(range(count), [_short(names[host]) for host in order], fontsize=7)
            areas.append((axes, _hovers(laid, [names[host] for host in order])))
        bar = drawn.colorbar(mesh, ax=plots, shrink=0.85)
        bar.solids.set_rasterized(False)  # a page shows no images
        return text_of(drawn, areas)


def _cells(values: Any) -> Any:
    """At most CELLS x CELLS means of neighbouring places; hops from a host to itself count for nothing."""
    count = len(values)
    values = np.where(np.eye(count, dtype=bool), np.nan, values)
    groups = np.array_split(np.arange(count), min(count, CELLS))
    with np.errstate(invalid="ignore"):
        found = [[_mean(values[np.ix_(rows, columns)]) for columns in groups] for rows in groups]
    return np.ma.masked_invalid(np.array(found))


def _mean(values: Any) -> float:
    return float(np.nanmean(values)) if not np.isnan(values).all() else float("nan")


def _short(name: str) -> str:
    return name if len(name) <= 18 else f"{name[:8]}...{name[-7:]}"


def _hovers(laid: Any, names: Sequence[str]) -> list[HoverArea]:
    count = len(names)
    return [
        HoverArea(x - 0.5, x + 0.5, f"{names[y]} - {names[x]}: {format_time(int(laid[y, x]))}", y - 0.5, y + 0.5)
        for y in range(count if count <= NAMED else 0)
        for x in range(count)
        if x != y
    ]
