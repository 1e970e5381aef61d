"""What a swap plan's copies cost: when they run, and how much of them is hidden behind operators."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from treadle.planner.passes.swap.decisions import SwapDecisions
from treadle.planner.timeline.simulator import Schedule


@dataclass(frozen=True)
class Copy:
    """One copy of tensor `tensor`; `hidden_ns` of its time an operator runs meanwhile. Times in ns."""

    tensor: int
    kind: str
    start: int
    end: int
    hidden_ns: int

    @property
    def ns(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class Trip:
    """A tensor leaves the device and comes back; a persistent one comes back in the next iteration where it has to.

    Without `out` it is dropped, or was not there when the iteration started; without `back` it does not come back.
    """

    tensor: int
    out: Copy | None
    back: Copy | None
    left: int | None
    """When it leaves, copied or dropped, in ns; None where it was not there."""

    @property
    def exposed_ns(self) -> int:
        """Time of copies during which no operator runs."""
        return sum(copy.ns - copy.hidden_ns for copy in (self.out, self.back) if copy)


def copies_of(decisions: SwapDecisions, schedule: Schedule) -> list[Copy]:
    """Every copy, in the order of the plan's nodes."""
    ran = [
        (schedule.start[place], schedule.end[place])
        for place, node in enumerate(decisions.nodes)
        if node.kind == "compute" and schedule.end[place] > schedule.start[place]
    ]
    covered = Covered(ran)
    return [
        Copy(node.item, node.kind, begin, end, covered(end) - covered(begin))
        for node, begin, end in zip(decisions.nodes, schedule.start, schedule.end, strict=True)
        if node.kind in ("in", "out")
    ]


def trips_of(decisions: SwapDecisions, schedule: Schedule) -> list[Trip]:
    """All trips, those with most bytes first, then the most exposed."""
    copies = iter(copies_of(decisions, schedule))
    trips: list[Trip] = []
    away: dict[int, tuple[Copy | None, int]] = {}
    early: dict[int, Copy] = {}
    for place, node in enumerate(decisions.nodes):
        if node.kind in ("in", "out"):
            copy = next(copies)
        if node.kind == "out" and node.early:
            early[node.item] = copy
        elif node.kind == "out":
            away[node.item] = (copy, copy.start)
        elif node.kind == "drop":
            away[node.item] = (early.pop(node.item, None), schedule.start[place])
        elif node.kind == "in":
            out, left = away.pop(node.item, (None, None))
            trips.append(Trip(node.item, out, copy, left))
    trips += [Trip(tensor, out, None, left) for tensor, (out, left) in away.items()]
    size = decisions.problem.tensors
    return sorted(trips, key=lambda trip: (-size[trip.tensor].bytes, -trip.exposed_ns, trip.tensor, trip.left or 0))


def waits_of(decisions: SwapDecisions, schedule: Schedule) -> list[tuple[int, int, int | None]]:
    """(ns, node, the node it waits for last) for each operator before which the compute stream stands still."""
    waits, free = [], 0
    ran = [place for place, node in enumerate(decisions.nodes) if node.kind == "compute"]
    for place in sorted(ran, key=lambda place: (schedule.start[place], place)):
        if schedule.start[place] > free:
            before = max(decisions.nodes[place].after, key=lambda node: (schedule.end[node], node), default=None)
            waits.append((schedule.start[place] - free, place, before))
        free = max(free, schedule.end[place])
    return waits


class Covered:
    """How much of the time before a moment is covered by the intervals (begin, end), which do not overlap."""

    def __init__(self, intervals: Iterable[tuple[int, int]]) -> None:
        self.intervals = sorted(intervals)
        self.starts = [begin for begin, _ in self.intervals]
        self.before = list(accumulate((end - begin for begin, end in self.intervals), initial=0))

    def __call__(self, moment: int) -> int:
        at = bisect_right(self.starts, moment) - 1
        if at < 0:
            return 0
        begin, end = self.intervals[at]
        return self.before[at] + min(moment, end) - begin
