"""A plan as texts of configuration: for each server its cores, buffers and chunks, for the workers where chunks go.

Buffers of a domain are one block. Those of a chunk lie in it one behind another from `at`, each at a multiple of 64
bytes: as `buffers` lists them, those of `of` sums as float32, others as they travel.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from treadle.codegen.interface import Made
from treadle.codegen.json_text import json_text
from treadle.planner.documents.plan import Plan
from treadle.planner.passes.server.chunking import SUM_BYTES, chunks_of, padded
from treadle.planner.passes.server.decisions import ServerDecisions
from treadle.planner.passes.server.memory_need import buffer_kinds

CHUNK_FIELDS = ("chunk", "key", "elements", "slot", "at", "received_at")


class PlacedChunk(NamedTuple):
    """A chunk by its number in the model; `bytes` as it travels, `slot` over all servers."""

    number: int
    key: int
    elements: int
    bytes: int
    slot: int


def configuration(plan: Plan[ServerDecisions]) -> Made:
    """`server-0.json` and so on, and `workers.json`."""
    decisions = plan.decisions
    chunks, servers = [*placed_chunks(decisions)], range(decisions.problem.servers)
    files = {f"server-{server}.json": json_text(server_config(decisions, server, chunks)) for server in servers}
    facts = {
        "planned_ns": decisions.time_ns,
        "servers": len(servers),
        "workers": decisions.problem.workers,
        "chunks": len(chunks),
        "server_bytes": decisions.server_bytes,
    }
    return Made({**files, "workers.json": json_text(worker_config(decisions))}, facts)


def placed_chunks(decisions: ServerDecisions) -> Iterator[PlacedChunk]:
    """All chunks of the model, in the order of keys."""
    found = chunks_of(decisions.problem, decisions.chunk_bytes)
    places = [(key, slot) for key, slots in enumerate(decisions.places) for slot in slots]
    sizes = zip((found.sums // SUM_BYTES).tolist(), found.bytes.tolist(), strict=True)
    for number, ((key, slot), (elements, size)) in enumerate(zip(places, sizes, strict=True)):
        yield PlacedChunk(number, key, elements, size, slot)


def server_config(decisions: ServerDecisions, server: int, chunks: list[PlacedChunk]) -> dict[str, Any]:
    """What one server needs to know: `pairs` are its connections on a core, one for each of its workers, all of which
    complete in one queue that only this core reads."""
    problem, machine = decisions.problem, decisions.problem.machine
    slots = len(decisions.slots) // problem.servers
    own = decisions.slots[server * slots : (server + 1) * slots]
    workers = [*decisions.workers_of(server)]
    blocks, rows = [0] * len(machine.domains), []
    kinds = buffer_kinds(problem, decisions.two_level)
    for chunk in chunks:
        if not decisions.two_level and decisions.slots[chunk.slot].server != server:
            continue
        slot = chunk.slot % slots
        at = blocks[own[slot].domain]
        sums, travels = padded(chunk.elements * SUM_BYTES), padded(chunk.bytes)
        kept = sum(kind.copies for kind in kinds if kind.of == "sums") * sums
        waiting = sum(kind.copies for kind in kinds if kind.of == "travels")
        row = [chunk.number, chunk.key, chunk.elements, slot, at, at + kept if waiting else None]
        rows.append([*row, chunk.slot // slots] if decisions.two_level else row)
        blocks[own[slot].domain] += kept + waiting * travels
    return {
        **_shared(decisions),
        "server": server,
        "workers": workers,
        "engine": decisions.engine,
        "aggregator": decisions.aggregator,
        "optimizer": problem.optimizer,
        "synchronous": problem.synchronous,
        "in_order_of_arrival": problem.arrival_order,
        "domains": [
            {"domain": domain, "cores": cores, "block_bytes": blocks[domain]}
            for domain, cores in enumerate(machine.domains)
        ],
        "slots": [
            {
                "slot": place,
                "domain": slot.domain,
                "core": slot.core,
                "interface": None if slot.interface is None else machine.interfaces[slot.interface].name,
                "queue": place,
                "pairs": [place + slots * number for number in range(len(workers))],
            }
            for place, slot in enumerate(own)
        ],
        "buffers": [kind._asdict() for kind in kinds],
        "chunk_fields": [*CHUNK_FIELDS, *(["owner"] if decisions.two_level else [])],
        "chunks": rows,
    }


def worker_config(decisions: ServerDecisions) -> dict[str, Any]:
    """Where chunks go: for each key the slots of its chunks, for each slot its server, card and core. With two levels a
    worker takes the slot of the same place on the server of its rack."""
    problem, interfaces = decisions.problem, decisions.problem.machine.interfaces
    first, at, keys = 0, 0, []
    for key, places in zip(problem.keys, decisions.places, strict=True):
        keys.append(
            {
                "name": key.name,
                "type": key.dtype,
                "elements": key.elements,
                "first_chunk": first,
                "at": at,
                "slots": [*places],
            }
        )
        first += len(places)
        at += padded(key.bytes)
    return {
        **_shared(decisions),
        "two_levels": decisions.two_level,
        "buffer_bytes": at,
        "workers": [
            {
                "worker": worker,
                "rack": worker * problem.racks // problem.workers,
                "interface": interfaces[decisions.worker_interfaces[worker]].name
                if decisions.worker_interfaces
                else None,
            }
            for worker in range(problem.workers)
        ],
        "addresses": [
            {
                "slot": place,
                "server": slot.server,
                "interface": None if slot.interface is None else interfaces[slot.interface].name,
                "domain": slot.domain,
                "core": slot.core,
            }
            for place, slot in enumerate(decisions.slots)
        ],
        "keys": keys,
    }


def _shared(decisions: ServerDecisions) -> dict[str, Any]:
    return {
        "job": decisions.problem.name,
        "machine": decisions.problem.machine.name,
        "carrier": decisions.problem.carrier,
        "policy": decisions.policy,
        "chunk_bytes": decisions.chunk_bytes,
    }
