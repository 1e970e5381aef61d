"""Maximum flow and a minimum cut, on OR-tools' SimpleMaxFlow (push-relabel)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from treadle.planner.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def max_flow(n: int, arcs: Sequence[tuple[int, int, int]], source: int, sink: int) -> tuple[int, frozenset[int]]:
    """(value of a maximum flow, nodes on the side of `source` of a minimum cut), as `min_cuts` for one sink."""
    import numpy as np

    ((_, value, side),) = min_cuts(n, np.array(arcs, dtype=np.int64).reshape(-1, 3), source, [sink])
    return value, side


def min_cuts(
    n: int, arcs: NDArray[np.int64], source: int, sinks: Iterable[int]
) -> Iterator[tuple[int, int, frozenset[int]]]:
    """(sink, value of a maximum flow, nodes on the side of `source` of a minimum cut) for each sink, on one network.

    n: nodes 0..n-1. arcs: rows (tail, head, capacity), directed, integer capacities >= 0, parallel arcs allowed.
    Raises InputError for a node out of range, a negative capacity, or a sink that equals `source`.
    """
    import numpy as np
    from ortools.graph.python.max_flow import SimpleMaxFlow

    if not 0 <= source < n or (len(arcs) and (arcs.min() < 0 or arcs[:, :2].max() >= n)):
        raise InputError(f"max flow: expected nodes 0..{n - 1} and capacities >= 0")
    flow = SimpleMaxFlow()
    flow.add_arcs_with_capacity(*map(np.ascontiguousarray, arcs.T))
    flow.add_arc_with_capacity(source, n - 1, 0)  # SimpleMaxFlow knows only nodes that an arc names
    for sink in sinks:
        if sink == source or not 0 <= sink < n:
            raise InputError(f"max flow from {source} to {sink}, expected two different nodes of {n}")
        if flow.solve(source, sink) != flow.OPTIMAL:
            raise InputError(f"max flow from {source} to {sink}: the capacities add up to more than 64 bits hold")
        yield sink, flow.optimal_flow(), frozenset(flow.get_source_side_min_cut())
