"""Lower bounds on tours by 1-trees, after Held and Karp's "The Traveling-Salesman Problem and Minimum Spanning Trees".

A 1-tree is a spanning tree over all hosts but the first, and two edges of that one; a tour is a 1-tree in which every
host has two edges. So the least 1-tree under costs c_ij + p_i + p_j, less twice the sum of p, is a bound for any p.
Penalties and costs are whole multiples of 1 / scale ns, so that the bound holds exactly.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from treadle.planner.search.clock import Expired, never

Ints = NDArray[np.int64]
BITS = 44
"""Costs are scaled up to this many bits; sums over 4096 hosts with penalties stay below 62."""
STEPS, LEAST_STEPS, MOST_STEPS = 1_000_000, 1000, 3000
"""Steps are as many as STEPS over the hosts, within these limits."""
INSIDE = 1 << 61
"""More than any cost with penalties: hosts in the tree are no cheaper to reach."""
PATIENCE = 20
SHORTER = 0.7
"""Factor of the length of steps after PATIENCE of them without a better bound."""


class OneTree(NamedTuple):
    """The best bound found, ns, rounded up to whole ns as costs are whole; and the penalties [N] that prove it, in
    units of 1 / scale ns."""

    bound_ns: int
    penalties: Ints
    scale: int


class _Tree(NamedTuple):
    weight: int
    degrees: Ints


def one_tree_bound(costs: Ints, known_ns: int, *, expired: Expired = never) -> OneTree:
    """The bound of a tour over symmetric `costs` [N, N], N >= 3, by subgradient steps.

    known_ns: the length of some tour; steps end once the bound meets it, so that a proof costs no more than it needs.
    """
    count = len(costs)
    scale = 1 << max(0, BITS - int(costs.max()).bit_length())
    scaled = costs * scale
    penalties = best_penalties = np.zeros(count, dtype=np.int64)
    best, relax, waited, before = -1, 2.0, 0, np.zeros(count)
    for step in range(min(MOST_STEPS, max(LEAST_STEPS, STEPS // count))):
        tree = _prim(scaled, penalties)[0]
        value = tree.weight - 2 * int(penalties.sum())
        if value > best:
            best, best_penalties, waited = value, penalties, 0
        else:
            waited += 1
        if -(-best // scale) >= known_ns or (step and expired()):
            break
        if waited == PATIENCE:
            relax, waited, penalties = relax * SHORTER, 0, best_penalties
            continue
        direction = 0.7 * (tree.degrees - 2) + 0.3 * before
        before = (tree.degrees - 2).astype(float)
        if not before.any():
            break
        length = relax * (1.0 * known_ns * scale - value) / float(direction @ direction or 1.0)
        penalties = np.clip(penalties + np.rint(length * direction).astype(np.int64), -1 << BITS, 1 << BITS)
    return OneTree(min(known_ns, -(-best // scale)), best_penalties, scale)


def _prim(costs: Ints, penalties: Ints) -> tuple[_Tree, Ints, list[int]]:
    """The least 1-tree under costs and penalties, which its weight counts both, by Prim's algorithm; the parents of
    hosts in the spanning tree [N], and its hosts, parents first."""
    count, node = len(costs), 1
    rest = penalties.copy()
    rest[:2] = 2 * INSIDE
    cheapest, parents, visited = np.full(count, INSIDE), np.zeros(count, dtype=np.int64), [node]
    for _ in range(count - 2):
        row = costs[node] + rest
        row += penalties[node]
        nearer = row < cheapest
        np.copyto(cheapest, row, where=nearer)
        parents[nearer] = node
        node = int(cheapest.argmin())
        visited.append(node)
        cheapest[node], rest[node] = INSIDE, 2 * INSIDE
    ends = np.argsort(costs[0, 1:] + penalties[1:], kind="stable")[:2] + 1
    children = np.concatenate((np.arange(2, count), ends))
    others = np.concatenate((parents[2:], [0, 0]))
    degrees = np.bincount(children, minlength=count) + np.bincount(others, minlength=count)
    weight = int((costs[children, others] + penalties[children] + penalties[others]).sum())
    return _Tree(weight, degrees), parents, visited


def edges_below(costs: Ints, tree: OneTree, known_ns: int) -> NDArray[np.bool_]:
    """Pairs [N, N] that a tour shorter than `known_ns` can have: the least 1-tree with any other is as long."""
    count = len(costs)
    priced = costs * tree.scale + tree.penalties + tree.penalties[:, None]
    found, parents, visited = _prim(costs * tree.scale, tree.penalties)
    bound = found.weight - 2 * int(tree.penalties.sum())
    dearest = np.zeros((count, count), dtype=np.int64)
    """The dearest edge on the path between two hosts in the tree, which an edge between them would replace."""
    for place, host in enumerate(visited[1:], 1):
        before, parent = visited[:place], parents[host]
        row = np.maximum(dearest[parent, before], priced[parent, host])
        dearest[host, before] = dearest[before, host] = row
    dearest[0, 1:] = dearest[1:, 0] = np.sort(priced[0, 1:])[1]
    allowed: NDArray[np.bool_] = bound + priced - dearest <= (known_ns - 1) * tree.scale
    return allowed & ~np.eye(count, dtype=bool)
