"""The collective problem, all explicit: chunks, links with whole-ns costs, ports, allowed links, ties, batching rules.

Chunk bytes are the input buffer over the number of pieces, rounded up: the runtime pads the last piece, and the plan
is costed for the padded size. One chunk over link l costs lat = alpha_l + beta_l, beta_l being that of one chunk.

A chunk may visit only ranks on shortest paths (in hops, over the links it is allowed at all) from any of its sources
to its targets (TACCL, section 5.5). With a relay map a chunk crosses nodes only out of a home node, one
where it starts, and only from a relay of one of its sources.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations
from math import ceil
from typing import Literal

from treadle.planner.documents.collective import Collective, Demand, max_chunkup
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.sketch import Sketch
from treadle.planner.errors import InputError
from treadle.planner.passes.collective.algorithm import Latency, LinkCost, Port, SwitchCost
from treadle.planner.passes.collective.collectives import (
    DEMANDING,
    IN_SWITCH,
    INVERTED,
    ROOTED,
    Chunk,
    form,
    permuted_chunks,
    pieces,
    positions,
    routed_chunks,
)
from treadle.planner.passes.collective.groups import renumbered
from treadle.planner.passes.collective.symmetry import rank_maps
from treadle.planner.passes.collective.topology import Edge, LogicalTopology, build_topology, relays_of

MAX_LINK_NS = 2**46
"""What one chunk may take on one link, most of a day, so that sums of times stay within 62 bits."""
MAX_CHOICES = 250_000


@dataclass(frozen=True)
class Tie:
    """A symmetry: the transfer of c over s -> d is tied to that of chunks[c] over ranks[s] -> ranks[d] where s and d
    lie in one block (block[s] == block[d])."""

    ranks: tuple[int, ...]
    chunks: tuple[int, ...]
    block: tuple[int, ...]


@dataclass(frozen=True)
class Batching:
    """Which links may send chunks as one message, how many at most, and whether these must be neighbours by id."""

    links: frozenset[Edge] = frozenset()
    max_run: int = 1
    adjacent: bool = True


@dataclass(frozen=True)
class Problem:
    """`topology.routing` and `allowed` have the routed direction, `topology.plan` that of transfers."""

    collective: Collective
    ranks: int
    per_node: int
    chunkup: int
    root: int
    input_bytes: int
    chunk_bytes: int
    chunks: tuple[Chunk, ...]
    topology: LogicalTopology
    allowed: tuple[tuple[Edge, ...], ...]
    """By chunk: the links it may use, sorted; none lead into a source. Empty where the sketch's restrictions of
    routes were not asked for."""
    ties: tuple[Tie, ...]
    batching: Batching
    latency: Latency = "serial"
    roots: tuple[int, ...] | None = None
    demands: tuple[Demand, ...] | None = None

    @property
    def links(self) -> dict[Edge, LinkCost]:
        return self.topology.plan.links

    @property
    def ports(self) -> tuple[Port, ...]:
        return self.topology.plan.ports

    @cached_property
    def switches(self) -> tuple[SwitchCost, ...]:
        """The switches that can do something for the collective, at the costs of the links between their members."""
        useful = {*IN_SWITCH.get(self.collective, ())}
        return tuple(
            switch
            for switch in self.topology.switches
            if useful & {*switch.in_network}
            and all(
                (self.links[pair].alpha_ns, self.links[pair].beta_ns) == (switch.alpha_ns, switch.beta_ns)
                for pair in permutations(switch.members, 2)
            )
        )

    @cached_property
    def _places(self) -> tuple[list[dict[int, int]], list[dict[int, int]]]:
        asked = form(self.collective, self.ranks, self.chunkup, self.root, self.roots, self.demands)
        before, after = (
            [{chunk: index for index, chunk in enumerate(held)} for held in positions(members, self.ranks)]
            for members in (asked.before, asked.after)
        )
        return before, after

    def input_index(self, rank: int, chunk: int) -> int | None:
        """Where in its input `rank` holds `chunk`, None where it does not."""
        return self._places[0][rank].get(chunk)

    def output_index(self, rank: int, chunk: int) -> int | None:
        """Where in its output `rank` must hold `chunk` in the end, None where it need not."""
        return self._places[1][rank].get(chunk)

    @property
    def half(self) -> Literal["forward", "inverted", "both"]:
        """Whether routes are run as they are, backwards, or backwards and then forwards."""
        return {"allreduce": "both", "reducescatter": "inverted", "reduce": "inverted"}.get(self.collective, "forward")  # type: ignore[return-value]


def build_problem(
    collective: Collective,
    hardware: Hardware,
    sketch: Sketch,
    size_bytes: int | None = None,
    root: int = 0,
    chunkup: int | None = None,
    *,
    roots: Sequence[int] | None = None,
    demands: Sequence[Demand] | None = None,
    restricted: bool = True,
    order: Sequence[int] | None = None,
) -> Problem:
    """State the problem. `size_bytes` is the input buffer of one rank and overrides the sketch's `input_size`.

    `chunkup` overrides the sketch's; `roots` give an allreduce as many chunks as a method wants, `demands` state
    an irregular collective. `restricted` asks for the sketch's restrictions of routes (relays, shortest paths,
    symmetry), which only the MILP follows. With `order`, rank order[i] of the hardware is i in the problem, in `root`
    and `demands` too; a restricted problem takes none.

    Raises InputError where sketch, hardware and collective do not fit together or a rank cannot be reached.
    """
    where = f"sketch {sketch.name}"
    ranks = hardware.ranks
    chunkup = chunkup or sketch.hyperparameters.input_chunkup
    if not 0 <= root < ranks:
        raise InputError(f"found {root}, expected a rank below {ranks}", where="--root")
    if (demands is None) == (collective in DEMANDING):
        raise InputError(f"{collective} takes {'a pattern' if demands is None else 'no pattern'}", where="--pattern")
    for demand in demands or ():
        if (most := max(*demand.sources, *demand.targets)) >= ranks:
            raise InputError(f"found rank {most}, expected one below {ranks}", where="--pattern")
    size = _input_bytes(sketch, size_bytes)
    chunk_bytes = ceil(size / pieces(collective, ranks, chunkup, roots, demands))
    topology = build_topology(
        hardware,
        sketch,
        chunk_bytes,
        forward=collective == "allreduce" or collective not in INVERTED,
        inverted=collective in INVERTED,
    )
    if order is not None:
        topology = renumbered(topology, order)
    slowest = max(topology.plan.links.values(), key=lambda link: link.alpha_ns + link.beta_ns, default=None)
    if slowest is not None and slowest.alpha_ns + slowest.beta_ns > MAX_LINK_NS:
        raise InputError(
            f"found link {slowest.src} -> {slowest.dst}, which takes {slowest.alpha_ns + slowest.beta_ns:.2g} ns for "
            f"{chunk_bytes} bytes, expected at most {MAX_LINK_NS:.2g}; lower its costs or the size",
            where=hardware.name,
        )
    if chunkup > (most := max_chunkup(collective, ranks)):
        raise InputError(
            f"found {chunkup}, expected at most {most} for {collective} of {ranks} ranks",
            where=where,
            path="$.hyperparameters.input_chunkup",
        )
    chunks = routed_chunks(collective, ranks, chunkup, root, roots, demands)
    _require_reach(chunks, topology, where, hardware.name)
    allowed = _allowed(chunks, topology, sketch, hardware.name) if restricted else ()
    choices = sum(map(len, allowed))
    if choices > MAX_CHOICES:
        raise InputError(
            f"found {choices} possible transfers, expected at most {MAX_CHOICES}; leave fewer links or name relays",
            where=where,
        )
    return Problem(
        collective=collective,
        ranks=ranks,
        per_node=topology.per_node,
        chunkup=chunkup,
        root=root if collective in ROOTED else 0,
        input_bytes=size,
        chunk_bytes=chunk_bytes,
        chunks=chunks,
        topology=topology,
        allowed=allowed,
        ties=_ties(collective, sketch, topology, chunks, chunkup, root) if restricted else (),
        batching=Batching(
            links=frozenset(e for e, link in topology.plan.links.items() if link.kind in sketch.contiguity.links)
            if hardware.latency == "serial"
            else frozenset(),
            max_run=sketch.contiguity.max_run,
            adjacent=sketch.contiguity.require_memory_contiguous,
        ),
        latency=hardware.latency,
        roots=None if roots is None else tuple(roots),
        demands=None if demands is None else tuple(demands),
    )


def _input_bytes(sketch: Sketch, size_bytes: int | None) -> int:
    where, path = "--size", ""
    if size_bytes is None:
        where, path = f"sketch {sketch.name}", "$.hyperparameters.input_size"
        sizes = sketch.sizes
        if len(sizes) != 1:
            found = f"{len(sizes)} input sizes" if sizes else "no input size"
            raise InputError(f"found {found}, expected one here or with --size", where=where, path=path)
        (size_bytes,) = sizes
    if not 1 <= size_bytes <= 2**50:
        raise InputError(f"found {size_bytes} bytes, expected 1 byte to 1 PiB", where=where, path=path)
    return size_bytes


def _require_reach(chunks: Sequence[Chunk], topology: LogicalTopology, where: str, profile: str) -> None:
    """Raises InputError where links do not lead from where a chunk is to where it must go."""
    after: dict[int, list[int]] = {rank: [] for rank in range(topology.ranks)}
    before: dict[int, list[int]] = {rank: [] for rank in range(topology.ranks)}
    for src, dst in topology.routing.links:
        after[src].append(dst)
        before[dst].append(src)
    if len(_hops(0, after)) == len(_hops(0, before)) == topology.ranks:
        return
    reached: dict[frozenset[int], set[int]] = {}
    for chunk in chunks:
        if chunk.sources not in reached:
            reached[chunk.sources] = {rank for source in chunk.sources for rank in _hops(source, after)}
        if missed := chunk.targets - reached[chunk.sources]:
            raise _unreachable(chunk.sources, min(missed), where, profile)


def _unreachable(sources: Iterable[int], target: int, where: str, profile: str) -> InputError:
    named = " and ".join(map(str, sorted(sources)))
    return InputError(
        f"rank {named} cannot reach rank {target} over the links that the sketch leaves of profile {profile!r}; add "
        "links to one of them, or relays",
        where=where,
    )


def _allowed(
    chunks: Sequence[Chunk], topology: LogicalTopology, sketch: Sketch, profile: str
) -> tuple[tuple[Edge, ...], ...]:
    per_node = topology.per_node
    cache: dict[Chunk, tuple[Edge, ...]] = {}

    def links_of(chunk: Chunk) -> tuple[Edge, ...]:
        homes = {source // per_node for source in chunk.sources}
        leaving = [relays_of(sketch, source, per_node) for source in sorted(chunk.sources)]
        relays = None if None in leaving else {relay for some in leaving for relay in some or ()}
        stays = all(target // per_node in homes for target in chunk.targets)
        usable = []
        for src, dst in topology.routing.links:
            crosses = src // per_node != dst // per_node
            if dst in chunk.sources or (crosses and (stays or (relays is not None and src not in relays))):
                continue
            usable.append((src, dst))
        visited = _on_shortest_paths(chunk, usable, topology.ranks, sketch, profile)
        return tuple(edge for edge in usable if edge[0] in visited and edge[1] in visited)

    for chunk in chunks:
        if chunk not in cache:
            cache[chunk] = links_of(chunk)
    return tuple(cache[chunk] for chunk in chunks)


def _on_shortest_paths(chunk: Chunk, edges: Iterable[Edge], ranks: int, sketch: Sketch, profile: str) -> set[int]:
    after: dict[int, list[int]] = {rank: [] for rank in range(ranks)}
    before: dict[int, list[int]] = {rank: [] for rank in range(ranks)}
    for src, dst in edges:
        after[src].append(dst)
        before[dst].append(src)
    hops_from = {source: _hops(source, after) for source in sorted(chunk.sources)}
    for target in sorted(chunk.targets):
        if not any(target in found for found in hops_from.values()):
            raise _unreachable(hops_from, target, f"sketch {sketch.name}", profile)
    if len(chunk.targets) == ranks:
        return set(range(ranks))
    visited = set(chunk.sources)
    for target in sorted(chunk.targets):
        to_target = _hops(target, before)
        for found in hops_from.values():
            visited |= {x for x, d in found.items() if x in to_target and d + to_target[x] == found.get(target)}
    return visited


def _hops(start: int, neighbours: dict[int, list[int]]) -> dict[int, int]:
    found = {start: 0}
    queue = deque([start])
    while queue:
        rank = queue.popleft()
        for other in neighbours[rank]:
            if other not in found:
                found[other] = found[rank] + 1
                queue.append(other)
    return found


def _ties(
    collective: Collective,
    sketch: Sketch,
    topology: LogicalTopology,
    chunks: Sequence[Chunk],
    chunkup: int,
    root: int,
) -> tuple[Tie, ...]:
    """The sketch's symmetries, validated. Rooted collectives keep those that leave the root in place."""
    if collective in DEMANDING:
        return ()
    ties = []
    for one in rank_maps(sketch, topology.ranks, topology.per_node, root if collective in ROOTED else None):
        tie = Tie(one.perm, permuted_chunks(collective, chunkup, one.perm), one.block)
        reason = _asymmetry(tie, topology, chunks, sketch)
        if reason:
            where = f"sketch {sketch.name}"
            raise InputError(f"found a map that is no symmetry: {reason}", where=where, path=one.path)
        ties.append(tie)
    return tuple(ties)


def _asymmetry(tie: Tie, topology: LogicalTopology, chunks: Sequence[Chunk], sketch: Sketch) -> str:
    """Why `tie` does not map the problem onto itself, or the empty string."""
    perm, links = tie.ranks, topology.routing.links
    image: dict[int, int] = {}
    for rank, block in enumerate(tie.block):
        if image.setdefault(block, tie.block[perm[rank]]) != tie.block[perm[rank]]:
            return f"the block of rank {rank} is not mapped onto one block"
    policies = {edge: h.policy for h in topology.hyperedges for edge in h.links}
    for (src, dst), link in links.items():
        if tie.block[src] != tie.block[dst]:
            continue
        edge = (perm[src], perm[dst])
        other = links.get(edge)
        if other is None:
            return f"link {src} -> {dst} maps to {edge[0]} -> {edge[1]}, which the sketch does not have"
        if (link.alpha_ns, link.beta_ns) != (other.alpha_ns, other.beta_ns):
            return f"links {src} -> {dst} and {edge[0]} -> {edge[1]} cost differently"
        if policies.get((src, dst)) != policies.get(edge):
            return f"links {src} -> {dst} and {edge[0]} -> {edge[1]} have different switch policies"
    for number, chunk in enumerate(chunks):
        other_chunk = chunks[tie.chunks[number]]
        sources = {perm[source] for source in chunk.sources}
        if sources != other_chunk.sources or {perm[t] for t in chunk.targets} != other_chunk.targets:
            return f"chunk {number} does not map onto chunk {tie.chunks[number]}"
    for rank in range(topology.ranks):
        relays = relays_of(sketch, rank, topology.per_node)
        images = None if relays is None else frozenset(perm[relay] for relay in relays)
        if images != relays_of(sketch, perm[rank], topology.per_node):
            return f"the relay of rank {rank} does not map onto the relay of rank {perm[rank]}"
    return ""
