"""Binomial tree: the whole buffer along one tree that every informed rank keeps growing, up first for sums.

On a switch of equal links this is the binomial tree; elsewhere the rank that can be informed first is informed next
(fastest-edge-first broadcast), so slow links carry the buffer once. One chunk, so log2 R latencies and no pipelining:
the algorithm for tiny buffers.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator

from treadle.planner.errors import InputError
from treadle.planner.passes.collective.limits import Effort
from treadle.planner.passes.collective.problem import Problem
from treadle.planner.passes.collective.scheduling import Resource
from treadle.planner.passes.collective.synthesis import Draft, Request
from treadle.planner.passes.collective.templates.template import RoundHop, Variant, best_draft, links_of, require
from treadle.planner.passes.collective.topology import Edge

COLLECTIVES = ("broadcast", "reduce", "allreduce")
MAX_ROOTS = 64


def synthesize(request: Request, effort: Effort) -> Draft:
    """The best root for an allreduce, else the request's. Raises InputError where ranks cannot be reached."""
    whole = request.problem(1, (0,) if request.collective == "allreduce" else None)
    require("binomial", whole, COLLECTIVES)
    if whole.collective != "allreduce":
        return best_draft("binomial", [_variant(whole, whole.root)])
    roots = range(min(whole.ranks, max(whole.per_node, MAX_ROOTS)))
    return best_draft("binomial", [_variant(request.problem(1, (root,)), root) for root in roots])


def _variant(problem: Problem, root: int) -> Variant:
    def spread(turned: bool) -> Iterator[RoundHop]:
        for round, (src, dst) in enumerate(fastest_tree(problem, root, turned)):
            yield RoundHop(round, 0, src, dst)

    return Variant(f"root {root}", problem, spread)


def fastest_tree(problem: Problem, root: int, turned: bool, within: range | None = None) -> list[Edge]:
    """The links by which all ranks (of `within`) are informed from `root`, in the order of arrival, each as early as
    possible.

    Turned around the tree adds up: sums at one rank take turns, so a rank spreads to one other at a time.
    """
    wanted = within or range(problem.ranks)
    links = {edge: link for edge, link in links_of(problem, turned).items() if edge[0] in wanted and edge[1] in wanted}
    ports: dict[Edge, list[Resource]] = defaultdict(list)
    for number, port in enumerate(problem.ports):
        for src, dst in port.links:
            ports[(dst, src) if turned else (src, dst)].append(("port", number, 0))
    out: dict[int, list[int]] = defaultdict(list)
    for src, dst in sorted(links):
        out[src].append(dst)
    free: dict[Resource, int] = defaultdict(int)
    ready = {root: 0}
    tree: list[Edge] = []

    def uses(src: int, dst: int) -> list[Resource]:
        return [("link", src, dst), *ports[src, dst], *([("sum", 0, src)] if turned else [])]

    def start(src: int, dst: int) -> int:
        return max(ready[src], max(free[resource] for resource in uses(src, dst)))

    def entry(src: int, dst: int) -> tuple[int, int, int, int]:
        link = links[src, dst]
        return start(src, dst) + link.alpha_ns + link.beta_ns, (dst - src) % problem.ranks, src, dst

    heap = [entry(root, dst) for dst in out[root]]
    heapq.heapify(heap)
    while heap:
        found = heapq.heappop(heap)
        arrive, _, src, dst = found
        if dst in ready:
            continue
        if (now := entry(src, dst)) != found:  # times only grow: the least true entry still comes first
            heapq.heappush(heap, now)
            continue
        link, begin = links[src, dst], start(src, dst)
        for resource in uses(src, dst):
            own = problem.ports[resource[1]].beta_ns if resource[0] == "port" else None
            piped = problem.latency == "pipelined" and resource[0] != "sum"
            free[resource] = begin + (link.beta_ns + (0 if piped else link.alpha_ns) if own is None else own)
        ready[dst] = arrive
        tree.append((src, dst))
        for other in out[dst]:
            if other not in ready:
                heapq.heappush(heap, entry(dst, other))
    if len(tree) < len(wanted) - 1:
        lost = min(set(wanted) - ready.keys())
        raise InputError(f"cannot reach rank {lost} from {root} over the sketch's links", where="method binomial")
    return tree
