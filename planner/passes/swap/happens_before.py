"""The happens-before relation of a swap plan: which nodes end before others start, whatever copies and operators take.

Only `after` counts, transitively: streams are no queues, so two nodes of one stream that no chain of `after` joins may
run in either order. The compute nodes are one chain (the checker verifies that first). Any other node comes before
another one either through a compute node, which the first compute node after the one and the last before the other
decide, or by a chain of copies and drops only, which is short and searched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from treadle.planner.passes.swap.decisions import SwapNode


class HappensBefore(NamedTuple):
    """Per node: its place among the compute nodes (-1 for others), the last place before it (-1 for none) and the
    first place after it (their number for none)."""

    nodes: Sequence[SwapNode]
    place: list[int]
    since: list[int]
    until: list[int]

    def before(self, first: int, second: int) -> bool:
        """Whether node `first` always ends before node `second` starts."""
        if first >= second:
            return False
        if self.place[first] >= 0:
            return self.since[second] >= self.place[first]
        if self.place[second] >= 0:
            return self.until[first] <= self.place[second]
        return self.until[first] <= self.since[second] or self._joined(first, second)

    def _joined(self, first: int, second: int) -> bool:
        """Whether a chain of copies and drops leads from one to the other."""
        seen = {second}
        pending = [second]
        while pending:
            for node in self.nodes[pending.pop()].after:
                if node == first:
                    return True
                if node > first and self.place[node] < 0 and node not in seen:
                    seen.add(node)
                    pending.append(node)
        return False


def happens_before(nodes: Sequence[SwapNode]) -> HappensBefore:
    """The relation of nodes whose `after` are earlier nodes and whose compute nodes are one chain."""
    count = sum(node.kind == "compute" for node in nodes)
    place, since, until = [-1] * len(nodes), [-1] * len(nodes), [count] * len(nodes)
    reached = 0
    for at, node in enumerate(nodes):
        for before in node.after:
            since[at] = max(since[at], since[before], place[before])
        if node.kind == "compute":
            place[at] = reached
            reached += 1
    for at in range(len(nodes) - 1, -1, -1):
        first = place[at] if place[at] >= 0 else until[at]
        for before in nodes[at].after:
            until[before] = min(until[before], first)
    return HappensBefore(nodes, place, since, until)
