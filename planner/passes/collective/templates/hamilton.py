"""Paths and cycles through all devices: depth-first search with a bound, cheapest links first, under a step budget."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

from treadle.planner.passes.collective.topology import Edge

STEPS = 20_000
FEW = 8
"""Neighbours up to which the one with the fewest continuations is tried first (Warnsdorff's rule)."""


def cheapest_path(
    devices: int, cost: Mapping[Edge, int], prefix: Sequence[int], close: Mapping[Edge, int] | None = None
) -> tuple[int, tuple[int, ...]] | None:
    """(cost, order) of the cheapest path found through all `devices` that begins with `prefix`.

    With `close`, a link from the last device back to the first must be among its keys, and its cost counts. None where
    the search ends, or its budget, without a path. Deterministic.
    """
    for edge in pairwise(prefix):
        if edge not in cost:
            return None
    near: dict[int, list[int]] = defaultdict(list)
    for src, dst in sorted(cost, key=lambda edge: (cost[edge], (edge[1] - edge[0]) % devices)):
        near[src].append(dst)
    least = min(cost.values(), default=0)
    ends = None if close is None else {src: value for (src, dst), value in close.items() if dst == prefix[0]}
    floor = min(ends.values(), default=0) if ends else 0
    if ends is not None and not ends:
        return None
    path, visited = list(prefix), set(prefix)
    spent = [0]
    for edge in pairwise(prefix):
        spent.append(spent[-1] + cost[edge])
    best: tuple[int, tuple[int, ...]] | None = None

    def onward(rank: int) -> list[int]:
        found = [other for other in near[rank] if other not in visited]
        if ends is not None and len(open_ends := ends.keys() - visited) == 1 and len(visited) < devices - 1:
            found = [other for other in found if other not in open_ends]  # the only return must come last
        if len(found) <= FEW:
            found.sort(key=lambda other: (cost[rank, other], sum(next not in visited for next in near[other])))
        return found

    stack = [iter(onward(path[-1]))]
    for _ in range(STEPS):
        if len(path) == devices:
            last = 0 if ends is None else ends.get(path[-1], -1)
            if last >= 0 and (best is None or spent[-1] + last < best[0]):
                best = (spent[-1] + last, tuple(path))
        step = next(stack[-1], None)
        while step is not None and best is not None:
            bound = spent[-1] + cost[path[-1], step] + (devices - len(path) - 1) * least + floor
            if bound < best[0]:
                break
            step = next(stack[-1], None)
        if step is None:
            stack.pop()
            if not stack:
                break
            visited.discard(path.pop())
            spent.pop()
            continue
        spent.append(spent[-1] + cost[path[-1], step])
        path.append(step)
        visited.add(step)
        stack.append(iter(onward(step)))
    return best
