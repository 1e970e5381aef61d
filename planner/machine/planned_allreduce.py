"""What planned allreduces take, by size."""

from __future__ import annotations

from treadle.planner.documents.compression_costs import Curve, Point
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.selection import Selection
from treadle.planner.errors import InputError


def planned_curve(selection: Selection, hardware: Hardware) -> Curve:
    """Time over bytes of the planned allreduces of all ranks. Raises InputError for those of other ranks."""
    ranks = hardware.nodes * hardware.devices_per_node
    found, expected = (selection.collective, selection.ranks, selection.nodes), ("allreduce", ranks, hardware.nodes)
    if found != expected:
        words = ["{} of {} ranks on {} nodes".format(*each) for each in (found, expected)]
        raise InputError(f"found plans for {words[0]}, expected {words[1]}", where="--collectives")
    points: list[Point] = []
    for entry in selection.entries:
        for size, time in zip((entry.min_bytes, entry.max_bytes), entry.predicted_us, strict=True):
            if not points or size > points[-1][0]:
                points.append((size, max(round(1000 * time), points[-1][1] if points else 0)))
    return Curve(points=tuple(points))
