"""Maximum flow and a minimum cut, on OR-tools' SimpleMaxFlow (push-relabel)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from treadle.planner.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def max_flow(n: int, arcs: Sequence[tuple[int, int, int]], source: int, sink: int) -> tuple[int, frozenset[int]]:
    """The value of a maximum flow and the nodes on the source's side of a minimum cut.

    n: nodes 0..n-1. arcs: (tail, head, capacity), directed, integer capacities >= 0, parallel arcs allowed.
    Raises InputError for a node out of range, a negative capacity, or source == sink.
    """
    from ortools.graph.python.max_flow import SimpleMaxFlow

    if source == sink or not (0 <= source < n and 0 <= sink < n):
        raise InputError(f"max flow from {source} to {sink}, expected two different nodes of {n}")
    flow = SimpleMaxFlow()
    for tail, head, capacity in arcs:
        if not (0 <= tail < n and 0 <= head < n):
            raise InputError(f"max flow: arc {tail} -> {head}, expected nodes 0..{n - 1}")
        if capacity < 0:
            raise InputError(f"max flow: arc {tail} -> {head} has capacity {capacity}, expected >= 0")
        flow.add_arc_with_capacity(tail, head, capacity)
    flow.add_arc_with_capacity(source, sink, 0)  # SimpleMaxFlow knows only nodes that an arc names
    status = flow.solve(source, sink)
    if status != flow.OPTIMAL:
        raise InputError(f"max flow from {source} to {sink}: the capacities add up to more than 64 bits hold")
    return flow.optimal_flow(), frozenset(flow.get_source_side_min_cut())


def min_cuts(
    n: int, arcs: NDArray[np.int64], source: int, sinks: Iterable[int]
) -> Iterator[tuple[int, int, frozenset[int]]]:
    """(sink, value of a maximum flow, source side of a minimum cut) for each sink, on one network.

    arcs: rows (tail, head, capacity) as for `max_flow`. Raises InputError as that does.
    """
    import numpy as np
    from ortools.graph.python.max_flow import SimpleMaxFlow

    if len(arcs) and (arcs[:, :2].min() < 0 or arcs[:, :2].max() >= n or arcs[:, 2].min() < 0):
        raise InputError(f"max flow: expected nodes 0..{n - 1} and capacities >= 0")
    flow = SimpleMaxFlow()
    flow.add_arcs_with_capacity(
        np.ascontiguousarray(arcs[:, 0]), np.ascontiguousarray(arcs[:, 1]), np.ascontiguousarray(arcs[:, 2])
    )
    flow.add_arc_with_capacity(source, n - 1, 0)
    for sink in sinks:
        if sink == source or not 0 <= sink < n:
            raise InputError(f"max flow from {source} to {sink}, expected two different nodes of {n}")
        if flow.solve(source, sink) != flow.OPTIMAL:
            raise InputError(f"max flow from {source} to {sink}: the capacities add up to more than 64 bits hold")
        yield sink, flow.optimal_flow(), frozenset(flow.get_source_side_min_cut())
