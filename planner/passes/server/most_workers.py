"""How many workers the servers carry before they are the bottleneck."""

from __future__ import annotations

from dataclasses import replace

from treadle.planner.passes.server.layout import ServerLayout
from treadle.planner.passes.server.prices import busiest, rack_parts, slowest, worker_parts
from treadle.planner.passes.server.problem import MOST_WORKERS


def most_workers(layout: ServerLayout) -> int | None:
    """The most workers with this chunk map for which nothing of a server or of a rack's link takes longer than a
    worker's link, core and computation do; None where all that a problem may have are not too many."""
    racks = layout.problem.racks
    allowed = max(layout.problem.compute_ns, slowest([*worker_parts(layout)]))

    def carried(each: int) -> bool:
        asked = replace(layout, workers=each * racks)
        return slowest([*busiest(asked), *rack_parts(asked)]) <= allowed

    low, high = 0, MOST_WORKERS // racks
    if carried(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if carried(middle) else (low, middle)
    return low * racks
