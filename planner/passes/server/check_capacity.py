"""How many workers the servers carry and what memory they take, counted again for the checker."""

from __future__ import annotations

from collections.abc import Iterator

from treadle.planner.passes.server.check_map import ALIGNED, SUM_BYTES, Finding
from treadle.planner.passes.server.check_parts import CountedParts, Crowd, longest, shown
from treadle.planner.passes.server.decisions import ServerDecisions
from treadle.planner.passes.server.keys import TYPE_BYTES
from treadle.planner.passes.server.problem import MOST_WORKERS, STATES, ServerProblem


def capacity_findings(decisions: ServerDecisions, counted: CountedParts) -> Iterator[Finding]:
    """Another largest number of workers, or memory that is not what buffers take or that a server lacks."""
    yield from _workers(decisions)
    taken, limit = _fullest(decisions, counted.local), decisions.problem.machine.memory_bytes
    if decisions.server_bytes != taken:
        yield "$.decisions.server_bytes", decisions.server_bytes, f"{taken}, all buffers of the fullest server"
    elif limit is not None and taken > limit:
        yield "$.decisions.server_bytes", taken, f"at most {limit}, the memory of a server"


def _workers(decisions: ServerDecisions) -> Iterator[Finding]:
    """Whether the servers keep up with the stated number of workers, and not with one more in each rack."""
    problem, stated, path = decisions.problem, decisions.most_workers, "$.decisions.most_workers"
    largest = MOST_WORKERS // problem.racks * problem.racks
    if stated is not None and (stated % problem.racks or stated >= largest):
        yield path, stated, f"a multiple of {problem.racks} below {largest}, or none"
        return
    if (stated is None or stated) and not _keeps_up(decisions, largest if stated is None else stated):
        yield path, shown(stated), "fewer workers: a part of a server is slower than the slowest of a worker"
    elif stated is not None and _keeps_up(decisions, stated + problem.racks):
        yield path, stated, f"at least {stated + problem.racks}, with whom no part of a server is the slowest"


def _keeps_up(decisions: ServerDecisions, workers: int) -> bool:
    """Whether no part of a server is slower with this number of workers than a worker is."""
    problem = decisions.problem
    interfaces = _in_turn(problem, workers) if decisions.policy == "worker-by-interface" else ()
    counted = CountedParts(decisions, Crowd(workers, interfaces))
    enough = longest([*counted.of_workers(), *counted.computation()])
    parts = (part for server in counted.servers for part in counted.of_server(server))
    return all(part.time_ns <= enough for part in (*parts, *counted.rack_link()))


def _in_turn(problem: ServerProblem, workers: int) -> tuple[int, ...]:
    """Interfaces of workers, one after another, each from another domain than the one before if possible."""
    ranked, seen = [], [0] * len(problem.machine.domains)
    for number, interface in enumerate(problem.machine.interfaces):
        ranked.append((seen[interface.domain], interface.domain, number))
        seen[interface.domain] += 1
    order = [number for _, _, number in sorted(ranked)]
    return tuple(order[worker % len(order)] for worker in range(workers))


def _fullest(decisions: ServerDecisions, workers: int) -> int:
    """Bytes of all buffers of the server that has most: gradients that wait, sums, weights and states in two halves,
    and the copy for a snapshot."""
    problem = decisions.problem
    weights, gradients = [0] * problem.servers, [0] * problem.servers
    for key, places in zip(problem.keys, decisions.places, strict=True):
        rest, width = key.bytes, TYPE_BYTES[key.dtype]
        for slot in places:
            chunk = min(decisions.chunk_bytes, rest)
            rest -= chunk
            server = decisions.slots[slot].server
            weights[server] += _padded(chunk // width * SUM_BYTES)
            gradients[server] += _padded(chunk)
    if decisions.two_level:
        weights, gradients = [sum(weights)], [sum(gradients)]
    states = STATES[problem.optimizer]
    kept = 1 + 2 * (1 + states) + (1 + states) + (problem.racks if decisions.two_level else 0)
    waits = problem.synchronous and not problem.arrival_order and problem.carrier != "shared" and workers > 1
    stash = workers if waits else 0
    return max(kept * own + stash * sent for own, sent in zip(weights, gradients, strict=True))


def _padded(count: int) -> int:
    return -(-count // ALIGNED) * ALIGNED
