"""Measured over predicted times on logarithmic axes, one colour for each model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from treadle.planner.documents.scalars import format_time
from treadle.report.svg import PALETTE, HoverArea, figure, text_of

MOST_POINTS = 1000
"""Points of one model that are drawn."""
MARKERS = "os^Dv"
MOST_TEXT = 100
"""Characters of a legend's line and of a hovered name."""
LEAST_NS, MOST_NS = 1e-3, 1e18
"""Times beyond these are drawn at the edge."""


class ChoicePoint(NamedTuple):
    """One choice in ns, and whether it was taken."""

    predicted_ns: float
    measured_ns: float
    name: str
    taken: bool


class ModelPoints(NamedTuple):
    """The points of one model, and its line of the legend."""

    legend: str
    points: tuple[ChoicePoint, ...]


def trust_svg(models: Sequence[ModelPoints]) -> str:
    """SVG of all points; axes of one scale, the diagonal, and a legend below."""
    every = [ns for model in models for point in model.points for ns in _place(point)]
    low, high = min(every) / 1.6, max(every) * 1.6
    with figure(7.0, 5.2 + 0.22 * len(models)) as (drawn, axes):
        axes.plot([low, high], [low, high], color="#808080", linewidth=0.8, linestyle="--", zorder=1)
        handles = []
        for number, model in enumerate(models):
            colour, marker = PALETTE[number % len(PALETTE)], MARKERS[number // len(PALETTE) % len(MARKERS)]
            handles.append(axes.plot([], [], marker, color=colour)[0])
            for taken in (False, True):
                places = [_place(point) for point in model.points if point.taken is taken]
                face = colour if taken else "none"
                axes.plot(
                    [x for x, _ in places],
                    [y for _, y in places],
                    marker,
                    markersize=6,
                    markerfacecolor=face,
                    markeredgecolor=colour,
                    markeredgewidth=1.1,
                    linestyle="none",
                    zorder=2 + taken,
                )
        axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), aspect="equal")
        axes.set(xlabel="predicted", ylabel="measured")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda ns, _: format_time(ns))
            axis.set_minor_formatter(lambda ns, _: "")
        # A label that begins with an underscore would be left out.
        labels = [_brief(model.legend).replace("_", "\u200b_", 1) for model in models]
        drawn.legend(handles, labels, loc="outside lower center", frameon=False, ncols=1)
        drawn.draw_without_rendering()
        areas = [_area(point) for model in models for point in model.points]
        return text_of(drawn, [(axes, areas)])


def _place(point: ChoicePoint) -> tuple[float, float]:
    predicted, measured = (min(max(ns, LEAST_NS), MOST_NS) for ns in (point.predicted_ns, point.measured_ns))
    return predicted, measured


def _area(point: ChoicePoint) -> HoverArea:
    x, y = _place(point)
    times = f"predicted {format_time(point.predicted_ns)}, measured {format_time(point.measured_ns)}"
    return HoverArea(x, x, f"{_brief(point.name)}\n{times}{', taken' if point.taken else ''}", y, y, margin=3.5)


def _brief(text: str) -> str:
    return text if len(text) <= MOST_TEXT else f"{text[: MOST_TEXT - 3]}..."
