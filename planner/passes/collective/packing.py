"""Spanning out-trees that load no link and no port more than the cut bound asks for.

Every tree carries one piece of the part of its root, so a link or port x is busy for load(x) = sum over the trees'
links l that occupy x of beta(l), and the throughput of the packing is 1 / max load. ForestColl (section 5) reaches the
optimum by edge splitting and arborescence packing; trees are found here by prices instead, which keeps them low and
the work the same for any number of nodes: multiplicative weights (as in Blink, section 4) make busy links dear, each
tree is grown again along cheap links, and then single ranks are moved to another parent while that lowers the greatest
load. Where that misses the bound and only links are shared, `branchings` packs exactly. How close the result is to the
optimum is measured against the cut bound, never assumed.

Roots stand for their orbit (see `fabric`): the trees of the first `shift` ranks are packed, the others are rotated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from treadle.planner.errors import InfeasibleError
from treadle.planner.passes.collective.branchings import branchings
from treadle.planner.passes.collective.fabric import Fabric

ROUNDS = 14
NEAR = 1.005
STEEPEST = 24.0
MOVES = 4000
EXACT = 128
"""Trees up to which an exact packing is made where prices miss the target."""
WINDOW = 4
"""Busiest resources that moves are looked for; when none of them can be relieved the trees stay."""
LOWER = 1e-3
"""What one more hop from the root costs, as a share of the mean price of a link."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Tree:
    """`parent[v]` is the rank that sends to v, -1 for the root; `order` lists ranks with parents before children."""

    root: int
    parent: tuple[int, ...]
    order: tuple[int, ...]


@dataclass(frozen=True)
class Packing:
    """`busy_ns` is the greatest load of a link or port, in ns for one piece on every tree."""

    trees: tuple[Tree, ...]
    busy_ns: int


@dataclass(frozen=True)
class _Loads:
    """`uses[i, j]` is the j-th resource of link number i (links first, then ports, then one that stands for none) and
    `time[i, j]` the ns for which it is occupied."""

    uses: Ints
    time: Ints
    count: int


def pack(fabric: Fabric, roots: Sequence[int], target: Fraction) -> list[Packing]:
    """One tree for each of `roots` (a root may occur several times): packings of about the least greatest load found.

    `target` is the load in ns below which nothing can be, where prices begin to bite. Raises InfeasibleError where a
    root does not reach every rank.
    """
    loads = _loads(fabric)
    goal = max(1.0, float(target))
    parents: list[Ints | None] = [None] * len(roots)
    load = np.zeros(loads.count + 1)
    found: list[Packing] = []
    for turn in range(ROUNDS):
        steep = STEEPEST * turn / (ROUNDS - 1)
        for i, root in enumerate(roots):
            old = parents[i]
            if old is not None:
                _add(fabric, loads, load, old, -1)
            parents[i] = new = _grown(fabric, root, _prices(loads, load, goal, steep))
            _add(fabric, loads, load, new, 1)
        grown = [p.copy() for p in parents if p is not None]
        at = load.copy()
        _relax(fabric, loads, at, grown, goal)
        trees = tuple(_tree(root, parent) for root, parent in zip(roots, grown, strict=True))
        if all(trees != other.trees for other in found):
            found.append(Packing(trees, round(float(at[:-1].max()))))
    least = min(packing.busy_ns for packing in found)
    if least > goal * NEAR and not fabric.sending and fabric.shift == fabric.ranks and len(roots) <= EXACT:
        exact = branchings(fabric, roots, target)
        if exact is not None:
            load = np.zeros(loads.count + 1)
            for parent in exact:
                _add(fabric, loads, load, np.array(parent, dtype=np.int64), 1)
            trees = tuple(_tree(root, np.array(parent)) for root, parent in zip(roots, exact, strict=True))
            found = [Packing(trees, round(float(load[:-1].max())))]
            least = found[0].busy_ns
    return [packing for packing in found if packing.busy_ns <= least * NEAR]


def _loads(fabric: Fabric) -> _Loads:
    links = len(fabric.beta)
    none = links + len(fabric.sending)
    rows: list[list[tuple[int, int]]] = []
    for i, ports in enumerate(fabric.ports):
        row = [(i, fabric.beta[i]), *((links + p, fabric.held(p, fabric.beta[i])) for p in ports)]
        if fabric.back is not None:
            back = fabric.back[i]
            row.append((back, fabric.beta[back]))
            row += [(links + p, fabric.held(p, fabric.beta[back])) for p in fabric.ports[back]]
        busy: dict[int, int] = {}
        for resource, ns in row:
            busy[resource] = busy.get(resource, 0) + ns
        rows.append(sorted(busy.items()))
    width = max(map(len, rows), default=1)
    uses = np.full((links, width), none, dtype=np.int64)
    time = np.zeros((links, width), dtype=np.int64)
    for i, row in enumerate(rows):
        for j, (resource, ns) in enumerate(row):
            uses[i, j], time[i, j] = resource, ns
    return _Loads(uses, time, none)


def _prices(loads: _Loads, load: Floats, goal: float, steep: float) -> Floats:
    """By link number: what one more piece on it costs."""
    price = np.exp(np.minimum(steep * (load / goal - 1), 60.0))
    price[-1] = 0
    found: Floats = (price[loads.uses] * loads.time).sum(axis=1) + 1e-9
    return found


def _grown(fabric: Fabric, root: int, price: Floats) -> Ints:
    """A tree along cheap links, by Prim's rule with a small charge for height; ties go to the nearest rank upwards."""
    n, orbit = fabric.ranks, fabric.orbit
    charge = LOWER * float(price.mean())
    full = np.append(price, np.inf)
    ahead = np.arange(n)
    parent = np.full(n, -1, dtype=np.int64)
    depth = np.zeros(n)
    cost = full[orbit[root]] * (1 + 1e-12 * ((ahead - root) % n))
    parent[:] = root
    parent[root] = -1
    done = np.zeros(n, dtype=bool)
    done[root] = True
    cost[root] = np.inf
    for _ in range(n - 1):
        v = int(np.argmin(cost))
        if cost[v] == np.inf:
            missed = int(np.flatnonzero(~done)[0])
            raise InfeasibleError(f"rank {root} does not reach rank {missed} over the links that the sketch leaves")
        done[v] = True
        cost[v] = np.inf
        depth[v] = depth[parent[v]] + 1
        offer = full[orbit[v]] * (1 + 1e-12 * ((ahead - v) % n)) + charge * depth[v]
        better = (offer < cost) & ~done
        cost[better] = offer[better]
        parent[better] = v
    return parent


def _add(fabric: Fabric, loads: _Loads, load: Floats, parent: Ints, sign: int) -> None:
    children = np.flatnonzero(parent >= 0)
    links = fabric.orbit[parent[children], children]
    np.add.at(load, loads.uses[links], sign * loads.time[links])


def _relax(fabric: Fabric, loads: _Loads, load: Floats, parents: list[Ints], goal: float) -> None:
    """Move ranks from links that occupy a busiest resource to other parents, while that lowers what they occupy."""
    using = [fabric.orbit[parent, np.arange(fabric.ranks)] for parent in parents]
    for parent, links in zip(parents, using, strict=True):
        links[parent < 0] = -1
    settled: set[int] = set()
    for _ in range(MOVES):
        order = np.argsort(-load[:-1], kind="stable")
        worst = next((int(x) for x in order[:WINDOW] if load[x] > goal + 1e-6 and int(x) not in settled), None)
        if worst is None:
            return
        if _moved(fabric, loads, load, parents, using, worst):
            settled.clear()
        else:
            settled.add(worst)


def _moved(fabric: Fabric, loads: _Loads, load: Floats, parents: list[Ints], using: list[Ints], worst: int) -> bool:
    """Move a rank off `worst` to a link whose greatest load stays below that of `worst` now, if there is one."""
    touching = np.append((loads.uses == worst).any(axis=1), False)
    best: tuple[float, int, int, int] | None = None
    top = load[worst]
    places = ((t, int(v)) for t, links in enumerate(using) for v in np.flatnonzero(touching[links]))
    for t, v in places:
        here = int(using[t][v])
        load[loads.uses[here]] -= loads.time[here]
        into = fabric.orbit[:, v]
        fit = np.flatnonzero(into >= 0)
        fit = fit[~touching[into[fit]]]
        if len(fit):
            at = (load[loads.uses[into[fit]]] + loads.time[into[fit]]).max(axis=1)
            for k in np.argsort(at, kind="stable")[:8]:
                if at[k] >= top - 1e-6 or (best is not None and at[k] >= best[0]):
                    break
                if not _below(parents[t], int(fit[k]), v):
                    best = (float(at[k]), t, v, int(fit[k]))
                    break
        load[loads.uses[here]] += loads.time[here]
    if best is None:
        return False
    _, t, v, u = best
    old, new = int(using[t][v]), int(fabric.orbit[u, v])
    load[loads.uses[old]] -= loads.time[old]
    load[loads.uses[new]] += loads.time[new]
    load[-1] = 0
    parents[t][v], using[t][v] = u, new
    return True


def _below(parent: Ints, rank: int, top: int) -> bool:
    """Whether `rank` is `top` or below it."""
    while rank >= 0:
        if rank == top:
            return True
        rank = int(parent[rank])
    return False


def _tree(root: int, parent: Ints) -> Tree:
    children: list[list[int]] = [[] for _ in parent]
    for v, u in enumerate(parent.tolist()):
        if u >= 0:
            children[u].append(v)
    order = [root]
    for u in order:
        order += children[u]
    return Tree(root, tuple(parent.tolist()), tuple(order))
