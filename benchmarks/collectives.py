"""Collective plans beside hand-made schedules on the same machine, all timed by the same alpha-beta model with ports.

Peers, each the best of its variants for the size, ordered by the planner's own list scheduler and accepted by the
planner's own checker; they may use every link of the profile, one message at a time on each NIC:

    ring       over all ranks, allgather in R - 1 and allreduce in 2 (R - 1) steps, on 1 or more rings at once
    two-level  allreduce: reduce-scatter on a ring in each node, exchange between twins, allgather on those rings
    tree       allreduce: the whole buffer up and down one binomial tree
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise

from msgspec.structs import replace

from benchmarks.common import Row, Table, command, progress
from planner import documents, resources
from planner.collective.algorithm import Collective, CollectiveDecisions
from planner.collective.check import check
from planner.collective.contiguity import Batched
from planner.collective.limits import Limits
from planner.collective.milp import transfers
from planner.collective.ordering import best_ordering
from planner.collective.planning import plan_collective
from planner.collective.scheduling import Move, Resource
from planner.collective.topology import Edge, build_topology
from planner.hardware import Hardware, scaled
from planner.scalars import format_bytes
from planner.sketch import Sketch

CASES = (("ndv2", "ndv2-sk-1"), ("dgx2", "dgx2-sk-1"), ("dgx2", "dgx2-sk-2"))
SIZES = (2**10, 2**15, 2**20, 2**26)
COLLECTIVES: tuple[Collective, ...] = ("allgather", "allreduce")
SOURCE_SECONDS = {
    ("allgather", "dgx2-sk-1"): 35.8,
    ("allgather", "dgx2-sk-2"): 11.3,
    ("allgather", "ndv2-sk-1"): 2.6,
    ("allreduce", "dgx2-sk-1"): 6.1,
    ("allreduce", "dgx2-sk-2"): 127.8,
    ("allreduce", "ndv2-sk-1"): 0.3,
}
"""Synthesis seconds at one size each: TACCL, Table 5.3."""
LIMITS = Limits(routing=10, scheduling=10, time_s=40)
CYCLES = {
    "ndv2": [(3, 2, 1, 5, 6, 7, 4, 0), (0, 4, 7, 6, 5, 1, 2, 3)],
    "dgx2": [tuple((entry - step) % 16 for step in range(16)) for entry in range(0, 16, 2)],
}
"""Rings inside a node from where a global ring enters to where it leaves: NDv2's double NVLinks, DGX-2's NICs."""


class Peer:
    """Moves of one hand-made schedule; `pieces` cut the input into chunks, as many as the collective's plan would."""

    def __init__(self, collective: Collective, hardware: Hardware, size: int, chunkup: int) -> None:
        self.collective, self.chunkup, self.size = collective, chunkup, size
        self.nodes, self.per_node = hardware.nodes, hardware.devices_per_node
        self.ranks = self.nodes * self.per_node
        self.chunk_bytes = -(-size // (chunkup * (self.ranks if collective == "allreduce" else 1)))
        every_link = documents.load(resources.locate("sketches", "ring"), Sketch)
        self.network = build_topology(hardware, every_link, self.chunk_bytes).plan
        self.moves: list[Move] = []
        self.uses: dict[Edge, list[Resource]] = {edge: [("link", *edge)] for edge in self.network.links}
        for number, port in enumerate(self.network.ports):
            for edge in port.links:
                self.uses[edge].append(("port", number, 0))

    def send(self, chunk: int, src: int, dst: int, after: list[int], *, reduce: bool = False, chunks: int = 1) -> int:
        """Append a move, of `chunks` chunks in one message; its index."""
        link = self.network.links[src, dst]
        sums: list[Resource] = [("sum", chunk, dst)] if reduce else []
        uses = (*self.uses[src, dst], *sums)
        self.moves.append(Move(chunk, src, dst, link.alpha_ns, link.beta_ns * chunks, reduce, tuple(after), uses))
        return len(self.moves) - 1

    def along(self, chunk: int, path: tuple[int, ...], after: list[int], *, reduce: bool = False) -> list[int]:
        """Moves of `chunk` from rank to rank along `path`, the first after `after`; what the next must wait for."""
        for src, dst in pairwise(path):
            after = [self.send(chunk, src, dst, after, reduce=reduce)]
        return after

    def time_ns(self, message: int = 1) -> int:
        """The checked makespan; `message` is how many chunks, numbered from 0, each move stands for."""
        ordering = best_ordering(self.moves, self.ranks)
        sent = transfers(tuple(self.moves), Batched(ordering.schedule, False))
        if message > 1:
            sent = tuple(replace(transfer, chunk=chunk) for transfer in sent for chunk in range(message))
        decisions = CollectiveDecisions(
            collective=self.collective,
            ranks=self.ranks,
            chunkup=self.chunkup,
            chunk_bytes=self.chunk_bytes,
            input_bytes=self.size,
            links=tuple(self.network.links.values()),
            ports=self.network.ports,
            transfers=sent,
            makespan_ns=ordering.schedule.makespan,
        )
        findings = check(decisions)
        if findings:
            raise RuntimeError(f"the {self.collective} peer is wrong: {findings[0]}")
        return decisions.makespan_ns


def ring(collective: Collective, hardware: Hardware, size: int, rings: int) -> int:
    """ns of a ring over all ranks; piece p of every rank's part goes around the p-th ring."""
    peer = Peer(collective, hardware, size, rings)
    for piece, cycle in enumerate(CYCLES[hardware.name][:rings]):
        order = [node * peer.per_node + device for node in range(peer.nodes) for device in cycle]
        for place, owner in enumerate(order):
            around = (*order[place:], *order[:place])
            chunk = owner * rings + piece
            done: list[int] = []
            if collective == "allreduce":
                done = peer.along(chunk, (*around[1:], owner), [], reduce=True)
            peer.along(chunk, around, done)
    return peer.time_ns()


def two_level(hardware: Hardware, size: int, rings: int) -> int:
    """ns of a hierarchical allreduce on two nodes; chunks of a node's device go around its local ring."""
    peer = Peer("allreduce", hardware, size, rings)
    for piece, cycle in enumerate(CYCLES[hardware.name][:rings]):
        for place, device in enumerate(cycle):
            local = (*cycle[place:], *cycle[:place])
            for home in range(peer.nodes):
                here, there = (node * peer.per_node for node in (home, 1 - home))
                chunk = (here + device) * rings + piece
                sums = []
                for base in (here, there):
                    path = tuple(base + d for d in (*local[1:], device))
                    sums.append(peer.along(chunk, path, [], reduce=True))
                done = [*sums[0], peer.send(chunk, there + device, here + device, sums[1], reduce=True)]
                peer.along(chunk, tuple(here + d for d in local), done)
                back = peer.send(chunk, here + device, there + device, done)
                peer.along(chunk, tuple(there + d for d in local), [back])
    return peer.time_ns()


def tree(hardware: Hardware, size: int) -> int:
    """ns of an allreduce up and down the binomial tree of rank 0; every message is the whole buffer."""
    peer = Peer("allreduce", hardware, size, 1)
    arrived: dict[int, list[int]] = {rank: [] for rank in range(peer.ranks)}
    steps = [1 << bit for bit in range((peer.ranks - 1).bit_length())]
    for step in steps:
        for rank in range(step, peer.ranks, 2 * step):
            arrived[rank - step].append(peer.send(0, rank, rank - step, arrived[rank], reduce=True, chunks=peer.ranks))
    done = {0: arrived[0]}
    for step in reversed(steps):
        for rank in range(step, peer.ranks, 2 * step):
            done[rank] = [peer.send(0, rank - step, rank, done[rank - step], chunks=peer.ranks)]
    return peer.time_ns(message=peer.ranks)


def tables() -> Iterator[Table]:
    """Allgather and allreduce on two NDv2 and two DGX-2, beside ring, two-level and tree schedules."""
    for collective in COLLECTIVES:
        peers = {(name, size): _peers(collective, name, size) for name in sorted(CYCLES) for size in SIZES}
        rows = [planned(collective, name, sketch, size, peers[name, size]) for name, sketch in CASES for size in SIZES]
        note = "source s: synthesis seconds of TACCL, Table 5.3, at one size, on another machine with Gurobi."
        yield Table(f"{collective}, two nodes, size of one rank's input", rows, (note,))


def _peers(collective: Collective, name: str, size: int) -> dict[str, float]:
    """us of the best variant of each peer."""
    progress(f"collectives: {collective} on {name}, {format_bytes(size)}: peers")
    hardware = _hardware(name)
    several = len(CYCLES[name])
    found = {"ring": min(ring(collective, hardware, size, rings) for rings in (1, several)) / 1000}
    if collective == "allreduce":
        found["two-level"] = min(two_level(hardware, size, rings) for rings in (1, several)) / 1000
        found["tree"] = tree(hardware, size) / 1000
    return found


def planned(collective: Collective, name: str, sketch: str, size: int, peers: dict[str, float]) -> Row:
    """One plan, its certificate and its ratios."""
    progress(f"collectives: {collective} with {sketch}, {format_bytes(size)}")
    guide = documents.load(resources.locate("sketches", sketch), Sketch)
    start = time.perf_counter()
    plan = plan_collective(collective, _hardware(name), guide, size_bytes=size, limits=LIMITS)
    seconds = time.perf_counter() - start
    best = min(peers.values())
    time_us = plan.prediction.time_us
    return {
        "sketch": sketch,
        "size": format_bytes(size),
        "planned us": time_us,
        "bound us": plan.certificate.lower_bound / 1000,
        "gap %": 100 * plan.certificate.gap,
        **{f"{peer} us": value for peer, value in peers.items()},
        "ring / planned": peers["ring"] / time_us,
        **({"best peer / planned": best / time_us} if len(peers) > 1 else {}),
        "synthesis s": seconds,
        "source s": SOURCE_SECONDS[collective, sketch],
    }


def _hardware(name: str) -> Hardware:
    return scaled(documents.load(resources.locate("profiles", name), Hardware), 2)


main = command(tables)

if __name__ == "__main__":
    main()
