"""Flow of least cost, on OR-tools' SimpleMinCostFlow (cost scaling)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from treadle.planner.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def min_cost_flow(arcs: NDArray[np.int64], supplies: Sequence[int]) -> NDArray[np.int64]:
    """How much flows over each arc: all supplies reach the nodes of negative supply, at the least cost.

    arcs: rows (tail, head, capacity, cost for each unit), capacities >= 0. supplies: by node, sum 0. The flow is whole.
    Raises InputError where the capacities do not suffice, or for numbers that 64 bits do not hold.
    """
    import numpy as np
    from ortools.graph.python.min_cost_flow import SimpleMinCostFlow

    flow = SimpleMinCostFlow()
    arcs = np.asarray(arcs, dtype=np.int64).reshape(-1, 4)
    flow.add_arcs_with_capacity_and_unit_cost(*map(np.ascontiguousarray, arcs.T))
    flow.set_nodes_supplies(np.arange(len(supplies)), np.asarray(supplies, dtype=np.int64))
    if (status := flow.solve()) != flow.OPTIMAL:
        raise InputError(f"flow of least cost: {status.name.lower().replace('_', ' ')}")
    return np.asarray(flow.flows(np.arange(len(arcs))))
