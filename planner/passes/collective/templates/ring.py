"""Ring: every chunk goes round a cycle through all ranks, node by node; several cycles carry a piece each.

The bandwidth algorithm of NCCL ("Bandwidth optimal all-reduce algorithms for clusters of workstations"): R - 1 hops
for an allgather, twice that for an allreduce. Cycles are searched on the sketch's links, cheap links first, and each
next one avoids links and NICs that others use, so bidirectional rings and a ring for each NIC come out where they
exist. A broadcast goes down the chain in pieces.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from treadle.planner.errors import InputError
from treadle.planner.passes.collective.collectives import ROOTED
from treadle.planner.passes.collective.limits import Effort
from treadle.planner.passes.collective.problem import Problem
from treadle.planner.passes.collective.synthesis import Draft, Request
from treadle.planner.passes.collective.templates.hamilton import cheapest_path
from treadle.planner.passes.collective.templates.template import (
    RoundHop,
    Variant,
    best_draft,
    network_ports,
    piece_counts,
    require,
)
from treadle.planner.passes.collective.topology import Edge

COLLECTIVES = ("allgather", "reducescatter", "allreduce", "broadcast", "reduce")
MAX_RINGS = 8
PIECES = (1, 2, 4, 8, 16, 32, 64)


def synthesize(request: Request, effort: Effort) -> Draft:
    """The number of rings and pieces that ends soonest. Raises InputError where no ring is found."""
    whole = request.problem(1)
    require("ring", whole, COLLECTIVES)
    orders = rings(whole, MAX_RINGS)
    rooted = request.collective in ROOTED
    variants = []
    for count in sorted({min(count, len(orders)) for count in (1, 2, 4, MAX_RINGS)}):
        cuts = piece_counts(whole, [count * pieces for pieces in (PIECES if rooted else (1,))])
        for cut in cuts:
            if cut >= count:
                variants.append(_variant(request.problem(cut), orders[:count]))
    return best_draft("ring", variants)


def _variant(problem: Problem, orders: list[tuple[int, ...]]) -> Variant:
    place = [{rank: index for index, rank in enumerate(order)} for order in orders]

    def spread(turned: bool) -> Iterator[RoundHop]:
        step = -1 if turned else 1
        for number, chunk in enumerate(problem.chunks):
            turn, ring = divmod(number % problem.chunkup, len(orders))
            order, start = orders[ring], place[ring][chunk.owner]
            for hop in range(problem.ranks - 1):
                src, dst = (order[(start + step * (hop + k)) % problem.ranks] for k in (0, 1))
                yield RoundHop(turn + hop, number, src, dst)

    return Variant(f"{len(orders)} rings" if len(orders) > 1 else "1 ring", problem, spread)


def rings(problem: Problem, most: int) -> list[tuple[int, ...]]:
    """Up to `most` different cycles through all ranks, each rank before the one it sends to.

    Raises InputError where not even one is found.
    """
    size, nodes = problem.per_node, problem.ranks // problem.per_node
    if problem.ranks == 1:
        return [(0,)]
    local = {edge: link.alpha_ns + link.beta_ns for edge, link in problem.links.items() if max(edge) < size}
    across = {
        (o, i - size): link.alpha_ns + link.beta_ns
        for (o, i), link in problem.links.items()
        if o < size <= i < 2 * size
    }
    leaving, entering = network_ports(problem, size)
    used: Counter[Edge] = Counter()
    sent: Counter[int] = Counter()
    received: Counter[int] = Counter()
    found: list[tuple[int, ...]] = []
    while len(found) < most:
        cost = {edge: lat * (1 + used[edge]) for edge, lat in local.items()}
        close = cost if nodes == 1 else {
            (o, i): lat * (1 + sent[leaving[o]] + received[entering[i]]) for (o, i), lat in across.items()
        }  # fmt: skip
        starts = [0] if nodes == 1 else sorted({i for _, i in across}, key=lambda i: (_least(close, i), i))
        paths = [path for start in starts if (path := cheapest_path(size, cost, (start,), close)) is not None]
        if not paths or min(paths)[1] in found:
            break
        order = min(paths)[1]
        found.append(order)
        used.update(pairwise(order))
        if nodes == 1:
            used[order[-1], order[0]] += 1
        else:
            sent[leaving[order[-1]]] += 1
            received[entering[order[0]]] += 1
    if not found:
        message = f"found no ring through all {size} devices of a node on the sketch's links"
        raise InputError(message, where="method ring")
    return [tuple(node * size + device for node in range(nodes) for device in order) for order in found]


def _least(close: dict[Edge, int], start: int) -> int:
    return min(cost for (_, i), cost in close.items() if i == start)
