"""From a model, the parts of a machine and a cluster to a problem of serving parameters.

A trace lists its gradients as they become ready; the optimizer of the trace runs on the server, so it is no part of the
computation. Nodes of a hardware profile are the workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from msgspec.structs import replace

from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.server_parts import VERSION as PARTS_VERSION
from treadle.planner.documents.server_parts import Carrier, ServerCosts, ServerDomain, ServerInterface, ServerParts
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import InputError
from treadle.planner.graph.ready_times import ready_times
from treadle.planner.machine.gradient_links import inter_link
from treadle.planner.passes.interface import Inputs
from treadle.planner.passes.server.keys import TYPE_BYTES, KeyType, ServerKey, ServerKeys
from treadle.planner.passes.server.price_list import ServerPrices
from treadle.planner.passes.server.problem import (
    VERSION,
    CoreWork,
    MachineInterface,
    Mode,
    OptimizerName,
    ServerMachine,
    ServerProblem,
)

GBIT, GB, MIB = 10**9 / 8, 10**9, 2**20
CARRIERS: tuple[Carrier, ...] = ("rdma", "tcp", "shared")


@dataclass(frozen=True)
class ServerSetup:
    """How servers are used. What is None follows from the parts and the hardware: as many workers as nodes, the first
    carrier that was measured, racks as their uplinks show them. `shards` counts in mode ncs. `rack_gbps`: Gbit/s of a
    rack's link to the others."""

    workers: int | None = None
    mode: Mode = "ncc"
    shards: int | None = None
    carrier: Carrier | None = None
    optimizer: OptimizerName = "sgd"
    synchronous: bool = True
    arrival_order: bool = False
    cores_per_interface: int = 1
    shared_cores: int | None = None
    racks: int | None = None
    rack_gbps: float | None = None


DEFAULTS = ServerSetup()


def problem_of(
    model: ServerKeys | Trace,
    parts: ServerParts,
    *,
    hardware: Hardware | None = None,
    setup: ServerSetup = DEFAULTS,
    prices: ServerPrices | None = None,
) -> ServerProblem:
    """The problem of serving `model` on machines of these parts. Without hardware a worker's link is taken to be like
    the fastest interface, and messages to have no latency.

    Raises InputError for no number of workers, a trace without gradients or times, numbers that do not travel, and
    whatever is wrong with the problem.
    """
    keys = keys_of(model) if isinstance(model, Trace) else model
    workers = setup.workers or (None if hardware is None else hardware.nodes)
    if workers is None:
        raise InputError("found no number of workers, expected --workers or --hardware with nodes", where="--workers")
    carrier = setup.carrier or _measured(parts)
    machine = machine_of(parts, carrier, setup)
    link = _link_of(machine, hardware) if carrier != "shared" else _Link(None, 0)
    racks, core_rate = _racks_of(hardware, workers, setup)
    problem = ServerProblem(
        version=VERSION,
        name=keys.name,
        keys=keys.keys,
        compute_ns=keys.compute_ns,
        workers=workers,
        worker_rate=link.rate,
        mode=setup.mode,
        servers={"cs": workers, "ncs": setup.shards or workers}.get(setup.mode, racks),
        machine=machine,
        carrier=carrier,
        optimizer=setup.optimizer,
        synchronous=setup.synchronous,
        arrival_order=setup.arrival_order,
        latency_ns=link.latency_ns + round(1000 * parts.costs.get(carrier, ServerCosts()).latency_us),
        racks=racks,
        core_rate=core_rate,
        shared_cores=setup.shared_cores,
        prices=prices,
    )
    for path, found, expected in problem.problems():
        raise InputError(f"as a problem: found {found}, expected {expected}", where=keys.name, path=path)
    return problem


def problem_again(solved: ServerProblem, found: Inputs) -> ServerProblem | None:
    """The problem that today's inputs describe, with servers as `solved` uses them; None where inputs are missing.
    Raises InputError as `problem_of`."""
    given, model = found.get("problem"), found.get("keys", found.get("trace"))
    if isinstance(given, ServerProblem):
        return given
    hardware, parts, prices = found.get("hardware"), found.get("parts"), found.get("prices")
    profile = hardware if isinstance(hardware, Hardware) else None
    if not isinstance(parts, ServerParts):
        parts = None if profile is None else parts_of(profile)
    if not isinstance(model, ServerKeys | Trace) or parts is None:
        return None
    known = prices if isinstance(prices, ServerPrices) else None
    return problem_of(model, parts, hardware=profile, setup=setup_of(solved), prices=known)


def setup_of(problem: ServerProblem) -> ServerSetup:
    """How the servers of a problem are used."""
    return ServerSetup(
        workers=problem.workers,
        mode=problem.mode,
        shards=problem.servers if problem.mode == "ncs" else None,
        carrier=problem.carrier,
        optimizer=problem.optimizer,
        synchronous=problem.synchronous,
        arrival_order=problem.arrival_order,
        cores_per_interface=problem.machine.cores_per_interface,
        shared_cores=problem.shared_cores,
        racks=problem.racks,
        rack_gbps=None if problem.core_rate is None else problem.core_rate / GBIT,
    )


def _measured(parts: ServerParts) -> Carrier:
    """The first carrier whose costs are known."""
    return next((each for each in CARRIERS if each in parts.costs), "tcp")


def keys_of(trace: Trace) -> ServerKeys:
    """Parameters of a training step with the time when each gradient is ready. Raises InputError as `problem_of`."""
    times, found = ready_times(trace), list[ServerKey]()
    for parameter, gradient, ready_ns in times.gradients:
        name, dtype = parameter.name or parameter.id, gradient.dtype
        if dtype not in TYPE_BYTES or gradient.bytes is None:
            expected = ", ".join(TYPE_BYTES)
            raise InputError(f"found a gradient of {name} in {dtype or 'no dtype'}, expected one of {expected}",
                             where=trace.name)  # fmt: skip
        kind: KeyType = dtype
        if elements := gradient.bytes // TYPE_BYTES[kind]:
            found.append(ServerKey(name=name, elements=elements, dtype=kind, ready_ns=ready_ns))
    if not found:
        raise InputError("found no gradients of parameters, expected a trace of a training step", where=trace.name)
    return ServerKeys(version=1, name=trace.name, keys=tuple(found), compute_ns=times.compute_ns)


def parts_of(hardware: Hardware) -> ServerParts:
    """A node of the profile as a server: its NICs, cores and memory. What a profile does not say, such as the rate of
    the bridge between cards and memory, is absent. Raises InputError without a number of cores, and without network.
    """
    host, where = hardware.host, hardware.name
    if host.cpu_cores is None:
        raise InputError(
            "found no number of cores, expected one; or give --parts", where=where, path="$.host.cpu_cores"
        )
    above = {pcie.name: pcie for pcie in hardware.pcie}
    interfaces = []
    for place, nic in enumerate(hardware.nics):
        switch = None if nic.pcie is None else above[nic.pcie]
        while switch is not None and switch.parent is not None:
            switch = above[switch.parent]
        domain = (switch.numa or 0) if switch is not None else 0
        gbps = nic.speed_gbps or _network_gbps(hardware, f"$.nics[{place}].speed_gbps")
        interfaces.append(ServerInterface(name=nic.name, domain=domain, link_gbps=gbps))
    if not interfaces:
        interfaces = [ServerInterface(name="network", link_gbps=_network_gbps(hardware, "$.network"))]
    count = max(host.numa_nodes or 1, 1 + max(each.domain for each in interfaces))
    cores = [host.cpu_cores // count + (place < host.cpu_cores % count) for place in range(count)]
    processors = [each for each in hardware.devices if each.kind == "cpu" and each.memory_bandwidth is not None]
    return ServerParts(
        version=PARTS_VERSION,
        name=hardware.name,
        domains=tuple(ServerDomain(cores=max(1, each)) for each in cores),
        interfaces=tuple(interfaces),
        memory_bytes=host.memory_bytes,
        memory_GBps=sum(each.count * (each.memory_bandwidth or 0) for each in processors) / GB or None,
    )


def machine_of(parts: ServerParts, carrier: Carrier, setup: ServerSetup = DEFAULTS) -> ServerMachine:
    """The parts in whole bytes per second and ns. Raises InputError for parts that do not fit together."""
    for path, found, expected in parts.problems():
        raise InputError(f"found {found}, expected {expected}", where=parts.name, path=path)
    costs = parts.costs.get(carrier, ServerCosts())
    return ServerMachine(
        name=parts.name,
        domains=tuple(each.cores for each in parts.domains),
        interfaces=tuple(
            MachineInterface(
                name=each.name,
                domain=each.domain,
                rate=max(1, round(each.link_gbps * GBIT * each.encoding)),
                slot_rate=_rate(each.slot_GBps),
            )
            for each in parts.interfaces
        ),
        cores_per_interface=setup.cores_per_interface,
        memory_bytes=parts.memory_bytes,
        memory_rate=_rate(parts.memory_GBps),
        bridge_rate=_rate(parts.bridge_GBps),
        between_rate=_rate(parts.between_GBps),
        cached_extra_ppm=round(parts.cached_extra * 10**6),
        work=CoreWork(
            receive_ns_per_MB=round(1000 * costs.receive_us_per_MB),
            add_ns_per_MB=round(1000 * costs.add_us_per_MB),
            optimize_ns_per_MB=round(1000 * parts.optimize_us_per_MB.get(setup.optimizer, 0)),
            send_ns_per_MB=round(1000 * costs.send_us_per_MB),
            message_ns=round(1000 * costs.message_us),
            worker_ns_per_MB=round(1000 * costs.worker_us_per_MB),
        ),
    )


def unmeasured(problem: ServerProblem) -> list[str]:
    """What the problem does not say, one line each, and what that means for its plans."""
    machine, found = problem.machine, []
    if problem.carrier != "shared" and machine.bridge_rate is None:
        found.append("the bridge between cards and memory was not measured; it may carry less than cards and memory do")
    if machine.memory_rate is None:
        found.append("the rate of memory is not known, so nothing is priced on it")
    if machine.work == CoreWork():
        found.append(f"no costs of cores are known for the carrier {problem.carrier}, so they take no time")
    elif not machine.work.optimize_ns_per_MB and problem.optimizer != "mean":
        found.append(f"no costs of the optimizer {problem.optimizer} are known, so it takes no time")
    return found


class _Link(NamedTuple):
    rate: int | None
    latency_ns: int


def _link_of(machine: ServerMachine, hardware: Hardware | None) -> _Link:
    """The link of a worker."""
    if hardware is None or hardware.network is None:
        return _Link(max(each.rate for each in machine.interfaces), 0)
    link = inter_link(replace(hardware, network=replace(hardware.network, uplinks=())))
    if not link.beta_us_per_MB:
        return _Link(None, round(1000 * link.alpha_us))
    return _Link(max(1, round(MIB * 10**6 / link.beta_us_per_MB)), round(1000 * link.alpha_us))


def _racks_of(hardware: Hardware | None, workers: int, setup: ServerSetup) -> tuple[int, int | None]:
    """How many racks there are, and what the link of one carries."""
    network = None if hardware is None else hardware.network
    uplinks = () if network is None or setup.mode != "ncc" else network.uplinks
    whole = hardware is not None and workers == hardware.nodes == sum(len(each.nodes) for each in uplinks)
    even = whole and len({len(each.nodes) for each in uplinks}) == 1
    racks = setup.racks or (len(uplinks) if even else 1)
    if racks == 1:
        return 1, None
    if setup.rack_gbps is not None:
        return racks, max(1, round(setup.rack_gbps * GBIT))
    if not uplinks:
        return racks, None
    return racks, max(1, round(MIB * 10**6 / max(each.beta_us_per_MB for each in uplinks)))


def _network_gbps(hardware: Hardware, path: str) -> float:
    """Gbit/s of a NIC of the network. Raises InputError, which names `path`, without one."""
    if hardware.network is None:
        raise InputError("found no rate, expected one; or give --parts", where=hardware.name, path=path)
    return MIB * 8 / (hardware.network.beta_us_per_MB * 1000)


def _rate(gigabytes: float | None) -> int | None:
    return None if gigabytes is None else max(1, round(gigabytes * GB))
