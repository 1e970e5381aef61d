"""Proven lower bounds on the time of a collective over the plan's links, whatever the routes and orders.

n chunks occupy link l for at least alpha_l * ceil(n / run_l) + n * beta_l, where run_l is the largest message the
sketch allows on l (1: every chunk pays its alpha); with pipelined latency for n * beta_l, and the last arrives alpha_l
later. So in time T link l carries at most a whole number n_l(T), and a
port no more than its cheapest link would. All arithmetic that a bound rests on is exact; real-valued flows only
propose cuts.

    cut        if D chunks must cross from the ranks S to the rest, T >= head + T_D + tail, where T_D is the least time
               in which a maximum flow with the capacities n_l(T_D) lets D chunks across. head: the least path before
               any of the D can begin to cross; tail: the least path that must follow the last crossing. Cuts tried:
               every rank and every node alone, in both directions, and for allgather the worst cut of all, found by
               Dinkelbach's method over minimum cuts (the throughput optimum of ForestColl).
    in switch  allreduce of one switch that adds up or multicasts, see `universal`; then there is neither of the next
               two, but between groups that share no such switch.
    messages   an allreduce needs 2 (P - 1) messages per chunk between any P disjoint groups of ranks (gossip:
               P - 1 before the first knows all, one more for each other), so T >= 2 (P - 1) * chunks / (sum of what
               crosses between groups per ns).
    work       alltoall: the sum over chunks of their cheapest paths, over the number of links.
    latency    the costliest of all cheapest paths that some chunk must take.
    doubling   sums of one chunk at one rank take turns, so after k times the least link cost at most 2^k
               contributions are together: T >= ceil(log2 R) * min(alpha + beta).

A switch that adds up or multicasts holds ports for beta alone, so links between its members count as if latency were
pipelined.

Reducescatter and reduce run backwards in time over reversed links what allgather and broadcast do, so they have the
bounds of those on the reversed links.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import permutations
from math import ceil, floor, inf

import numpy as np
from msgspec.structs import replace as with_fields

from treadle.planner.passes.collective.algorithm import LinkCost, Port
from treadle.planner.passes.collective.groups import disjoint
from treadle.planner.passes.collective.problem import Problem
from treadle.planner.passes.collective.throughput import Flow, flow_of, worst_sets
from treadle.planner.passes.collective.topology import Edge
from treadle.planner.passes.collective.translations import Translations, translations
from treadle.planner.search.bound import Argument, Bound, Facts

SCALE = 2**40

PROVED_BY_SOLVER = "No routing has less congestion and shorter paths, which the solver proved."
"""The argument of a bound that is the optimum of the routing problem; see `is_unrestricted`."""

PROVED_BY_SEARCH = "No schedule of these chunks on these links ends sooner: a search over all orders proved it."
"""The argument of a bound that is the optimum of the whole problem; see `is_searchable`."""

UNIVERSAL = "Whatever the pieces, routes and orders, "
"""How the arguments over all pieces begin."""

SENTENCES = {
    "one rank": "One rank has nothing to send.",
    "nothing": "Nothing has to move.",
    "path": "the cheapest path from rank {src} to rank {dst} takes {path} ns.",
    "rounds": "sums of one chunk take turns, so {ranks} contributions need {rounds} rounds of at least {least} ns.",
    "cut": "{demand} {unit} must go {cut}, which takes {crossing} ns",
    "messages": (
        "an allreduce needs {demand} messages between its {count} {groups}, which exchange one every {each:.6g} ns at "
        "best."
    ),
    "work": "the cheapest paths of all chunks keep the {links} links busy for {busy:.6g} ns.",
    "groups": "between its {count} {groups} an allreduce moves {demand} bytes, which takes {moving} ns.",
    "in switch": (
        "what a switch adds up leaves all {ranks} ranks and what it multicasts enters all, so an allreduce moves "
        "{moved} {unit} through the {ports} ports, which takes {moving} ns."
    ),
    "outside": (
        "sums of one chunk take turns, so the {width} contributions of one node are nowhere outside it before "
        "{outside} ns."
    ),
    "prices": "at the prices of {prices}, all bytes of an alltoall pay for {paid} ns of the links and ports.",
    "routing": PROVED_BY_SOLVER,
    "search": PROVED_BY_SEARCH,
}
"""The argument of each kind of bound."""


def sentence(bound: Bound) -> str:
    """Why `bound` holds, in words."""
    argument = bound.argument
    text = argument.printed(SENTENCES)
    if argument.kind == "cut":
        first, last = argument.terms.get("first"), argument.terms.get("last")
        text += f", {first} ns pass before the first can" if first else ""
        text += f", {last} ns after the last." if last else "."
    if bound.scope == "all pieces" and argument.kind not in ("one rank", "nothing"):
        return UNIVERSAL + text
    return text[0].upper() + text[1:]


def cut_bound(demand: int, unit: str, cut: str, crossing: int, first: int, last: int) -> Bound:
    """The bound for `demand` chunks or bytes that cross a cut in `crossing` ns, `first` ns before any can and `last`
    after; zeros are left out."""
    terms = {"crossing": crossing, **({"first": first} if first else {}), **({"last": last} if last else {})}
    return Bound(crossing + first + last, Argument("cut", terms, {"demand": demand, "unit": unit, "cut": cut}))


def in_switch_bound(ranks: int, alpha: int, held: Fraction, demand: int, unit: str) -> Bound:
    """The bound of an allreduce over equal ports of one switch that adds up or multicasts, whose `demand` chunks or
    bytes hold a port for `held` ns; from three ranks on."""
    moving = alpha + ceil(held * (ranks + 1) / ranks)
    facts: Facts = {"ranks": ranks, "moved": 2 * (ranks + 1) * demand, "unit": unit, "ports": 2 * ranks}
    return Bound(moving, Argument("in switch", {"moving": moving}, facts))


def every_port(ranks: int, ports: Iterable[tuple[Edge, ...]]) -> bool:
    """Whether each rank has one port for all that it sends to the others, and one for all that it receives."""
    found = {frozenset(port) for port in ports}
    others = [[other for other in range(ranks) if other != rank] for rank in range(ranks)]
    return all(
        frozenset((rank, other) for other in others[rank]) in found
        and frozenset((other, rank) for other in others[rank]) in found
        for rank in range(ranks)
    )


@dataclass(frozen=True)
class BoundNetwork:
    """What a bound is computed on: links and ports in the direction in which chunks spread, and ns per chunk."""

    ranks: int
    links: dict[Edge, LinkCost]
    ports: tuple[Port, ...]
    run: dict[Edge, int]
    weight: dict[Edge, Fraction]
    """ns that a chunk occupies each link at least, on average over the largest messages."""
    lat: dict[Edge, int]
    loose: frozenset[Edge] = frozenset()
    """The links that a chunk may hold for beta alone."""

    @cached_property
    def flow(self) -> Flow:
        """The links and what they share."""
        plain = [port.links for port in self.ports if port.beta_ns is None]
        uplinks = [(port.links, Fraction(port.beta_ns)) for port in self.ports if port.beta_ns is not None]
        return flow_of(self.ranks, list(self.links), plain, uplinks)


def lower_bound(problem: Problem) -> Bound:
    """The largest of the bounds that hold for the problem's collective; the first of equals."""
    network = _network(problem)
    if problem.ranks == 1:
        return Bound(0, Argument("one rank"), "these pieces")
    distance = _distances(network)
    group = translations(problem)
    found = [*_latency(problem, network, distance, group), *_cuts(problem, network, distance, group)]
    if problem.collective == "allreduce":
        found += [*_messages(problem, network, group), *_in_switch(problem)]
    if problem.collective == "alltoall":
        found += _work(problem, network, distance)
    return replace(max(found, key=lambda bound: bound.time_ns), scope="these pieces")


def is_unrestricted(problem: Problem) -> bool:
    """Whether the routing relaxation bounds every schedule: nothing but links and chunks restricts it, each chunk pays
    its alpha on each link, no switch does a part of it, and with at most two nodes crossing directly (A13) is no
    restriction either."""
    links = problem.topology.routing.links
    free = all(
        len(edges) == sum(dst not in chunk.sources for _, dst in links)
        for chunk, edges in zip(problem.chunks, problem.allowed, strict=True)
    )
    if problem.switches:
        return False
    unbatched = not problem.batching.links or problem.batching.max_run == 1
    return problem.half != "both" and not problem.ties and free and unbatched and problem.ranks <= 2 * problem.per_node


def is_searchable(problem: Problem) -> bool:
    """Whether the exact model's optimum bounds every schedule: all routes and orders, but no batches, and the sums of
    an allreduce meet at one rank there, and no switch does a part of it."""
    unbatched = not problem.batching.links or problem.batching.max_run == 1
    return not problem.switches and problem.half != "both" and unbatched


def _network(problem: Problem) -> BoundNetwork:
    turn = problem.half == "inverted"

    def facing(edge: Edge) -> Edge:
        return (edge[1], edge[0]) if turn else edge

    loose = frozenset(problem.links)
    if problem.latency == "serial":
        loose = frozenset(pair for switch in problem.switches for pair in permutations(switch.members, 2))
    run = {edge: problem.batching.max_run if edge in problem.batching.links else 1 for edge in problem.links}
    return BoundNetwork(
        ranks=problem.ranks,
        links={facing(edge): link for edge, link in problem.links.items()},
        ports=tuple(with_fields(p, links=tuple(facing(e) for e in p.links)) for p in problem.ports),
        run={facing(e): size for e, size in run.items()},
        weight={facing(e): _weight(link, run[e], e in loose) for e, link in problem.links.items()},
        lat={facing(e): link.alpha_ns + link.beta_ns for e, link in problem.links.items()},
        loose=frozenset(map(facing, loose)),
    )


def _weight(link: LinkCost, run: int, loose: bool) -> Fraction:
    if loose:
        return Fraction(max(1, link.beta_ns))
    return Fraction(link.alpha_ns, run) + link.beta_ns


def _distances(network: BoundNetwork) -> list[list[float]]:
    """distance[a][b]: the least sum of alpha + beta from a to b (Floyd and Warshall, in numpy)."""
    import numpy as np

    d = np.full((network.ranks, network.ranks), inf)
    np.fill_diagonal(d, 0)
    for (src, dst), lat in network.lat.items():
        d[src, dst] = lat
    for middle in range(network.ranks):
        d = np.minimum(d, d[:, middle : middle + 1] + d[middle : middle + 1, :])
    rows: list[list[float]] = d.tolist()
    return rows


def _latency(
    problem: Problem, network: BoundNetwork, distance: list[list[float]], group: Translations
) -> Iterator[Bound]:
    farthest = max(
        min((int(distance[source][target]), source, target) for source in chunk.sources)
        for chunk in {chunk for chunk in problem.chunks if group.representative[chunk.owner] == chunk.owner}
        for target in chunk.targets
    )
    src, dst = (farthest[2], farthest[1]) if problem.half == "inverted" else farthest[1:]
    yield Bound(farthest[0], Argument("path", {"path": farthest[0]}, {"src": src, "dst": dst}))
    if problem.half != "forward" and not problem.switches:
        rounds, least = (problem.ranks - 1).bit_length(), min(network.lat.values())
        yield Bound(
            rounds * least, Argument("rounds", facts={"ranks": problem.ranks, "rounds": rounds, "least": least})
        )


def _cuts(problem: Problem, network: BoundNetwork, distance: list[list[float]], group: Translations) -> Iterator[Bound]:
    """The best cut bound; a cut is only searched where it beats the best so far, and one of those that translations
    take to each other."""
    everyone = frozenset(range(problem.ranks))
    groups = {frozenset({rank}) for rank in group.roots}
    for base in sorted({rank - rank % problem.per_node for rank in group.roots}):
        groups.add(frozenset(range(base, base + problem.per_node)))
    groups.update(problem.topology.islands, problem.topology.racks)
    sources = groups | {everyone - group for group in groups}
    if problem.collective in ("allgather", "reducescatter"):
        sources |= _worst_cuts(problem, network, group)
    best = 0
    for source in sorted(sources - {everyone, frozenset()}, key=lambda s: (len(s), sorted(s))):
        found = _cut(problem, network, distance, source, best)
        if found is not None:
            best = found.time_ns
            yield found


def _cut(
    problem: Problem, network: BoundNetwork, distance: list[list[float]], source: frozenset[int], best: int
) -> Bound | None:
    crossing = [edge for edge in network.links if edge[0] in source and edge[1] not in source]
    heads, tails = {edge[1] for edge in crossing}, {edge[0] for edge in crossing}
    if problem.collective == "allreduce":  # every chunk holds something of every rank and every rank wants it
        demand, before, behind = len(problem.chunks), 0, 0
    else:
        must = [c for c in problem.chunks if c.sources <= source and not c.targets <= source]
        kinds = set(must)
        demand = len(must)
        before = min((_nearest(distance, c.sources, tails) for c in kinds), default=0)
        behind = min((_farthest(distance, heads, c.targets - source) for c in kinds), default=0)
    if not demand or _carried(network, source, best - before - behind) >= demand:
        return None
    short, enough = max(0, best - before - behind), demand * max(network.lat.values())
    while enough - short > 1:
        middle = (short + enough) // 2
        if _carried(network, source, middle) >= demand:
            enough = middle
        else:
            short = middle
    inverted = problem.half == "inverted"
    first, last = (behind, before) if inverted else (before, behind)
    return cut_bound(demand, "chunks", named_cut(source, problem.ranks, inverted), enough, first, last)


def _carried(network: BoundNetwork, source: frozenset[int], time: int) -> int:
    """At most this many chunks leave `source` in `time` ns."""
    if time <= 0:
        return 0

    def count(edge: Edge) -> int:
        link, run = network.links[edge], network.run[edge]
        if edge in network.loose:
            return max(0, time - link.alpha_ns) // max(1, link.beta_ns)
        full, left = divmod(time, link.alpha_ns + run * link.beta_ns)
        return full * run + max(0, left - link.alpha_ns) // max(1, link.beta_ns)

    flow = network.flow
    links = flow.crossing(source)
    passing = [flow.links[link] for link in links]
    limits = np.zeros(len(flow.ports) + 1, dtype=np.int64)
    for link, edge in zip(links, passing, strict=True):
        for port in flow.passed(link):
            limits[port] = max(limits[port], floor(time / network.weight[edge]))
    soonest = max(0, time - min(network.links[edge].alpha_ns for edge in passing))
    for port in flow.owners:
        limits[port] = floor(soonest / flow.busy(port, Fraction(1)))
    return flow.through(links, np.array([count(edge) for edge in passing], dtype=np.int64), limits)


def _nearest(distance: list[list[float]], sources: Iterable[int], goals: Iterable[int]) -> int:
    goals = list(goals)
    return int(min((distance[a][b] for a in sources for b in goals), default=0))


def _farthest(distance: list[list[float]], heads: set[int], targets: Iterable[int]) -> int:
    return int(max((min(distance[head][target] for head in heads) for target in targets), default=0))


def named_cut(source: frozenset[int], ranks: int, inverted: bool) -> str:
    """The cut by its smaller side: `out of ranks 0 to 7`, `into rank 3`."""
    rest = frozenset(range(ranks)) - source
    side, outwards = (source, True) if len(source) <= len(rest) else (rest, False)
    listed = sorted(side)
    if len(listed) == 1:
        names = f"rank {listed[0]}"
    elif listed[-1] - listed[0] == len(listed) - 1:
        names = f"ranks {listed[0]} to {listed[-1]}"
    else:
        names = "ranks " + ", ".join(map(str, listed))
    return f"{'out of' if outwards != inverted else 'into'} {names}"


def capacity(network: BoundNetwork, source: frozenset[int]) -> Fraction:
    """At most this many chunks per ns cross from `source` to the other ranks, rounded up to 1 / SCALE."""
    flow = network.flow
    caps = np.array([ceil(SCALE / network.weight[edge]) for edge in flow.links], dtype=np.int64)
    limits = np.zeros(len(flow.ports), dtype=np.int64)
    for port in flow.owners:
        limits[port] = ceil(SCALE / flow.busy(port, Fraction(1)))
    return Fraction(flow.rate(caps, limits, source), SCALE)


def _worst_cuts(problem: Problem, network: BoundNetwork, group: Translations | None = None) -> set[frozenset[int]]:
    """The cuts that Dinkelbach's method meets; the last is the worst of all."""
    flow = network.flow
    cost = [network.weight[edge] for edge in flow.links]
    sinks = range(problem.ranks) if group is None else group.roots
    return set(worst_sets(flow, cost, [problem.chunkup] * problem.ranks, sinks)[1])


def _messages(problem: Problem, network: BoundNetwork, group: Translations) -> Iterator[Bound]:
    everyone = frozenset(range(problem.ranks))
    topology = problem.topology
    apart = {"unequal nodes": topology.islands, "racks": disjoint(topology.racks, problem.ranks)}
    for size, word in ((1, "ranks"), (problem.per_node, "nodes"), *((0, word) for word in apart)):
        if size:
            groups = [frozenset(range(base, base + size)) for base in range(0, problem.ranks, size)]
            alike = Counter(group.representative[base] // size for base in range(0, problem.ranks, size))
        else:
            groups = list(apart[word])
            alike = Counter(range(len(groups)))
        if len(groups) < 2 or (size == 1 and word == "nodes"):
            continue
        if any(not any({*switch.members} <= one for one in groups) for switch in problem.switches):
            continue
        out_rate = sum((n * capacity(network, groups[i]) for i, n in sorted(alike.items())), Fraction(0))
        in_rate = sum((n * capacity(network, everyone - groups[i]) for i, n in sorted(alike.items())), Fraction(0))
        rate = min(out_rate, in_rate)
        demand = 2 * (len(groups) - 1) * len(problem.chunks)
        facts: Facts = {"demand": demand, "count": len(groups), "groups": word, "each": float(1 / rate)}
        yield Bound(ceil(demand / rate), Argument("messages", facts=facts))


def _in_switch(problem: Problem) -> Iterator[Bound]:
    ports = [port.links for port in problem.ports if port.beta_ns is None]
    for switch in problem.switches:  # its costs are those of the links between its members, so of all links
        if len(switch.members) == problem.ranks > 2 and every_port(problem.ranks, ports):
            count = len(problem.chunks)
            yield in_switch_bound(problem.ranks, switch.alpha_ns, Fraction(count * switch.beta_ns), count, "chunks")


def _work(problem: Problem, network: BoundNetwork, distance: list[list[float]]) -> Iterator[Bound]:
    # A hop keeps its link busy for at least the batched share of alpha, so paths are scaled down by the worst ratio.
    ratio = min((network.weight[edge] / network.lat[edge] for edge in network.links), default=Fraction(1))
    total = sum(int(distance[c.owner][t]) for c in problem.chunks for t in c.targets)
    facts: Facts = {"links": len(network.links), "busy": float(total * ratio)}
    yield Bound(ceil(total * ratio / max(1, len(network.links))), Argument("work", facts=facts))
