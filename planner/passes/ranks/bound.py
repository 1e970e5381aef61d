"""Lower bounds on the cost of orders, and what they rest on."""

from __future__ import annotations

import numpy as np

from treadle.planner.passes.ranks.cost import OrderCosts
from treadle.planner.passes.ranks.one_tree import one_tree_bound
from treadle.planner.search.bound import Argument, Bound
from treadle.planner.search.clock import Expired, never

SENTENCES = {
    "hops": "every hop costs at least what the cheapest pair of hosts does",
    "one-tree": "a ring is no shorter than the least 1-tree under any penalties of hosts",
    "exact": "an exact search over all orders found none that costs less",
    "same": "all orders cost the same",
}


def sentence(bound: Bound) -> str:
    """Why `bound` holds."""
    return bound.argument.printed(SENTENCES)


def first_bound(costs: OrderCosts, known_ns: int) -> Bound:
    """A bound that takes no time: it meets the cost of any order between hosts that are all equally near."""
    return Bound(_hops(costs), Argument("hops")).of_plan(known_ns)


def lower_bound(costs: OrderCosts, known_ns: int, *, expired: Expired = never) -> Bound:
    """No order costs less; `known_ns` is the cost of one."""
    bound = first_bound(costs, known_ns)
    count = len(costs.latency)
    if costs.problem.algorithm in ("ring", "nccl-ring") and costs.problem.objective != "bottleneck" and count > 2:
        matrix = costs.matrix(0)
        tree = one_tree_bound(matrix, known_ns, expired=expired)
        if tree.bound_ns > bound.time_ns:
            bound = Bound(tree.bound_ns, Argument("one-tree"))
    return bound.of_plan(known_ns)


def _hops(costs: OrderCosts) -> int:
    """The cost of the pattern between hosts that are all as near as the nearest two."""
    hops, pairs = costs.hops, ~np.eye(len(costs.latency), dtype=bool)
    if not pairs.any():
        return 0
    kinds, kind = np.unique(np.stack((hops.bytes, hops.weights)), axis=1, return_inverse=True)
    firsts = [int(np.flatnonzero(kind == each)[0]) for each in range(kinds.shape[1])]
    least = np.array([costs.matrix(hop)[pairs].min() for hop in firsts])[kind]
    return int(costs.combined(np.where(hops.src == hops.dst, 0, least)[None])[0])
