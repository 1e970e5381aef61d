"""Plans for racks behind oversubscribed uplinks, compared with the flat ring and with pairwise exchange.

The peers know no racks: in every round of the ring each rank hands on to the next what it got in the round before; in
round k of a pairwise exchange rank r sends to rank r + k. All are priced by one alpha-beta model with NICs and uplinks.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from msgspec.structs import replace

from benchmarks.common import Row, Table, progress
from treadle.planner.documents.collective import Collective
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.scalars import format_bytes
from treadle.planner.passes.collective.messages import Message, in_order, moves_of_messages
from treadle.planner.passes.collective.planning import CollectiveOptions, make_request, plan_collective
from treadle.planner.passes.collective.sketching import propose
from treadle.planner.passes.collective.synthesis import Request
from treadle.probe.resolve import load_hardware

COLLECTIVES: tuple[Collective, ...] = ("allreduce", "allgather", "reducescatter", "alltoall")
SIZES = (2**16, 2**18, 2**20, 2**22, 2**24, 2**26)


def tables() -> Iterator[Table]:
    """Plans for two racks of four hosts with 4:1 uplinks, ranks rack by rank and in turn."""
    racks = load_hardware("racks-2x4")
    for hardware, words in ((racks, "ranks rack by rack"), (in_turn(racks), "ranks in turn over the racks")):
        for collective in COLLECTIVES:
            rows = [row(Request(collective, hardware, propose(hardware), size)) for size in SIZES]
            yield Table(f"{collective}, {words}", rows, ())


def in_turn(hardware: Hardware) -> Hardware:
    """The same racks with rank 0 in the first, rank 1 in the second, and so on."""
    assert hardware.network is not None
    racks = hardware.network.uplinks
    uplinks = tuple(
        replace(rack, nodes=tuple(range(place, hardware.nodes, len(racks)))) for place, rack in enumerate(racks)
    )
    return replace(hardware, network=replace(hardware.network, uplinks=uplinks))


def row(request: Request) -> Row:
    """One plan, its bound, and the time of a peer."""
    collective, hardware, size = request.collective, request.hardware, request.size_bytes
    assert size is not None
    progress(f"uplinks: {collective}, {format_bytes(size)}")
    sketch = propose(hardware, collective=collective, size_bytes=size)
    start = time.perf_counter()
    plan = plan_collective(make_request(collective, hardware, sketch, size), options=CollectiveOptions(method="auto"))
    seconds = time.perf_counter() - start
    problem = request.problem(1)
    peer = flat(collective, problem.ranks)
    peer_us = in_order(moves_of_messages(problem, peer)).makespan / 1000
    return {
        "size": format_bytes(size),
        "method": plan.provenance.options["chosen"],
        "planned us": plan.prediction.time_us,
        "bound us": plan.certificate.lower_bound / 1000,
        "planned / bound": plan.prediction.time_us / (plan.certificate.lower_bound / 1000),
        "flat us": peer_us,
        "flat / planned": peer_us / plan.prediction.time_us,
        "flat / bound": peer_us / (plan.certificate.lower_bound / 1000),
        "synthesis s": seconds,
    }


def flat(collective: Collective, ranks: int) -> list[Message]:
    """Ring or, for an alltoall, pairwise exchange, in chunks of one rank's part."""
    rounds = range(1, ranks)
    if collective == "alltoall":
        return [
            Message((rank * ranks + (rank + k) % ranks,), rank, (rank + k) % ranks)
            for k in rounds
            for rank in range(ranks)
        ]
    sums = [Message(((rank - k) % ranks,), rank, (rank + 1) % ranks, True) for k in rounds for rank in range(ranks)]
    spread = [Message(((rank + 1 - k) % ranks,), rank, (rank + 1) % ranks) for k in rounds for rank in range(ranks)]
    return {"reducescatter": sums, "allgather": spread, "allreduce": sums + spread}[collective]
