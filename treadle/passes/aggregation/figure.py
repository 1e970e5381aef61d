"""Hosts at the points of their embedding, coloured by group; masters are larger the more chunks they add up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import cos, pi, sin

from treadle.report.svg import PALETTE, HoverArea, figure, text_of

INSIDE = 0.2
"""How much distances inside groups count, against those between them, for where the picture looks from."""
LEAST, MOST = 40.0, 420.0
"""Area of a dot in square points: of a host that adds up nothing, and of one that adds up everything."""


@dataclass(frozen=True)
class HostDot:
    """A host: its place, its group, its share of the buffer as a local and as a global master, and what is said about
    it."""

    name: str
    x: float
    y: float
    group: int
    local: float
    top: float
    described: str


def hosts_svg(dots: Sequence[HostDot], groups: int) -> str:
    """SVG of the hosts."""
    with figure(8, 5) as (drawn, axes):
        for number in range(groups):
            own = [dot for dot in dots if dot.group == number]
            colour = PALETTE[number % len(PALETTE)]
            xs, ys = [dot.x for dot in own], [dot.y for dot in own]
            for share, alpha in (("local", 0.35), ("top", 0.9)):
                sizes = [LEAST + (MOST - LEAST) * getattr(dot, share) for dot in own]
                axes.scatter(xs, ys, s=sizes, color=colour, alpha=alpha, linewidths=0)
        for dot in dots:
            axes.annotate(dot.name, (dot.x, dot.y), xytext=(0, 11), textcoords="offset points", ha="center", fontsize=7)
        axes.set(xticks=[], yticks=[], xlabel="distance: what was measured between two hosts")
        axes.margins(0.12)
        axes.set_aspect("equal", adjustable="datalim")
        areas = [HoverArea(dot.x, dot.x, dot.described, dot.y, dot.y, margin=8) for dot in dots]
        return text_of(drawn, [(axes, areas)])


def in_plane(points: Sequence[Sequence[float]], groups: Sequence[Sequence[int]]) -> dict[int, tuple[float, float]]:
    """The points of an embedding as seen from where the groups are farthest apart."""
    import numpy as np

    given = np.asarray(points, dtype=float)
    centred = given - given.mean(0)
    seen = INSIDE * centred
    for group in groups:
        own = list(group)
        seen[own] += (1 - INSIDE) * centred[own].mean(0)
    axes = np.linalg.svd(seen, full_matrices=True)[2][:2]
    axes *= np.where(axes[range(len(axes)), np.abs(axes).argmax(1)] < 0, -1.0, 1.0)[:, None]
    flat = np.zeros((len(given), 2))
    flat[:, : len(axes)] = centred @ axes.T
    return {host: (round(float(x), 4), round(float(y), 4)) for host, (x, y) in enumerate(flat)}


def on_a_circle(groups: Sequence[Sequence[int]]) -> dict[int, tuple[float, float]]:
    """Points for hosts without an embedding: a circle of groups, each a small circle of its hosts."""
    found = {}
    for number, group in enumerate(groups):
        turn = 2 * pi * number / len(groups)
        centre = (cos(turn), sin(turn)) if len(groups) > 1 else (0.0, 0.0)
        for place, host in enumerate(group):
            angle = 2 * pi * place / len(group)
            found[host] = (centre[0] + 0.3 * cos(angle), centre[1] + 0.3 * sin(angle))
    return found
