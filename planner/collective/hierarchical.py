"""Within nodes and across them: patterns for one node, repeated in all nodes and joined by the network.

All nodes are equal and every node reaches every other one, so what happens to the chunks of node 0 happens, turned by
n nodes, to those of node n (SyCCL's symmetry of a collective; here one message stands for its image in every node, see
`translations`). Three patterns make a plan:

    gates    chunk i of a node leaves its node at device a_i and enters others at device b_i, chosen so that NICs carry
             equal loads and few hops are needed;
    trees    how the chunks that a node's devices hold at one time spread in the node, by matching (see `matching`);
    routes   the order of nodes: `direct` from the home node to each other, `ring` from node to node, `chain` and
             `binary tree` from a root's node.

A chunk enters every node once, so the network carries no more than it must, and chunks spread inside a node while the
next arrive. Collectives without copies go to the gate, across, and to their target. Reducing ones run backwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from planner.collective.algorithm import max_chunkup
from planner.collective.collectives import Chunk
from planner.collective.draft import Draft, Request
from planner.collective.forwarding import forward
from planner.collective.greedy import LEAST_CHUNK, messages_of, problem_of
from planner.collective.limits import Effort
from planner.collective.matching import Hop, Rules, match
from planner.collective.messages import Message, in_order, moves_of_messages, schedule
from planner.collective.problem import Problem
from planner.collective.topology import Edge, Network
from planner.collective.translations import Translations, node_translations
from planner.errors import InputError
from planner.scalars import format_bytes

PIECES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
MOST_MESSAGES = 60_000
"""Messages to time for one try; more pieces are not tried."""
PATIENCE = 2
"""Piece counts in a row that may be no better than the best before."""

WHERE = "method hierarchical"


@dataclass(frozen=True)
class _Try:
    problem: Problem
    group: Translations
    words: str
    messages: list[Message]
    time_ns: int


def synthesize(request: Request, effort: Effort) -> Draft:
    """The best of the routes and piece counts tried.

    Raises InputError for inputs that do not fit together, where a node's devices are not connected, where no link
    leads to another node, and for chunks with several sources or with some but not all ranks as targets.
    """
    best: _Try | None = None
    worse = 0
    for pieces in PIECES:
        ranks = request.hardware.nodes * request.hardware.devices_per_node
        if pieces > 1 and pieces > max_chunkup(request.collective, ranks):
            break
        problem = problem_of(request, pieces)
        group = node_translations(problem)
        hops = sum(len(chunk.targets) for chunk in problem.chunks) // group.order
        if pieces > 1 and (problem.chunk_bytes < LEAST_CHUNK or hops > MOST_MESSAGES):
            break
        before = best
        for words, messages in _variants(problem, group):
            end = in_order(moves_of_messages(problem, messages, group)).makespan
            if best is None or end < best.time_ns:
                best = _Try(problem, group, words, messages, end)
        worse = worse + 1 if best is before else 0
        if worse == PATIENCE or effort.exhausted():
            break
    assert best is not None
    return Draft(
        problem=best.problem,
        transfers=schedule(best.problem, best.messages, best.group),
        method=f"hierarchical, {best.words}, chunks of {format_bytes(best.problem.chunk_bytes)}",
        status="patterns of one node, list scheduling",
    )


def _variants(problem: Problem, group: Translations) -> Iterator[tuple[str, list[Message]]]:
    nodes = problem.ranks // problem.per_node
    everyone = len(problem.chunks[0].targets) == problem.ranks
    if (everyone and problem.half != "forward") or problem.collective in ("allgather", "broadcast"):
        routes = _ROOTED_ROUTES if problem.collective in ("broadcast", "reduce") else _ROUTES
        found = _copied(problem, group, nodes)
        for words, parent in routes.items() if nodes > 1 else [("one node", _direct)]:
            back = [] if problem.half == "forward" else found(parent, True)
            there = [] if problem.half == "inverted" else found(parent, False)
            yield words, messages_of(back, there)
    elif all(len(chunk.targets) == 1 and not chunk.also for chunk in problem.chunks):
        for way in ("source", "target", "straight"):
            yield f"across by {way}", messages_of([], _carried(problem, group, way))
    else:
        raise InputError(f"found a {problem.collective} with several sources or some targets; use greedy", where=WHERE)


# Routes over nodes: by offset from the home node, the offset of the node before.


def _direct(offset: int) -> int:
    return 0


def _ring(offset: int) -> int:
    return offset - 1


def _binary(offset: int) -> int:
    return (offset - 1) // 2


Route = Callable[[int], int]
_ROUTES: dict[str, Route] = {"direct": _direct, "ring": _ring}
_ROOTED_ROUTES: dict[str, Route] = {"direct": _direct, "chain": _ring, "binary tree": _binary}


def _copied(problem: Problem, group: Translations, nodes: int) -> Callable[[Route, bool], list[Hop]]:
    """A function that gives the hops of chunks that go to every rank along a route; given True, no rank sends a chunk
    to two peers at a time."""
    size = problem.per_node
    homes = [number for number, chunk in enumerate(problem.chunks) if chunk.owner in group.roots]
    owners = [problem.chunks[number].owner % size for number in homes]
    rooted = problem.collective in ("broadcast", "reduce")
    spread = [number % size for number in range(len(homes))] if rooted else owners
    gates = _gates(problem, spread) if nodes > 1 else []
    inside = _inside(problem)
    paths = _paths(inside, size, {(owner, gate[0]) for owner, gate in zip(owners, gates, strict=False)})

    def trees(roots: Sequence[int], turns: bool) -> list[list[tuple[int, Edge]]]:
        """By chunk: the links it takes inside a node that it enters at `roots`, and where these stand in time."""
        rules = Rules(turns=turns, pipelined=problem.latency == "pipelined")
        hops = match(inside, Translations(size), roots, range(len(roots)), rules)
        if hops is None:
            raise InputError("found devices of a node that do not reach each other; use greedy", where=WHERE)
        found: list[list[tuple[int, Edge]]] = [[] for _ in roots]
        for place, hop in enumerate(hops):
            found[hop.chunk].append((place, (hop.src, hop.dst)))
        return found

    def hops(parent: Route, turns: bool) -> list[Hop]:
        local = trees([a for a, _ in gates] if gates and rooted else owners, turns)
        if gates and rooted:  # the gate comes first: its NIC must not wait for the rest of the node
            local = [
                _after(paths[owner, gate[0]], tree) for owner, gate, tree in zip(owners, gates, local, strict=True)
            ]
        entered = trees([b for _, b in gates], turns) if nodes > 1 else []
        depth = [0]
        for offset in range(1, nodes):
            depth.append(depth[parent(offset)] + 1)
        found: list[tuple[tuple[int, int, int], Hop]] = []
        for index, number in enumerate(homes):
            first = problem.chunks[number].owner // size
            wave = index // size if rooted else 0
            for offset in range(nodes):
                here = (first + offset) % nodes * size
                step = wave + depth[offset]
                if offset:
                    there = (first + parent(offset)) % nodes * size
                    found.append(((step, offset, -1), Hop(number, there + gates[index][0], here + gates[index][1])))
                for place, (src, dst) in entered[index] if offset else local[index]:
                    found.append(((step, offset, place), Hop(number, here + src, here + dst)))
        return [hop for _, hop in sorted(found, key=lambda entry: entry[0])]

    return hops


def _carried(problem: Problem, group: Translations, way: str) -> list[Hop]:
    """Hops of chunks with one target: to the gate of the source's or of the target's device, across, and on; or
    straight across where there is a link."""
    size, nodes = problem.per_node, problem.ranks // problem.per_node
    gates = _gates(problem, range(size)) if nodes > 1 else []
    inside = _inside(problem)
    pairs: set[Edge] = set()
    legs: list[tuple[int, int, int, Edge | None]] = []
    """(chunk, source, target, gate)"""
    for number, chunk in enumerate(problem.chunks):
        src, (dst,) = chunk.owner, chunk.targets
        if src == dst or src not in group.roots:
            continue
        gate = None
        if src // size == dst // size:
            pairs.add((src % size, dst % size))
        else:
            gate = gates[(src if way == "source" else dst) % size]
            if way == "straight" and (src, dst) in problem.links:
                gate = src % size, dst % size
            pairs |= {(src % size, gate[0]), (gate[1], dst % size)}
        legs.append((number, src, dst, gate))
    paths = _paths(inside, size, pairs)
    found: list[tuple[tuple[int, int], Hop]] = []
    for number, src, dst, gate in legs:
        here, there = src - src % size, dst - dst % size
        key = ((there - here) // size % nodes, (dst - src) % size)
        if gate is None:
            found += [(key, Hop(number, here + a, here + b)) for a, b in paths[src % size, dst % size]]
            continue
        found += [(key, Hop(number, here + a, here + b)) for a, b in paths[src % size, gate[0]]]
        found.append((key, Hop(number, here + gate[0], there + gate[1])))
        found += [(key, Hop(number, there + a, there + b)) for a, b in paths[gate[1], dst % size]]
    return [hop for _, hop in sorted(found, key=lambda entry: entry[0])]


def _paths(inside: Network, size: int, pairs: set[Edge]) -> dict[Edge, list[Edge]]:
    """Paths inside a node between the pairs of devices, balanced over its links."""
    ordered = sorted(pairs)
    chunks = [(number, Chunk(src, frozenset({dst}))) for number, (src, dst) in enumerate(ordered)]
    found: dict[Edge, list[Edge]] = {pair: [] for pair in ordered}
    for number, src, dst in forward(inside, Translations(size), chunks):
        found[ordered[number]].append((src, dst))
    return found


def _after(path: Sequence[Edge], tree: Sequence[tuple[int, Edge]]) -> list[tuple[int, Edge]]:
    """The tree from the end of a path, behind it, without what the path has passed."""
    passed = {rank for edge in path for rank in edge}
    first = min((place for place, _ in tree), default=0)
    return [*((first, edge) for edge in path), *((place, edge) for place, edge in tree if edge[1] not in passed)]


def _gates(problem: Problem, devices: Sequence[int]) -> list[Edge]:
    """By chunk: the device it leaves its node from and the one it enters other nodes at, for chunks held by `devices`.

    Chunks whose own device has a link to its like come first; each takes the pair whose links and ports carry least,
    then the nearest. Raises InputError where no link leads out of a node.
    """
    size, network = problem.per_node, problem.topology.routing
    across = sorted((src, dst - size) for src, dst in network.links if src < size <= dst < 2 * size)
    if not across:
        raise InputError("found no link between nodes, expected some; use greedy", where=WHERE)
    holders = {edge: [("link", *edge)] for edge in across}
    for number, port in enumerate(network.ports):
        for src, dst in port.links:
            if (src, dst - size) in holders and src < size <= dst < 2 * size:
                holders[src, dst - size].append(("port", number, 0))
    inside = {edge for edge in network.links if max(edge) < size}
    load: dict[tuple[str, int, int], int] = {}
    entered = [0] * size
    found: dict[int, Edge] = {}

    def price(device: int, edge: Edge) -> tuple[int, ...]:
        link = network.links[edge[0], edge[1] + size]
        a, b = edge
        near = 0 if a == device else 1 if (device, a) in inside else 2
        return max(load.get(use, 0) for use in holders[edge]) + link.beta_ns, near, entered[b], int(b != device), a, b

    own = {a for a, _ in across}
    for chunk in sorted(range(len(devices)), key=lambda i: (devices[i] not in own, i)):
        device = devices[chunk]
        edge = min(across, key=lambda pair: price(device, pair))
        found[chunk] = edge
        entered[edge[1]] += 1
        for use in holders[edge]:
            load[use] = load.get(use, 0) + network.links[edge[0], edge[1] + size].beta_ns
    return [found[chunk] for chunk in range(len(devices))]


def _inside(problem: Problem) -> Network:
    """Links and ports of one node."""
    size, network = problem.per_node, problem.topology.routing
    links = {edge: link for edge, link in network.links.items() if max(edge) < size}
    ports = []
    for port in network.ports:
        kept = tuple(edge for edge in port.links if edge in links)
        if kept:
            ports.append(replace(port, links=kept))
    return Network(links, tuple(ports))
