"""Bytes over time as areas: every category by name, and the sum of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from treadle.planner.documents.scalars import format_bytes, format_time
from treadle.report.svg import HoverArea

MOST_AREAS = 160


def level_areas(
    points: Sequence[tuple[float, Mapping[str, int]]], scale_ns: float, names: Mapping[str, str]
) -> list[HoverArea]:
    """Spots side by side below a curve.

    points: (time in units of `scale_ns`, bytes by category from then on), in time order. Of close ones the fullest
    stands for its neighbours. names: of categories that are printed as other words.
    """
    if not points:
        return []
    width = (points[-1][0] - points[0][0]) / MOST_AREAS
    groups: list[list[tuple[float, Mapping[str, int]]]] = []
    for point in points:
        if not groups or point[0] - groups[-1][0][0] >= width:
            groups.append([])
        groups[-1].append(point)
    ends = [*(group[0][0] for group in groups), points[-1][0]]
    areas = []
    for (left, right), group in zip(pairwise(ends), groups, strict=True):
        time, level = max(group, key=lambda point: sum(point[1].values()))
        lines = [
            f"{names.get(name, name)}: {format_bytes(size)}" for name, size in reversed(list(level.items())) if size
        ]
        total = f"{format_bytes(sum(level.values()))} at {format_time(time * scale_ns)}"
        areas.append(HoverArea(left, right, "\n".join((total, *lines))))
    return areas
