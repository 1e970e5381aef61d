"""A collective without pieces: bytes that must flow from ranks to ranks over links at their best.

Of a link l only alpha_l, the ns per byte beta_l and lat_l, the time of one byte, are kept: what no choice of pieces,
routes and orders changes. `universal` bounds every schedule by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import lcm

import numpy as np
from numpy.typing import NDArray

from treadle.planner.documents.collective import Collective, Demand
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.sketch import Sketch
from treadle.planner.passes.collective.algorithm import LinkCost
from treadle.planner.passes.collective.collectives import IN_SWITCH, INVERTED, ROUTED_AS, pieces
from treadle.planner.passes.collective.fabric import rotation
from treadle.planner.passes.collective.throughput import Flow, flow_of
from treadle.planner.passes.collective.topology import Edge, build_topology

LARGE = 2**40
"""Bytes of a message so long that its time gives beta to 12 digits."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Wire:
    """What any message over one link costs at least: alpha ns, `byte` ns for each byte, `lat` ns for the first."""

    alpha: int
    byte: Fraction
    lat: int


@dataclass(frozen=True)
class Fluid:
    """Links and ports in the direction in which parts spread; `shift` is the least rotation that changes nothing."""

    ranks: int
    per_node: int
    wires: dict[Edge, Wire]
    ports: tuple[tuple[Edge, ...], ...]
    shift: int
    islands: tuple[frozenset[int], ...] = ()
    """Unequal nodes, see `LogicalTopology`."""
    uplinks: tuple[tuple[tuple[Edge, ...], Fraction], ...] = ()
    """Links that share an uplink, and its ns for each byte."""
    racks: tuple[frozenset[int], ...] = ()
    switched: tuple[frozenset[int], ...] = ()
    """The members of each switch that adds up or multicasts for the collective."""

    def turned(self) -> Fluid:
        return Fluid(
            self.ranks,
            self.per_node,
            {(dst, src): wire for (src, dst), wire in self.wires.items()},
            tuple(tuple((dst, src) for src, dst in port) for port in self.ports),
            self.shift,
            self.islands,
            tuple((tuple((dst, src) for src, dst in port), byte) for port, byte in self.uplinks),
            self.racks,
            self.switched,
        )

    @cached_property
    def flow(self) -> Flow:
        """The links, sorted, and what they share."""
        return flow_of(self.ranks, sorted(self.wires), self.ports, self.uplinks)


@dataclass(frozen=True)
class FluidPart:
    """`size` bytes that the ranks `sources` hold and all of `targets` want."""

    sources: frozenset[int]
    targets: frozenset[int]
    size: Fraction


def fluid_of(collective: Collective, hardware: Hardware, sketch: Sketch) -> Fluid:
    """The plan's links at their best. Where a pair has a choice of links, that depends on the message: then alpha is
    left out, and such links belong to no port."""
    forward, inverted = collective == "allreduce" or collective not in INVERTED, collective in INVERTED
    short, long = (build_topology(hardware, sketch, size, forward=forward, inverted=inverted) for size in (1, LARGE))
    wires = {}
    for edge, link in short.plan.links.items():
        other = long.plan.links[edge]
        wires[edge] = _wire(link, other)
    fixed = {edge for edge, link in short.plan.links.items() if link.kind == long.plan.links[edge].kind}
    ports, uplinks = [], []
    for port in long.plan.ports:
        if port.beta_ns is not None:
            uplinks.append((port.links, Fraction(port.beta_ns - 1, LARGE)))
        elif len(kept := tuple(edge for edge in port.links if edge in fixed)) > 1:
            ports.append(kept)
    shift = lcm(*(rotation(it.ranks, it.plan.links, it.plan.ports) for it in (short, long)))
    useful = {*IN_SWITCH.get(collective, ())}
    fluid = Fluid(
        short.ranks,
        short.per_node,
        wires,
        tuple(ports),
        shift,
        long.islands,
        tuple(uplinks),
        long.racks,
        tuple(frozenset(switch.members) for switch in long.switches if useful & {*switch.in_network}),
    )
    return fluid.turned() if collective in ("reducescatter", "reduce") else fluid


def _wire(short: LinkCost, long: LinkCost) -> Wire:
    if long.beta_ns <= 1:  # bytes cost nothing: a message takes alpha ns, and at least 1
        return Wire(max(0, min(short.alpha_ns, long.alpha_ns) - 1), Fraction(1, 2**70), 1)
    byte = Fraction(long.beta_ns - 1, LARGE)
    if short.kind == long.kind:
        return Wire(short.alpha_ns, byte, short.alpha_ns + short.beta_ns)
    return Wire(0, byte, min(short.alpha_ns + short.beta_ns, long.alpha_ns + 1))


def parts_of(
    collective: Collective, ranks: int, size_bytes: int, root: int = 0, demands: Sequence[Demand] | None = None
) -> tuple[FluidPart, ...]:
    """What must move, in the routed direction; parts of an allreduce have no home and are left to its own bounds."""
    everyone = frozenset(range(ranks))
    size = Fraction(size_bytes, pieces(collective, ranks, 1, None, demands))
    alone = [frozenset({rank}) for rank in range(ranks)]
    match ROUTED_AS[collective]:
        case "allgather":
            whole = Fraction(size_bytes, ranks) if collective != "allgather" else Fraction(size_bytes)
            return tuple(FluidPart(one, everyone, whole) for one in alone)
        case "broadcast":
            return (FluidPart(alone[root], everyone, size),)
        case "gather":
            return tuple(FluidPart(one, alone[root], size) for one in alone)
        case "scatter":
            return tuple(FluidPart(alone[root], one, size) for one in alone)
        case _:
            return tuple(FluidPart(frozenset(d.sources), frozenset(d.targets), size) for d in demands or ())


def distances(fluid: Fluid) -> Floats:
    """[a, b]: the least sum of lat from a to b, ns; 0 without a path."""
    return shortest(fluid, {edge: wire.lat for edge, wire in fluid.wires.items()})


def shortest(fluid: Fluid, length: dict[Edge, int]) -> Floats:
    """[a, b]: the least sum of `length` from a to b; 0 without a path."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import dijkstra

    n, shift = fluid.ranks, fluid.shift
    ends = np.array(list(length), dtype=np.int64).reshape(-1, 2)
    data = np.maximum(np.array(list(length.values()), dtype=np.float64), 1e-9)  # an entry of 0 would be no link
    graph = csr_array((data, (ends[:, 0], ends[:, 1])), shape=(n, n))
    rows = np.floor(dijkstra(graph, indices=np.arange(shift)))
    rows[np.isinf(rows)] = 0
    found: Floats = np.concatenate([np.roll(rows, turn, axis=1) for turn in range(0, n, shift)])
    return found
