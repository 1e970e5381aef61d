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

from treadle.planner.documents.collective import max_chunkup
from treadle.planner.documents.scalars import format_bytes
from treadle.planner.errors import InputError
from treadle.planner.passes.collective.collectives import Chunk
from treadle.planner.passes.collective.forwarding import forward
from treadle.planner.passes.collective.greedy import LEAST_CHUNK
from treadle.planner.passes.collective.groups import level_sizes
from treadle.planner.passes.collective.limits import Effort
from treadle.planner.passes.collective.matching import Hop, Rules, match
from treadle.planner.passes.collective.messages import (
    MAX_REORDERED,
    Message,
    in_order,
    moves_of_messages,
    schedule,
    timed,
)
from treadle.planner.passes.collective.ordering import list_orders
from treadle.planner.passes.collective.problem import Problem
from treadle.planner.passes.collective.scheduling import longest_path
from treadle.planner.passes.collective.synthesis import Draft, Request
from treadle.planner.passes.collective.topology import Edge, LinkNetwork
from treadle.planner.passes.collective.translations import Translations, node_translations

PIECES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
WORK = 60_000
"""Messages to time over all tries; one piece count is always tried."""
FEW_MESSAGES = 3_000
"""Messages whose order is improved once more at the end."""
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
    worse = spent = 0
    for pieces in PIECES:
        ranks = request.hardware.ranks
        if pieces > 1 and pieces > max_chunkup(request.collective, ranks):
            break
        problem = request.problem(pieces)
        if pieces > 1 and (problem.chunk_bytes < LEAST_CHUNK or 3 * spent > WORK):
            break
        before = best
        tries = (
            (group, words, messages)
            for size in _sizes(problem)
            for group in (node_translations(problem, size),)
            for words, messages in _variants(problem, group, size)
        )
        for group, words, messages in tries:
            spent += len(messages)
            end = in_order(moves_of_messages(problem, messages, group)).makespan
            if best is None or end < best.time_ns:
                best = _Try(problem, group, words, messages, end)
            if effort.exhausted():
                break
        worse = worse + 1 if best is before else 0
        if worse == PATIENCE or effort.exhausted():
            break
    assert best is not None
    final = schedule if len(best.messages) <= FEW_MESSAGES and not effort.exhausted() else timed
    return Draft(
        problem=best.problem,
        transfers=final(best.problem, best.messages, best.group),
        method=f"hierarchical, {best.words}, chunks of {format_bytes(best.problem.chunk_bytes)}",
        status="patterns of one node, list scheduling",
    )


def _sizes(problem: Problem) -> tuple[int, ...]:
    """Ranks of what a pattern takes as a node: a rack, and a node of several ranks."""
    first, *others = level_sizes(problem.topology)
    return first, *(size for size in others if size > 1)


def _variants(problem: Problem, group: Translations, size: int) -> Iterator[tuple[str, list[Message]]]:
    nodes = problem.ranks // size
    if problem.half != "forward" or problem.collective in ("allgather", "broadcast"):
        rooted = problem.collective in ("broadcast", "reduce")
        found = _copied(problem, group, size)
        for words, parent in (_ROOTED_ROUTES if rooted else _ROUTES).items() if nodes > 1 else [("one node", _direct)]:
            for run in _runs(problem, size) if parent is _direct and not rooted else [1]:
                back = [] if problem.half == "forward" else found(parent, run, True)
                there = [] if problem.half == "inverted" else found(parent, run, False)
                turned = [Message(one.chunks, one.dst, one.src, True) for one in reversed(back)]
                halves = _by_time(problem, group, turned, "backward") + _by_time(problem, group, there, "forward")
                yield words + (f", {run} chunks a message" if run > 1 else ""), halves
    elif all(len(chunk.targets) == 1 and not chunk.also for chunk in problem.chunks):
        for gate in ("source", "target", "straight"):
            messages = [Message((hop.chunk,), hop.src, hop.dst) for hop in _single_target(problem, group, size, gate)]
            yield f"across by {gate}", _by_time(problem, group, messages, "forward")
    else:
        raise InputError(f"found a {problem.collective} with several sources or some targets; use greedy", where=WHERE)


def _by_time(problem: Problem, group: Translations, messages: list[Message], direction: str) -> list[Message]:
    """The messages as they leave when each goes as soon as it can, or for sums as late as it can; as they stand where
    that is no sooner."""
    if len(messages) > MAX_REORDERED:
        return messages
    moves = moves_of_messages(problem, messages, group)
    found = longest_path(moves, list_orders(moves, problem.ranks, "earliest", direction))
    if found.makespan >= in_order(moves).makespan:
        return messages
    return [messages[index] for index in sorted(range(len(messages)), key=lambda i: (found.send[i], i))]


def _runs(problem: Problem, size: int) -> list[int]:
    """How many chunks of a node may cross in one message."""
    most = problem.batching.max_run if problem.batching.links else 1
    return [run for run in (1, 2, 4) if run <= min(most, size * problem.chunkup)]


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


def _copied(problem: Problem, group: Translations, size: int) -> Callable[[Route, int, bool], list[Message]]:
    """A function that gives the messages of chunks that go to every rank along a route, some of them in one message
    across; given True, no rank sends a chunk to two peers at a time."""
    nodes = problem.ranks // size
    homes = [number for number, chunk in enumerate(problem.chunks) if chunk.owner in group.roots]
    owners = [problem.chunks[number].owner % size for number in homes]
    rooted = problem.collective in ("broadcast", "reduce")
    spread = [number % size for number in range(len(homes))] if rooted else owners
    gates = _gates(problem, size, spread) if nodes > 1 else []
    inside = _inside(problem, size)
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

    def hops(parent: Route, run: int, turns: bool) -> list[Message]:
        local = trees([a for a, _ in gates] if gates and rooted else owners, turns)
        if gates and rooted:  # the gate comes first: its NIC must not wait for the rest of the node
            local = [
                _after(paths[owner, gate[0]], tree) for owner, gate, tree in zip(owners, gates, local, strict=True)
            ]
        # Chunks cross `run` at a time: each device of the run takes them to every run-th node.
        blocks = [range(first, min(first + run, len(homes))) for first in range(0, len(homes), run)]
        through = (
            [[gates[block[turn % len(block)]] for block in blocks for _ in block] for turn in range(run)]
            if gates
            else []
        )
        entered = [trees([b for _, b in gate], turns) for gate in through]
        whole = (nodes - 1) // run * run
        depth = [0]
        for offset in range(1, nodes):
            depth.append(depth[parent(offset)] + 1)
        found: list[tuple[tuple[int, int, int], Message]] = []
        for block in blocks:
            for index in block:
                number = homes[index]
                home = problem.chunks[number].owner // size
                wave = index // size if rooted else 0
                for offset in range(nodes):
                    here = (home + offset) % nodes * size
                    step = wave + depth[offset]
                    turn = (offset - 1) % run if offset <= whole else index - block[0]
                    if offset:
                        there = (home + parent(offset)) % nodes * size
                        a, b = through[turn][index]
                        together = block if offset <= whole and run > 1 else [index]
                        if index == together[0]:
                            numbers = tuple(homes[i] for i in together)
                            found.append(((step, offset, -1), Message(numbers, there + a, here + b)))
                    for place, (src, dst) in entered[turn][index] if offset else local[index]:
                        found.append(((step, offset, place), Message((number,), here + src, here + dst)))
        return [message for _, message in sorted(found, key=lambda entry: entry[0])]

    return hops


def _single_target(problem: Problem, group: Translations, size: int, by: str) -> list[Hop]:
    """Hops of chunks with one target: to the gate of the first or of the last device, across, and on; or straight
    across where there is a link."""
    nodes = problem.ranks // size
    gates = _gates(problem, size, range(size)) if nodes > 1 else []
    inside = _inside(problem, size)
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
            gate = gates[(src if by == "source" else dst) % size]
            if by == "straight" and (src, dst) in problem.links:
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


def _paths(inside: LinkNetwork, size: int, pairs: set[Edge]) -> dict[Edge, list[Edge]]:
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


def _gates(problem: Problem, size: int, devices: Sequence[int]) -> list[Edge]:
    """By chunk: the device it leaves its node from and the one it enters other nodes at, for chunks held by `devices`.

    Chunks whose own device has a link to its like come first; each takes the pair whose links and ports carry least,
    then the nearest. Raises InputError where no link leads out of a node.
    """
    network = problem.topology.routing
    across = sorted((src, dst - size) for src, dst in network.links if src < size <= dst < 2 * size)
    if not across:
        raise InputError("found no link between nodes, expected some; use greedy", where=WHERE)
    holders: dict[Edge, list[tuple[tuple[str, int, int], int]]] = {
        (a, b): [(("link", a, b), network.links[a, b + size].beta_ns)] for a, b in across
    }
    for number, port in enumerate(network.ports):
        for src, dst in port.links:
            if (src, dst - size) in holders and src < size <= dst < 2 * size:
                beta_ns = network.links[src, dst].beta_ns if port.beta_ns is None else port.beta_ns
                holders[src, dst - size].append((("port", number, 0), beta_ns))
    inside = {edge for edge in network.links if max(edge) < size}
    load: dict[tuple[str, int, int], int] = {}
    entered = [0] * size
    found: dict[int, Edge] = {}

    def price(device: int, edge: Edge) -> tuple[int, ...]:
        link = network.links[edge[0], edge[1] + size]
        a, b = edge
        near = 0 if a == device else 1 if (device, a) in inside else 2
        busy = max(load.get(use, 0) for use, _ in holders[edge])
        return busy + link.beta_ns, near, entered[b], int(b != device), a, b

    own = {a for a, _ in across}
    for chunk in sorted(range(len(devices)), key=lambda i: (devices[i] not in own, i)):
        device = devices[chunk]
        edge = min(across, key=lambda pair: price(device, pair))
        found[chunk] = edge
        entered[edge[1]] += 1
        for use, beta_ns in holders[edge]:
            load[use] = load.get(use, 0) + beta_ns
    return [found[chunk] for chunk in range(len(devices))]


def _inside(problem: Problem, size: int) -> LinkNetwork:
    """Links and ports of one node."""
    network = problem.topology.routing
    links = {edge: link for edge, link in network.links.items() if max(edge) < size}
    ports = []
    for port in network.ports:
        kept = tuple(edge for edge in port.links if edge in links)
        if kept:
            ports.append(replace(port, links=kept))
    return LinkNetwork(links, tuple(ports))
