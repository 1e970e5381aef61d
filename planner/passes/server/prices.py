"""What every part carries while all workers push and pull the model once, and how long that takes it.

A part's time is its load over its rate, in whole ns rounded up. The balance of network, PCIe, memory and cores is that
of "Parameter Hub: a Rack-Scale Parameter Server for Distributed Deep Neural Network Training"; the sections of memory
traffic and of two levels are derived from its descriptions.
"""

from __future__ import annotations

from collections.abc import Iterator

from treadle.planner.passes.server.decisions import PartLoad
from treadle.planner.passes.server.layout import CoreLoad, ServerLayout
from treadle.planner.passes.server.problem import STATES

MEBIBYTE, SECOND_NS, MILLION = 1 << 20, 10**9, 10**6
COMPUTATION = "computation"


def time_of(load: int, rate: int) -> int:
    """ns for `load` bytes at `rate` bytes per second, rounded up."""
    return -(-load * SECOND_NS // rate)


def work_of(numerator: int) -> int:
    """ns of a sum of bytes times ns per MiB, rounded up."""
    return -(-numerator // MEBIBYTE)


def part(name: str, load: int, rate: int) -> PartLoad:
    return PartLoad(part=name, time_ns=time_of(load, rate), load=load, rate=rate)


def interface_loads(layout: ServerLayout, server: int, cross: bool = True) -> list[int]:
    """Bytes per direction of each interface of a server; `cross`: with what goes to other racks' servers."""
    problem, count = layout.problem, len(layout.problem.machine.interfaces)
    handled = layout.bytes_of[server]
    if layout.policy == "key-by-interface":
        found = [0] * count
        for slot, load in zip(layout.slots, layout.loads[server], strict=False):
            found[slot.interface or 0] += layout.remote * load.bytes
    else:
        found = [callers * handled for callers in layout.callers(server)]
    more = 0
    if problem.mode == "cs":  # the worker on the same host, whose chunks the others handle
        more += -(-(layout.model_bytes - handled) // count)
    if layout.two_level and cross:
        more += -(-layout.between_racks(server) // count)
    return [load + more for load in found]


def memory_load(layout: ServerLayout, server: int) -> int:
    """Bytes that are read and written in memory.

    Cards write what comes and read what goes. With the bypass a core reads each gradient, reads and writes the sum, and
    the optimizer reads gradient, weight and states and writes the latter two; cached sums cost a measured share.
    """
    problem, handled, workers = layout.problem, layout.bytes_of[server], layout.local
    states = STATES[problem.optimizer]
    if problem.carrier == "shared":
        added = 3 if layout.aggregator == "cached" else 5
        return added * workers * handled + (2 + 2 * states) * handled
    if layout.aggregator == "cached":
        return -(-workers * handled * (2 * MILLION + problem.machine.cached_extra_ppm) // MILLION)
    return 5 * workers * handled + (3 + 2 * states) * handled


def core_time(layout: ServerLayout, load: CoreLoad) -> int:
    """ns of one core: it receives, adds and sends for every worker, and optimizes what its server owns."""
    problem, work = layout.problem, layout.problem.machine.work
    through = work.receive_ns_per_MB + work.send_ns_per_MB
    numerator = load.bytes * layout.local * (through + work.add_ns_per_MB) + load.updated * work.optimize_ns_per_MB
    numerator += load.peers * through + load.owned * (problem.racks - 1) * (through + work.add_ns_per_MB)
    return work_of(numerator) + layout.local * work.message_ns * load.chunks


def server_parts(layout: ServerLayout, server: int, cross: bool = True) -> list[PartLoad]:
    """All parts of one server."""
    machine, found = layout.problem.machine, list[PartLoad]()
    crossing = layout.crossing(server)
    if layout.problem.carrier != "shared":
        loads = interface_loads(layout, server, cross)
        for load, each in zip(loads, machine.interfaces, strict=True):
            found.append(part(f"interface {each.name}", load, each.rate))
        for load, each in zip(loads, machine.interfaces, strict=True):
            if each.slot_rate is not None:
                found.append(part(f"slot {each.name}", load, each.slot_rate))
        if machine.bridge_rate is not None:
            found.append(part("bridge", 2 * sum(loads) + crossing, machine.bridge_rate))
    if machine.between_rate is not None and crossing:
        found.append(part("between domains", crossing, machine.between_rate))
    if machine.memory_rate is not None:
        found.append(part("memory", memory_load(layout, server), machine.memory_rate))
    for slot, core in zip(layout.slots, layout.loads[server], strict=False):
        found.append(PartLoad(part=f"core {slot.domain}.{slot.core}", time_ns=core_time(layout, core)))
    return found


def worker_parts(layout: ServerLayout) -> Iterator[PartLoad]:
    """Link and core of a worker."""
    problem = layout.problem
    if problem.worker_rate is not None and problem.mode != "cs":
        yield part("worker link", layout.model_bytes, problem.worker_rate)
    if spent := work_of(layout.model_bytes * problem.machine.work.worker_ns_per_MB):
        yield PartLoad(part="worker core", time_ns=spent)


def shared_parts(layout: ServerLayout) -> Iterator[PartLoad]:
    """Cores that servers and workers share, and the link of a rack to the others."""
    problem = layout.problem
    if problem.shared_cores is not None:
        spent = sum(core_time(layout, core) for cores in layout.loads for core in cores)
        spent += layout.workers * work_of(layout.model_bytes * problem.machine.work.worker_ns_per_MB)
        yield PartLoad(part="shared cores", time_ns=-(-spent // problem.shared_cores))
    yield from rack_parts(layout)


def rack_parts(layout: ServerLayout) -> Iterator[PartLoad]:
    """The link of the rack that has most to send out: gradients of its workers, and values of its server to others."""
    problem = layout.problem
    if problem.racks == 1 or problem.core_rate is None:
        return
    if layout.two_level:
        load = max(map(layout.between_racks, range(problem.servers)))
    else:
        own = layout.workers // problem.racks
        others = layout.workers - own
        load = max(own * (layout.model_bytes - handled) + others * handled for handled in layout.bytes_of)
    yield part("rack link", load, problem.core_rate)


def busiest(layout: ServerLayout) -> list[PartLoad]:
    """The parts of the server whose slowest part is slowest, the first of equal ones."""
    return max((server_parts(layout, server) for server in range(layout.problem.servers)), key=slowest)


def slowest(parts: list[PartLoad]) -> int:
    return max((each.time_ns for each in parts), default=0)


def parts_of_plan(layout: ServerLayout) -> tuple[PartLoad, ...]:
    """All parts as decisions list them."""
    found = [*busiest(layout), *worker_parts(layout), *shared_parts(layout)]
    if layout.problem.compute_ns:
        found.append(PartLoad(part=COMPUTATION, time_ns=layout.problem.compute_ns))
    return tuple(found)
