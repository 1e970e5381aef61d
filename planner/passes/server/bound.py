"""The lower bound of all plans of a problem: any chunk map, chunk size, policy, engine, and number of levels.

A part of which there are several takes at least the even share of all that they carry together. More bytes in a chunk
mean fewer messages and a longer fill; between two powers of two there are no fewer messages than at the upper and no
shorter fill than at the lower one, so the least over all powers is a bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from treadle.planner.passes.server.chunking import count_of
from treadle.planner.passes.server.keys import TYPE_BYTES
from treadle.planner.passes.server.layout import CoreLoad, ServerLayout
from treadle.planner.passes.server.mapping import slots_of
from treadle.planner.passes.server.prices import COMPUTATION, memory_load, time_of, work_of, worker_parts
from treadle.planner.passes.server.problem import LEAST_CHUNK, MOST_CHUNK, ServerProblem
from treadle.planner.passes.server.times import fill_of
from treadle.planner.search.bound import Argument, Bound

SENTENCES = {
    "flat": "every plan has the fill of one chunk and an even share of the load of its {part}",
    "two-level": (
        "every plan has the fill of one chunk, an even share of the load of its {part} inside a rack, and of what "
        "goes between racks"
    ),
}


def lower_bound(problem: ServerProblem) -> Bound:
    """What the exchange takes at least, and the part that it rests on."""
    levels = (False, True) if problem.racks > 1 else (False,)
    time, part, two_level = min((*_of_levels(problem, two_level), two_level) for two_level in levels)
    return Bound(time, Argument("two-level" if two_level else "flat", facts={"part": part}))


def least_ns(problem: ServerProblem) -> int:
    """What the exchange takes at least, in ns."""
    return lower_bound(problem).time_ns


def sentence(bound: Bound) -> str:
    return bound.argument.printed(SENTENCES)


def _of_levels(problem: ServerProblem, two_level: bool) -> tuple[int, str]:
    """The least of all chunk sizes, and the part that is slowest there."""
    longest = max(key.bytes for key in problem.keys)
    found = []
    size = LEAST_CHUNK
    while size <= MOST_CHUNK:
        upper = min(2 * size, MOST_CHUNK)
        layout = _even(problem, two_level, min(size, longest))
        shares = dict(_shares(layout, count_of(problem, upper)))
        slow = max(shares, key=lambda name: shares[name])
        found.append((shares[slow] + _between(problem, two_level) + fill_of(layout), slow))
        if size >= longest:
            break
        size *= 2
    return min(found, key=lambda each: each[0])


def _even(problem: ServerProblem, two_level: bool, longest: int) -> ServerLayout:
    """A layout of one server of which each core has an even share, rounded down."""
    servers = 1 if two_level else problem.servers
    cores = len(problem.machine.interfaces) * problem.machine.cores_per_interface
    share = problem.bytes // (servers * cores)
    load = CoreLoad(bytes=share, chunks=0, updated=problem.bytes // (problem.servers * cores), owned=0, peers=0)
    slots = slots_of(problem, "key-by-interface")
    return ServerLayout(
        problem, "key-by-interface", "cached", two_level, slots, ((load,) * cores,), longest, problem.workers
    )


def _shares(layout: ServerLayout, chunks: int) -> Iterator[tuple[str, int]]:
    """Every part with the time of an even share."""
    problem, machine = layout.problem, layout.problem.machine
    servers = 1 if layout.two_level else problem.servers
    work, cores = machine.work, servers * layout.cores
    incoming = layout.remote * problem.bytes + ((servers - 1) * problem.bytes if problem.mode == "cs" else 0)
    if problem.carrier != "shared":
        rates = [min(each.rate, each.slot_rate or each.rate) for each in machine.interfaces]
        yield "interfaces", time_of(incoming, servers * sum(rates))
        if machine.bridge_rate is not None:
            yield "bridge", time_of(2 * incoming, servers * machine.bridge_rate)
    if machine.memory_rate is not None:
        yield "memory", time_of(_least_memory(layout), machine.memory_rate)
    each = layout.local * (work.receive_ns_per_MB + work.add_ns_per_MB + work.send_ns_per_MB)
    updated = problem.bytes // (problem.racks if layout.two_level else 1)
    spent = work_of(problem.bytes * each + updated * work.optimize_ns_per_MB) + layout.local * work.message_ns * chunks
    yield "cores", spent // cores
    for part in worker_parts(layout):
        yield part.part, part.time_ns
    if problem.shared_cores is not None:
        total = spent * (problem.racks if layout.two_level else 1)
        total += problem.workers * work_of(problem.bytes * work.worker_ns_per_MB)
        yield "shared cores", total // problem.shared_cores
    if problem.racks > 1 and not layout.two_level and problem.core_rate is not None:
        own = problem.workers // problem.racks
        sent = own * (problem.racks - 1) * problem.bytes + (problem.workers - own) * problem.bytes
        yield "rack links", time_of(sent, problem.racks * problem.core_rate)
    yield COMPUTATION, 0


def _least_memory(layout: ServerLayout) -> int:
    """The lesser traffic of the two aggregators."""
    return min(memory_load(replace(layout, aggregator=aggregator), 0) for aggregator in ("cached", "bypass"))


def _between(problem: ServerProblem, two_level: bool) -> int:
    """What two levels send between racks, with an even share for each rack."""
    if not two_level or problem.core_rate is None:
        return 0
    sums = sum(key.bytes // TYPE_BYTES[key.dtype] * 4 for key in problem.keys)
    rate = min(problem.core_rate, sum(each.rate for each in problem.machine.interfaces))
    return time_of(2 * (problem.racks - 1) * sums // problem.racks, rate)
