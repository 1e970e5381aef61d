"""Lower bounds on the cost of orders, and what they rest on.

all       hops between hosts that are all as near as the nearest two; the cost itself on uniform costs
rings     the least 1-tree, and the cheapest assignment of a next host to every host
dearest hop of rings    the least limit up to which pairs connect all hosts, without any one of them too
rounds    k rounds of exchanges connect groups of the product of their factors, see `_rounds`
trees, plans            some hop crosses between hosts that cheaper pairs do not connect
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from math import prod

import numpy as np
from numpy.typing import NDArray

from treadle.planner.passes.ranks.cost import OrderCosts
from treadle.planner.passes.ranks.one_tree import OneTree, one_tree_bound
from treadle.planner.search.bound import Argument, Bound
from treadle.planner.search.clock import Expired, never

Ints = NDArray[np.int64]
RINGS = ("ring", "nccl-ring")
SENTENCES = {
    "hops": "every hop costs at least what the cheapest pair of hosts does",
    "one-tree": "a ring is no shorter than the least 1-tree under any penalties of hosts",
    "assignment": "a ring is no shorter than the cheapest assignment of a next host to every host",
    "bottleneck": "without pairs that cost as much, some host would connect the others, or have fewer than two pairs",
    "rounds": "rounds connect groups of hosts whose sizes cheaper pairs do not allow, or need more disjoint pairs",
    "crossing": "some hop is between hosts that cheaper pairs do not connect",
    "exact": "an exact search over all orders found none that costs less",
}


def sentence(bound: Bound) -> str:
    """Why `bound` holds."""
    return bound.argument.printed(SENTENCES)


def first_bound(costs: OrderCosts, known_ns: int) -> Bound:
    """A bound that takes no time: it meets the cost of any order between hosts that are all equally near."""
    return Bound(_hops(costs), Argument("hops")).of_plan(known_ns)


def lower_bound(costs: OrderCosts, known_ns: int, *, expired: Expired = never) -> Bound:
    """No order costs less; `known_ns` is the cost of one. Less is proved where the time has `expired`."""
    best = first_bound(costs, known_ns)
    for kind, value in _bounds(costs, known_ns, best.time_ns, expired):
        if value > best.time_ns:
            best = Bound(value, Argument(kind))
    return best.of_plan(known_ns)


def ring_tree(costs: OrderCosts, known_ns: int, expired: Expired = never) -> OneTree:
    """The 1-tree that bounds a ring."""
    return one_tree_bound(costs.matrix(0), known_ns, expired=expired)


def _bounds(costs: OrderCosts, known_ns: int, least_ns: int, expired: Expired) -> list[tuple[str, int]]:
    problem, count = costs.problem, len(costs.latency)
    if count < 3 or least_ns >= known_ns or expired():
        return []
    if problem.algorithm not in RINGS:
        return [("crossing", _crossing(costs)) if costs.hops.starts is None else ("rounds", _rounds(costs))]
    if problem.objective == "bottleneck":
        return [("bottleneck", _bottleneck_ring(costs.matrix(0)))]
    assigned = _assigned(_without_diagonal(costs.matrix(0)))
    found = [("assignment", assigned)]
    return found if assigned >= known_ns else [*found, ("one-tree", ring_tree(costs, known_ns, expired).bound_ns)]


def _hops(costs: OrderCosts) -> int:
    """The cost of the pattern between hosts that are all as near as the nearest two."""
    pairs = ~np.eye(len(costs.latency), dtype=bool)
    if not pairs.any():
        return 0
    least = costs.by_hop(lambda matrix: int(matrix[pairs].min()))
    return int(costs.combined(least[None])[0])


def _without_diagonal(matrix: Ints) -> Ints:
    return matrix + np.diag(np.full(len(matrix), 2 * int(matrix.max()) + 1))


def _assigned(matrix: Ints) -> int:
    """The cheapest choice of one column for each row, all different."""
    from scipy.optimize import linear_sum_assignment

    return int(matrix[linear_sum_assignment(matrix)].sum())


def _least_limit(values: Ints, holds: Callable[[int], bool]) -> int:
    """The least of ascending `values` for which a property `holds` that holds for all above, else the last."""
    low, high = 0, len(values) - 1
    while low < high:
        middle = (low + high) // 2
        if holds(int(values[middle])):
            high = middle
        else:
            low = middle + 1
    return int(values[low])


def _values(matrix: Ints) -> Ints:
    return np.unique(matrix[~np.eye(len(matrix), dtype=bool)])


def _connecting(matrix: Ints) -> Ints:
    """The costs of a least spanning tree, and its edges: columns cost, host, host [N - 1, 3]."""
    from scipy.sparse.csgraph import minimum_spanning_tree

    tree = minimum_spanning_tree(matrix + 1.0 - np.eye(len(matrix))).tocoo()
    return np.stack((matrix[tree.row, tree.col], tree.row, tree.col), axis=1).astype(np.int64)


def _bottleneck_ring(matrix: Ints) -> int:
    """A ring gives every host two pairs, and connects all hosts even without any one of them."""
    import networkx as nx

    second = int(np.sort(_without_diagonal(matrix), axis=1)[:, 1].max())
    limit = max(second, int(_connecting(matrix)[:, 0].max()))
    values, apart = _values(matrix), ~np.eye(len(matrix), dtype=bool)
    return _least_limit(
        values[values >= limit], lambda value: nx.is_biconnected(nx.from_numpy_array((matrix <= value) & apart))
    )


def _crossing(costs: OrderCosts) -> int:
    """The critical path with one hop, where it costs least, as dear as hosts that cheaper pairs do not connect."""
    hops, pairs = costs.hops, ~np.eye(len(costs.latency), dtype=bool)
    if not _connected(hops.src, hops.dst, len(costs.latency)):
        return 0
    common = np.sum([costs.matrix(kind) for kind in costs.kinds], axis=0)
    far = pairs & (common >= _connecting(common)[:, 0].max())
    least = costs.by_hop(lambda matrix: int(matrix[pairs].min()))
    most = costs.by_hop(lambda matrix: int(matrix[far].min()))
    crosses = hops.src != hops.dst
    if costs.problem.objective == "bottleneck":
        return int(most[crosses].min())
    before, after = costs.around(least)
    return int((before + most + after)[crosses].min())


def _connected(src: Ints, dst: Ints, count: int) -> bool:
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    links = coo_array((np.ones(len(src)), (src, dst)), shape=(count, count))
    return int(connected_components(links, directed=False)[0]) == 1


def _rounds(costs: OrderCosts) -> int:
    """k rounds connect hosts in groups of the product of their factors, in which each has its partners of all k.

    So pairs up to a limit can serve k rounds only if they connect hosts in groups of multiples of that size, and each
    host has enough of them; hosts that fold into others are exempt. Of any k rounds one has a pair at least as dear as
    the least such limit, so the rounds cost no less than the cheapest assignment of rounds to these limits. Nor does a
    round cost less than the least limit up to which there are enough disjoint pairs.

    Limits are those of one common order of the pairs, by the sum of what they cost in the rounds.
    """
    hops, count = costs.hops, len(costs.latency)
    assert hops.starts is not None
    starts = hops.starts.tolist()
    sizes = [after - first for first, after in zip(starts, [*starts[1:], len(hops.src)], strict=True)]
    folded = 0 if costs.problem.factors else count - (1 << count.bit_length() - 1)
    factors = list(costs.problem.factors) or [2] * len(starts)
    whole = [*range(1 if folded else 0, len(starts))]
    tables = [costs.matrix(start) for start in starts]
    alone = [
        _disjoint(table, size) if factor == 2 else 0 for table, size, factor in zip(tables, sizes, factors, strict=True)
    ]
    common = np.sum([tables[number] for number in whole], axis=0)
    limits = _shared_limits(common, [factors[number] for number in whole], folded)
    pairs = ~np.eye(count, dtype=bool)
    priced = np.array(
        [
            [max(alone[number], int(tables[number][pairs & (common >= limit)].min())) for limit in limits]
            for number in whole
        ]
    )
    if costs.problem.objective == "bottleneck":
        return max([*alone, int(priced[:, -1].min())])
    return sum(alone[: whole[0]]) + _assigned(priced)


def _disjoint(table: Ints, pairs: int) -> int:
    """The least limit up to which as many pairs have no host in common, at least as halves of pairs."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_bipartite_matching

    apart = ~np.eye(len(table), dtype=bool)

    def enough(limit: int) -> bool:
        matched = maximum_bipartite_matching(csr_array((table <= limit) & apart), perm_type="column")
        return int((matched >= 0).sum()) >= 2 * pairs

    return _least_limit(_values(table), enough)


def _shared_limits(common: Ints, factors: list[int], folded: int) -> list[int]:
    """For k = 1 to all rounds: the least limit up to which pairs can serve some k of them."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    count, values = len(common), _values(common)
    tree, ranked = _connecting(common), np.sort(_without_diagonal(common), axis=1)

    def limit_of(size: int, partners: int) -> int:
        def serve(limit: int) -> bool:
            if int((ranked[:, partners - 1] > limit).sum()) > folded:
                return False
            edges = tree[tree[:, 0] <= limit]
            links = coo_array((np.ones(len(edges)), (edges[:, 1], edges[:, 2])), shape=(count, count))
            labels = connected_components(links, directed=False)[1]
            return int((np.bincount(labels) % size).sum()) <= folded

        return _least_limit(values, serve)

    found = []
    for number in range(1, len(factors) + 1):
        chosen = {tuple(sorted(each)) for each in combinations(factors, number)}
        found.append(min(limit_of(prod(each), sum(each) - number) for each in chosen))
    return found
