"""Exact packings of out-trees where only links are shared: Edmonds' theorem, edge by edge.

Link l may carry c(l) = floor(T / beta(l)) pieces in T. A source s in front of every root, joined to it once per tree,
makes the trees out-trees of s; K of them fit iff every rank can take in K units from s (Edmonds 1973). A tree is grown
along links (x, y) out of what it spans such that without (x, y) rank y still takes in the K - 1 units of the trees
to come: one maximum flow for each link tried, as in ForestColl (section 5.3), and such a link always exists (Lovasz).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from fractions import Fraction
from math import floor

from treadle.planner.passes.collective.fabric import Fabric
from treadle.planner.solver import max_flow

Parents = list[int]


def branchings(fabric: Fabric, roots: Sequence[int], time: Fraction) -> list[Parents] | None:
    """One out-tree for each of `roots`, by rank its parent (-1: the root), no link busier than `time` ns per piece of
    every tree; in the order of `roots`; None if no packing exists.

    `fabric` must have no ports and no rotation but the identity.
    """
    n = fabric.ranks
    left = {
        (u, v): floor(time / max(1, fabric.beta[int(fabric.orbit[u, v])]))
        for u in range(n)
        for v in range(n)
        if fabric.orbit[u, v] >= 0
    }
    wanted = Counter(roots)
    for root, count in sorted(wanted.items()):
        left[n, root] = count
    total = len(roots)
    if any(_taken_in(left, n, rank) < total for rank in range(n)):
        return None
    trees: dict[int, list[Parents]] = {root: [] for root in wanted}
    for rest in range(total - 1, -1, -1):
        parent = [-2] * n
        queue = deque([n])
        while queue:  # breadth first, so that trees stay low
            x = queue[0]
            y = next((y for y in range(n) if _usable(left, n, x, y, parent, rest)), None)
            if y is None or (x == n and any(p != -2 for p in parent)):
                queue.popleft()
                continue
            left[x, y] -= 1
            parent[y] = -1 if x == n else x
            queue.append(y)
        if -2 in parent:
            return None
        trees[parent.index(-1)].append(parent)
    return [trees[root].pop() for root in roots]


def _usable(left: dict[tuple[int, int], int], n: int, x: int, y: int, parent: Parents, rest: int) -> bool:
    if parent[y] != -2 or left.get((x, y), 0) < 1:
        return False
    left[x, y] -= 1
    enough = _taken_in(left, n, y) >= rest
    left[x, y] += 1
    return enough


def _taken_in(left: dict[tuple[int, int], int], n: int, rank: int) -> int:
    return max_flow(n + 1, [(u, v, cap) for (u, v), cap in left.items()], n, rank)[0]
