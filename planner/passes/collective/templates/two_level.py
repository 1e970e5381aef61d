"""Two levels: inside the node, across nodes once, inside again; every collective, every sketch with cross links.

The hierarchical scheme of NCCL and Horovod. Each chunk leaves its node by the pair of devices that costs the fewest
hops and whose port is least used (alltoall so goes by the rail of its target, NCCL's PXN); inside a node it follows a
chain through all devices (bandwidth) or goes straight to each (latency), across nodes it fans out from home or is
handed on from node to node.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, product

from treadle.planner.errors import InputError
from treadle.planner.passes.collective.collectives import ROOTED
from treadle.planner.passes.collective.groups import level_sizes
from treadle.planner.passes.collective.limits import Effort
from treadle.planner.passes.collective.problem import Problem
from treadle.planner.passes.collective.synthesis import Draft, Request
from treadle.planner.passes.collective.templates.levels import Shape, legs, levels
from treadle.planner.passes.collective.templates.template import RoundHop, Variant, best_draft, piece_counts

PIECES = (1, 2, 4, 8)


def synthesize(request: Request, effort: Effort) -> Draft:
    """The shape inside and across, and the pieces, that end soonest. Raises InputError for a single node, and where the
    sketch leaves no link between nodes or no path inside one."""
    whole = request.problem(1)
    sizes = [size for size in level_sizes(whole.topology) if size < whole.ranks]
    if not sizes:
        raise InputError("found one node, expected several", where="method two-level")
    spreading = any(len(chunk.targets) > 1 for chunk in whole.chunks)
    pieces = piece_counts(whole, PIECES if spreading else (1,))
    variants = []
    for count in pieces:
        problem = request.problem(count)
        shapes: tuple[Shape, ...] = ("star", "chain") if spreading else ("star",)
        for size, shape in product(sizes, shapes):
            variants.append(_variant(problem, size, shape, relayed=False))
            if spreading and whole.ranks > 2 * size:
                variants.append(_variant(problem, size, shape, relayed=True))
    return best_draft("two-level", variants)


def _variant(problem: Problem, size: int, shape: Shape, relayed: bool) -> Variant:
    nodes = problem.ranks // size
    pipelined = problem.collective in ROOTED

    def spread(turned: bool) -> Iterator[RoundHop]:
        level = levels(problem, size, turned)
        for number, chunk in enumerate(problem.chunks):
            home = chunk.owner // size
            wanted = chunk.targets - chunk.sources
            away = sorted({target // size for target in wanted} - {home}, key=lambda node: (node - home) % nodes)
            route = list(pairwise([home, *away])) if relayed else [(home, node) for node in away]
            single = next(iter(wanted)) % size if len(wanted) == 1 else None
            pair = level.pair(chunk.owner % size, single) if away else None
            wait = number % problem.chunkup if pipelined else 0
            for depth, src, dst in legs(level, chunk.owner, wanted, route, pair, shape):
                yield RoundHop(wait + depth, number, src, dst)

    words = f"{shape} inside, {'node to node' if relayed else 'straight'} across"
    return Variant(words, problem, spread)
