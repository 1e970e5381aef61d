"""The map of chunks, read again for the checker: which core handles which bytes, and what is wrong with the map."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from treadle.planner.passes.server.decisions import CoreSlot, ServerDecisions
from treadle.planner.passes.server.keys import TYPE_BYTES
from treadle.planner.passes.server.problem import MOST_CHUNKS, ServerProblem

Finding = tuple[str, object, object]
"""Path, what was found there, and what was expected."""
ALIGNED = 64
SUM_BYTES = 4


@dataclass(frozen=True)
class CoreShare:
    """What one core of one server handles: bytes as they travel, chunks, and bytes of sums, which are float32.

    `owned` are the shares that it optimizes: with two levels, those of the chunks that its rack owns."""

    bytes: int
    chunks: int
    sums: int
    owned_bytes: int
    owned_sums: int


def map_findings(decisions: ServerDecisions) -> Iterator[Finding]:
    """What is wrong with slots, chunks and places."""
    problem = decisions.problem
    if decisions.chunk_bytes % ALIGNED:
        yield "$.decisions.chunk_bytes", decisions.chunk_bytes, f"a multiple of {ALIGNED}"
        return
    if decisions.two_level and problem.racks == 1:
        yield "$.decisions.two_level", "true", "false, since all workers are in one rack"
        return
    chunks = sum(-(-key.bytes // decisions.chunk_bytes) for key in problem.keys)
    if chunks > MOST_CHUNKS:
        yield "$.decisions.chunk_bytes", f"{decisions.chunk_bytes}, {chunks} chunks", f"at most {MOST_CHUNKS} chunks"
        return
    yield from _slots(decisions)
    yield from _places(decisions)
    yield from _workers(decisions)


def core_shares(decisions: ServerDecisions) -> list[list[CoreShare]]:
    """The shares of the cores of each server, in the order of its slots. The map must be free of findings."""
    size, slots = decisions.chunk_bytes, len(decisions.slots)
    carried, chunks, sums = [0] * slots, [0] * slots, [0] * slots
    for key, places in zip(decisions.problem.keys, decisions.places, strict=True):
        missing = size * len(places) - key.bytes
        for slot, count in Counter(places).items():
            load = size * count - (missing if slot == places[-1] else 0)
            carried[slot] += load
            chunks[slot] += count
            sums[slot] += load // TYPE_BYTES[key.dtype] * SUM_BYTES
    cores = slots // decisions.problem.servers

    def handled(counts: list[int], slot: int) -> int:
        return sum(counts[slot % cores :: cores]) if decisions.two_level else counts[slot]

    shares = [
        CoreShare(
            bytes=handled(carried, slot),
            chunks=handled(chunks, slot),
            sums=handled(sums, slot),
            owned_bytes=carried[slot],
            owned_sums=sums[slot],
        )
        for slot in range(slots)
    ]
    return [shares[first : first + cores] for first in range(0, slots, cores)]


def planned_slots(problem: ServerProblem, by_key: bool) -> list[CoreSlot]:
    """The core slots of all servers: as many for each interface, in its domain."""
    slots = []
    for server in range(problem.servers):
        used = Counter[int]()
        for number, interface in enumerate(problem.machine.interfaces):
            for _ in range(problem.machine.cores_per_interface):
                slots.append(
                    CoreSlot(
                        server=server,
                        domain=interface.domain,
                        core=used[interface.domain],
                        interface=number if by_key else None,
                    )
                )
                used[interface.domain] += 1
    return slots


def _slots(decisions: ServerDecisions) -> Iterator[Finding]:
    expected = planned_slots(decisions.problem, decisions.policy == "key-by-interface")
    if len(decisions.slots) != len(expected):
        yield "$.decisions.slots", f"{len(decisions.slots)} cores", f"{len(expected)}"
        return
    for place, (slot, wanted) in enumerate(zip(decisions.slots, expected, strict=True)):
        for field in CoreSlot.__struct_fields__:
            seen, right = getattr(slot, field), getattr(wanted, field)
            if seen != right:
                yield f"$.decisions.slots[{place}].{field}", _shown(seen), _shown(right)


def _places(decisions: ServerDecisions) -> Iterator[Finding]:
    for number, (key, places) in enumerate(zip(decisions.problem.keys, decisions.places, strict=True)):
        chunks = -(-key.bytes // decisions.chunk_bytes)
        if len(places) != chunks:
            yield f"$.decisions.places[{number}]", f"{len(places)} chunks", f"{chunks} of {decisions.chunk_bytes} bytes"
        elif max(places) >= len(decisions.slots):
            chunk = places.index(max(places))
            yield f"$.decisions.places[{number}][{chunk}]", max(places), f"a slot below {len(decisions.slots)}"


def _workers(decisions: ServerDecisions) -> Iterator[Finding]:
    problem, given, path = decisions.problem, decisions.worker_interfaces, "$.decisions.worker_interfaces"
    interfaces = len(problem.machine.interfaces)
    wanted = problem.workers if decisions.policy == "worker-by-interface" else 0
    if len(given) != wanted:
        yield path, f"{len(given)} workers", f"{wanted} with policy {decisions.policy}"
        return
    if given and max(given) >= interfaces:
        yield f"{path}[{given.index(max(given))}]", max(given), f"an interface below {interfaces}"
        return
    for server in range(problem.servers if decisions.two_level else 1) if given else ():
        workers = decisions.workers_of(server)
        counts = [[given[worker] for worker in workers].count(each) for each in range(interfaces)]
        if max(counts) - min(counts) > 1:
            yield path, f"{max(counts)} workers on one interface and {min(counts)} on another", "an even division"


def _shown(value: int | None) -> object:
    return "none" if value is None else value
