"""Bounds for every schedule over the sketch's links, whatever its routes, pieces, orders and messages.

`bound` covers the pieces that a problem names; here pieces may be of any size, down to a byte, and any number of
them may travel as one message. What is left of a link l is alpha_l, the ns per byte beta_l, and that no message takes
less than lat_l, the time of one byte. Ends of a schedule are whole ns, so bounds are rounded up.

    cut        if D bytes must leave the ranks S for the rest, then T >= head + C(D) + tail. Link l carries at most
               (T - alpha_l) / beta_l bytes in T ns, in one message; a port, whose links take turns, no more than the
               least alpha and the least beta of its links allow, with either kind of latency: serially every message
               holds it for its own alpha, pipelined the last arrives alpha after it left. C(D) is the least T for
               which a maximum flow of these capacities lets D bytes out. head: the least sum of lat from a
               rank that has any of D to a rank that can send it out; tail: the same behind the cut. D is the sum of
               the parts whose sources all lie in S and of whose targets one does not; for an allreduce the whole
               buffer, for what leaves S depends on S and is wanted outside. Tried: every rank, every node, their
               complements, and the worst sets of `throughput`.
    latency    some part must go from its sources to its farthest target: the sum of lat on the cheapest path.
    groups     allreduce, between groups none of which shares a switch that works in the network: every byte needs
               2 (P - 1) messages between P disjoint groups of ranks. When the first group knows the whole sum, P - 1
               messages have led to it, and none of them completed another group; each of these needs one more. So
               2 (P - 1) * size bytes leave the groups, each at its own rate.
    in switch  allreduce of one switch that does, with all ranks on equal ports. A transfer of a byte passes one port
               out and one in, a reduction N out and one in, a multicast one out and N in. Every rank must send at least
               once and receive at least once. Without the switch a byte needs 2 (N - 1) transfers, with one use of it
               N - 1 transfers more, so it passes at least min(4 (N - 1), 3 N - 1, 2 (N + 1)) ports, which for N >= 3
               is 2 (N + 1): the busiest of the 2 N ports carries at least size * (N + 1) / N.
    sums       reductions without such switches. Contributions to one chunk at one rank take turns, so what a rank
               knows of a chunk at t is at most what it knew when the last arrival began, plus what that sender knew:
               with m the least lat, the greatest number of contributions in one place at most doubles every m. For the
               contributions of one node Y the same holds inside and outside it:
               out(t) = max(2 out(t - m_out), out(t - x) + in(t - x)) where x is the least lat from Y to others, so the
               sum is nowhere outside Y before out(t) >= |Y|.
               Two ranks may exchange their sums, so an allreduce can be done with the last round.
    prices     alltoall: let p_x >= 0 be a price of every link and port x. A byte from a to b pays at least its cheapest
               path, dist_p(a, b), and x is paid for at most T - alpha (alpha the least of all links) ns, so
               T >= alpha + sum of size * dist_p / sum of p_x. Prices are the dual values of the concurrent flow problem
               (`concurrent`), made whole numbers; whatever they are, the bound holds.

Cuts and paths hold with switches that add up or multicast: of all that one use of a switch carries across a cut, one
copy or one summand counts, and that passes the out-port of a rank on this side and the in-port of one on the other,
with the costs of the link between the two, for beta alone.

Reducescatter, reduce and gather-like halves run backwards over reversed links what allgather and broadcast do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from math import ceil, floor

import numpy as np
from msgspec.structs import replace as replace_port

from treadle.planner.documents.collective import Collective, Demand
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.sketch import Sketch
from treadle.planner.passes.collective.bound import cut_bound, every_port, in_switch_bound, named_cut
from treadle.planner.passes.collective.collectives import INVERTED, ROUTED_AS
from treadle.planner.passes.collective.fabric import rotation
from treadle.planner.passes.collective.fluid import Floats, Fluid, FluidPart, distances, fluid_of, parts_of, shortest
from treadle.planner.passes.collective.groups import disjoint
from treadle.planner.passes.collective.problem import Problem
from treadle.planner.passes.collective.throughput import SCALE, Flow, flow_of, rates, transported, worst_sets
from treadle.planner.passes.collective.topology import Edge
from treadle.planner.search.bound import Argument, Bound, Facts

PRICED_RANKS = 32


def universal_bound(
    collective: Collective,
    hardware: Hardware,
    sketch: Sketch,
    size_bytes: int,
    root: int = 0,
    demands: Sequence[Demand] | None = None,
) -> Bound:
    """The largest of the bounds above for `size_bytes` of input on every rank; the first of equals."""
    ranks = hardware.ranks
    if ranks == 1:
        return Bound(0, Argument("one rank"), "all pieces")
    fluid = fluid_of(collective, hardware, sketch)
    distance = distances(fluid)
    found: list[Bound] = []
    if collective == "alltoall":
        found += _alltoall(fluid, distance, Fraction(size_bytes, ranks))
    else:
        parts = parts_of(collective, ranks, size_bytes, root, demands)
        inverted = collective in ("reducescatter", "reduce")
        found += _farthest(parts, distance, inverted)
        found += _cuts(fluid, distance, parts, collective, inverted)
    if collective == "allreduce":
        found += _groups(fluid, size_bytes)
        found += _in_switch(fluid, size_bytes)
    if collective in INVERTED and not fluid.switched:
        found += _sums(fluid if collective == "allreduce" else fluid.turned(), collective, root)
    if not found:
        return Bound(0, Argument("nothing"), "all pieces")
    return replace(max(found, key=lambda bound: bound.time_ns), scope="all pieces")


def _farthest(parts: Sequence[FluidPart], distance: Floats, inverted: bool) -> Iterator[Bound]:
    best: tuple[float, int, int] = (0.0, 0, 0)
    for part in set(parts):
        away = distance[sorted(part.sources)].min(axis=0)
        target = max(sorted(part.targets), key=lambda rank: float(away[rank]))
        if away[target] > best[0]:
            best = (float(away[target]), min(part.sources), target)
    if best[0]:
        src, dst = (best[2], best[1]) if inverted else best[1:]
        yield Bound(int(best[0]), Argument("path", {"path": int(best[0])}, {"src": src, "dst": dst}))


def _cuts(
    fluid: Fluid, distance: Floats, parts: Sequence[FluidPart], collective: Collective, inverted: bool
) -> Iterator[Bound]:
    """The best cut bound; a cut is only searched where it beats the best so far."""
    n = fluid.ranks
    everyone = frozenset(range(n))
    symmetric = collective in ("allgather", "reducescatter", "allreduce")
    count = fluid.shift if symmetric else n
    groups = [frozenset({rank}) for rank in range(count)]
    groups += [frozenset(range(b, b + fluid.per_node)) for b in range(0, n, fluid.per_node) if b < max(count, 1)]
    groups += fluid.islands
    groups += fluid.racks
    flow = fluid.flow
    sources = groups + [everyone - group for group in groups]
    if collective != "allreduce":
        sources += _worst(fluid, flow, parts, count)
    best = 0
    for source in dict.fromkeys(s for s in sources if s and s != everyone):
        found = _cut(fluid, flow, distance, parts, collective, source, best, inverted)
        if found is not None:
            best = found.time_ns
            yield found


def _worst(fluid: Fluid, flow: Flow, parts: Sequence[FluidPart], count: int) -> list[frozenset[int]]:
    """The worst sets where every rank wants everything."""
    everyone = frozenset(range(fluid.ranks))
    if any(part.targets != everyone or len(part.sources) != 1 for part in parts):
        return []
    weight = [0] * fluid.ranks
    for part in parts:
        weight[min(part.sources)] = 1
    cost = [fluid.wires[edge].byte for edge in flow.links]
    sinks = range(count) if all(weight) else [rank for rank in everyone if not weight[rank]]
    return worst_sets(flow, cost, weight, sinks)[1]


def _cut(
    fluid: Fluid,
    flow: Flow,
    distance: Floats,
    parts: Sequence[FluidPart],
    collective: Collective,
    source: frozenset[int],
    best: int,
    inverted: bool,
) -> Bound | None:
    crossing = flow.crossing(source)
    if not len(crossing):
        return None
    if collective == "allreduce":
        demand, before, behind = sum((part.size for part in parts), Fraction(0)), 0, 0
    else:
        must = [part for part in parts if part.sources <= source and not part.targets <= source]
        demand = sum((part.size for part in must), Fraction(0))
        tails = sorted({flow.links[i][0] for i in crossing})
        heads = sorted({flow.links[i][1] for i in crossing})
        kinds = set(must)
        nearest, onwards = distance[:, tails].min(axis=1), distance[heads].min(axis=0)
        before = min((int(min(nearest[r] for r in part.sources)) for part in kinds), default=0)
        behind = min((int(max(onwards[r] for r in part.targets - source)) for part in kinds), default=0)
    if not demand:
        return None

    alpha = np.array([fluid.wires[flow.links[i]].alpha for i in crossing], dtype=np.int64)
    byte = np.array([float(fluid.wires[flow.links[i]].byte) for i in crossing])

    def enough(time: int) -> bool:
        return transported(flow, crossing, alpha, byte, time, demand)

    short = max(0, best - before - behind)
    if enough(short):
        return None
    long = max(2 * short, 1024)
    while not enough(long):
        short, long = long, 2 * long
    while long - short > 1:
        middle = (short + long) // 2
        short, long = (short, middle) if enough(middle) else (middle, long)
    first, last = (behind, before) if inverted else (before, behind)
    return cut_bound(ceil(demand), "bytes", named_cut(source, fluid.ranks, inverted), long, first, last)


def _groups(fluid: Fluid, size: int) -> Iterator[Bound]:
    """Allreduce: bytes between ranks, and between nodes; the first message leaves alpha later than nothing."""
    flow = fluid.flow
    cost = [fluid.wires[edge].byte for edge in flow.links]
    unit = min(cost)
    caps, limits = rates(flow, cost, unit)
    alpha = min(wire.alpha for wire in fluid.wires.values())
    everyone = frozenset(range(fluid.ranks))
    apart = {"unequal nodes": fluid.islands, "racks": disjoint(fluid.racks, fluid.ranks)}
    for width, word in ((1, "ranks"), (fluid.per_node, "nodes"), *((0, word) for word in apart)):
        count = fluid.ranks // width if width else len(apart[word])
        if count < 2 or (width == 1 and word == "nodes"):
            continue
        if width:
            # Groups that the rotation maps onto each other send alike.
            stand = 1 if width % fluid.shift == 0 else fluid.shift // width if fluid.shift % width == 0 else count
            groups = [frozenset(range(b * width, b * width + width)) for b in range(stand)]
            repeat = Fraction(count, stand)
        else:
            groups, repeat = list(apart[word]), Fraction(1)
        if any(not _inside_one(members, width, apart.get(word, ())) for members in fluid.switched):
            continue
        for inwards in (False, True):
            sides = [everyone - group if inwards else group for group in groups]
            rate = repeat * sum(flow.rate(caps, limits, side) for side in sides) / SCALE
            demand = 2 * (count - 1) * size
            if rate:
                time = alpha + ceil(demand * unit / rate)
                facts: Facts = {"count": count, "groups": word, "demand": demand}
                yield Bound(time, Argument("groups", {"moving": time}, facts))


def _inside_one(members: frozenset[int], width: int, groups: Sequence[frozenset[int]]) -> bool:
    """Whether one group of `width` consecutive ranks, or without a width one of `groups`, has all `members`."""
    if width:
        return min(members) // width == max(members) // width
    return any(members <= group for group in groups)


def _in_switch(fluid: Fluid, size: int) -> Iterator[Bound]:
    """Allreduce over equal ports of one switch that works in the network."""
    everyone = frozenset(range(fluid.ranks))
    if everyone in fluid.switched and fluid.ranks > 2 and len({*fluid.wires.values()}) == 1:
        wire = fluid.wires[0, 1]
        if every_port(fluid.ranks, fluid.ports):
            yield in_switch_bound(fluid.ranks, wire.alpha, size * wire.byte, size, "bytes")


def _sums(fluid: Fluid, collective: Collective, root: int) -> Iterator[Bound]:
    """`fluid` in the direction in which sums travel."""
    n, width = fluid.ranks, fluid.per_node
    least = min(wire.lat for wire in fluid.wires.values())
    rounds = (n - 1).bit_length()
    yield Bound(rounds * least, Argument("rounds", facts={"ranks": n, "rounds": rounds, "least": least}))
    if n == width:
        return
    # A sum that is wanted outside every node but one is outside some other node as well: the least of all counts.
    away = [base for base in range(0, n, width) if collective != "reduce" or root // width != base // width]
    if fluid.shift % width == 0:
        away = away[: max(1, fluid.shift // width)]
    time = min(_outside(fluid, range(base, base + width)) for base in away)
    yield Bound(time, Argument("outside", {"outside": time}, {"width": width}))


def _outside(fluid: Fluid, inside: range) -> int:
    """The least t at which some rank outside can hold all contributions of the ranks `inside`."""
    lats: dict[tuple[bool, bool], int] = {}
    for (src, dst), wire in fluid.wires.items():
        ends = (src in inside, dst in inside)
        lats[ends] = min(lats.get(ends, wire.lat), wire.lat)
    m_in, m_out = lats.get((True, True)), lats.get((False, False))
    leave, enter = lats.get((True, False)), lats.get((False, True))
    if leave is None:
        return 0
    # held[k]: the least t at which k contributions can be in one place inside, and outside.
    goal = len(inside)
    never = 10**18
    held_in, held_out = [never] * (goal + 1), [never] * (goal + 1)
    held_in[0] = held_out[0] = 0
    held_in[1] = 0
    for k in range(1, goal + 1):
        # A rank that gets to k had i before the message began and its sender k - i: both no later than their own least
        # times. The lists are monotone, so a sender with more than it needs is no better.
        for _ in range(2):
            for i in range(k + 1):
                j = k - i
                if m_in is not None and max(i, j) < k:
                    held_in[k] = min(held_in[k], max(held_in[i], held_in[j]) + m_in)
                if m_out is not None and max(i, j) < k:
                    held_out[k] = min(held_out[k], max(held_out[i], held_out[j]) + m_out)
                if enter is not None:
                    held_in[k] = min(held_in[k], max(held_in[i], held_out[j]) + enter)
                held_out[k] = min(held_out[k], max(held_out[i], held_in[j]) + leave)
    return held_out[goal]


def _alltoall(fluid: Fluid, distance: Floats, size: Fraction) -> Iterator[Bound]:
    n = fluid.ranks
    spot = int(distance.argmax())
    farthest = int(distance.max())
    yield Bound(farthest, Argument("path", {"path": farthest}, {"src": spot // n, "dst": spot % n}))
    flow = fluid.flow
    everyone = frozenset(range(n))
    groups = [frozenset({rank}) for rank in range(fluid.shift)]
    groups += [frozenset(range(b, b + fluid.per_node)) for b in range(0, max(fluid.shift, 1), fluid.per_node)]
    groups += (*fluid.islands, *fluid.racks)
    best = 0
    for source in dict.fromkeys(s for g in groups for s in (g, everyone - g) if s != everyone):
        if not source:
            continue
        whole = (FluidPart(source, everyone - source, size * len(source) * (n - len(source))),)
        found = _cut(fluid, flow, np.zeros_like(distance), whole, "alltoall", source, best, False)
        if found is not None:
            best = found.time_ns
            yield found
    alpha = min(wire.alpha for wire in fluid.wires.values())
    for length, total, word in _prices(fluid, flow):
        paid = int(shortest(fluid, length).astype(np.int64).sum())
        time = alpha + ceil(size * paid / total)
        yield Bound(time, Argument("prices", {"paid": time}, {"prices": word}))


def _prices(fluid: Fluid, flow: Flow) -> Iterator[tuple[dict[Edge, int], Fraction, str]]:
    """(price of a byte by link, price of one ns of every link and port, where they are from)."""
    yield dict.fromkeys(fluid.wires, 1), sum((1 / w.byte for w in fluid.wires.values()), Fraction(0)), "one per hop"
    if fluid.ranks > PRICED_RANKS:
        return
    from treadle.planner.passes.collective.concurrent import dual_prices

    cost = [fluid.wires[edge].byte for edge in flow.links]
    on_links, on_ports = dual_prices(flow, cost, fluid.shift)
    total = sum(on_links) + sum(on_ports)
    if not total:
        return
    exact = {}
    for i, edge in enumerate(flow.links):
        exact[edge] = cost[i] * on_links[i] + sum(flow.busy(p, cost[i]) * on_ports[p] for p in flow.passed(i))
    grain = max(exact.values()) / 2**36
    yield {edge: floor(price / grain) for edge, price in exact.items()}, total / grain, "the best concurrent flow"


def congestion(problem: Problem) -> Fraction:
    """ns for which some link or port is busy at least, for one piece of every part (of the root's for rooted ones)."""
    turn = problem.half == "inverted"
    links = {_facing(e, turn): link for e, link in problem.links.items()}
    ports = [replace_port(port, links=tuple(_facing(e, turn) for e in port.links)) for port in problem.ports]
    rooted = ROUTED_AS[problem.collective] == "broadcast"
    total = Fraction(0)
    for back in (False, True) if problem.half == "both" else (False,):
        edges = {_facing(e, back): link for e, link in links.items()}
        sides = [([_facing(e, back) for e in port.links], port.beta_ns) for port in ports]
        plain = [members for members, own in sides if own is None]
        uplinks = [(members, Fraction(own)) for members, own in sides if own is not None]
        flow = flow_of(problem.ranks, list(edges), plain, uplinks)
        cost = [Fraction(max(1, link.beta_ns)) for link in edges.values()]
        if rooted:
            weight = [int(rank == problem.root) for rank in range(problem.ranks)]
            sinks = [rank for rank in range(problem.ranks) if rank != problem.root]
        else:
            weight, sinks = [1] * problem.ranks, list(range(rotation(problem.ranks, links, ports)))
        total += worst_sets(flow, cost, weight, sinks)[0]
    return total


def _facing(edge: Edge, turn: bool) -> Edge:
    return (edge[1], edge[0]) if turn else edge
