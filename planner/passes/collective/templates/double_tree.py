"""Double binary tree: half of the pieces down one binary tree of nodes, half down its mirror image, pipelined.

"Two-tree algorithms for full bandwidth broadcast, reduction and scan", as NCCL builds it: the trees are over nodes
(over ranks on one node) such that an inner node of one is a leaf of the other; inside a node a chain or a
star. Several channels, each by another pair of devices between nodes, share the NICs.
"""

from __future__ import annotations

from collections.abc import Iterator

from treadle.planner.machine.binary_tree import binary_tree
from treadle.planner.passes.collective.limits import Effort
from treadle.planner.passes.collective.problem import Problem
from treadle.planner.passes.collective.synthesis import Draft, Request
from treadle.planner.passes.collective.templates.levels import Leg, Levels, Shape, legs, levels
from treadle.planner.passes.collective.templates.template import RoundHop, Variant, best_draft, piece_counts, require
from treadle.planner.passes.collective.topology import Edge

COLLECTIVES = ("broadcast", "reduce", "allreduce")
CHANNELS = (2, 8)
PIECES = (1, 2, 8, 32)


def synthesize(request: Request, effort: Effort) -> Draft:
    """The channels, pieces and shape inside nodes that end soonest. Raises InputError where a tree needs a link that is
    not there."""
    allreduce = request.collective == "allreduce"
    whole = request.problem(1, (request.root,) if allreduce else None)
    require("double-tree", whole, COLLECTIVES)
    several = whole.ranks > whole.per_node
    variants = []
    for channels in CHANNELS if several else CHANNELS[:1]:
        for cut in piece_counts(whole, [channels * pieces for pieces in PIECES]):
            if cut >= channels or channels == CHANNELS[0]:
                shapes: tuple[Shape, ...] = ("chain", "star") if several else ("star",)
                variants += [_variant(request, whole, channels, cut, shape) for shape in shapes]
    return best_draft("double-tree", variants)


def rooted_tree(size: int, root: int, mirrored: bool) -> list[Edge]:
    """`binary_tree` over all but `root`, hung under it."""
    others = [(root + 1 + k) % size for k in range(size - 1)]
    if not others:
        return []
    top, edges = binary_tree(size - 1, mirrored)
    return [(root, others[top]), *((others[a], others[b]) for a, b in edges)]


def _variant(request: Request, plain: Problem, channels: int, cut: int, shape: Shape) -> Variant:
    size, nodes = plain.per_node, plain.ranks // plain.per_node
    units = nodes if nodes > 1 else plain.ranks
    level = levels(plain, size, False)
    pairs = [level.pair(device * size // channels) for device in range(channels)] if nodes > 1 else []
    trees: list[list[Edge]] = []
    roots: list[int] = []
    for channel in range(channels):
        if request.collective == "allreduce":
            top, edges = binary_tree(units, channel % 2 == 1)
            roots.append(top * size + pairs[channel][1] if nodes > 1 else top)
        else:
            top = plain.root // size if nodes > 1 else plain.root
            edges = rooted_tree(units, top, channel % 2 == 1)
            roots.append(plain.root)
        trees.append(edges)
    if request.collective == "allreduce":
        problem = request.problem(1, [roots[number % channels] for number in range(cut)])
    else:
        problem = request.problem(cut)

    def spread(turned: bool) -> Iterator[RoundHop]:
        level = levels(problem, size, turned)
        made = [_legs(problem, level, trees[c], roots[c], pairs[c] if pairs else None, shape, turned)
                for c in range(min(channels, cut))]  # fmt: skip
        for number in range(len(problem.chunks)):
            turn, channel = divmod(number, channels)
            for depth, src, dst in made[channel]:
                yield RoundHop(turn + depth, number, src, dst)

    words = f"{channels} channels, {cut} pieces" + (f", {shape} inside" if pairs else "")
    return Variant(words, problem, spread)


def _legs(
    problem: Problem, level: Levels, tree: list[Edge], root: int, pair: Edge | None, shape: Shape, turned: bool
) -> list[Leg]:
    if pair is None:
        depth = {root: 0}
        found = []
        for src, dst in tree:
            depth[dst] = depth[src] + 1
            found.append((depth[src], src, dst))
        return found
    facing = (pair[1], pair[0]) if turned else pair
    return legs(level, root, range(problem.ranks), tree, facing, shape)
