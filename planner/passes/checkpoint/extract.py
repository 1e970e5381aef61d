"""From a job's timeline and a hardware profile to a problem of checkpoints in memory."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from treadle.planner.documents.hardware import Hardware, Network
from treadle.planner.documents.scalars import MEBIBYTE
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import InputError
from treadle.planner.machine.gradient_links import inter_link
from treadle.planner.machine.nodes import nic_sets
from treadle.planner.passes.checkpoint.own import own_late_ns, own_pieces
from treadle.planner.passes.checkpoint.partition import partition, pieces_late_ns
from treadle.planner.passes.checkpoint.problem import BUFFER_BYTES, VERSION, CheckpointProblem, Persistent, Recovery
from treadle.planner.passes.checkpoint.spans import JobTimeline, silent

FAILURES_PER_MACHINE = 0.015
"""Per day: about 110 in two months on 124 machines, as Meta reports of the training of OPT-175B."""


@dataclass(frozen=True)
class CheckpointSetup:
    """What is not in the timeline and not in the profile. What is None follows from the hardware: the memory of a host,
    racks as failure domains, failures by the number of machines."""

    copies: int = 2
    failures_per_day: float | None = None
    fill: float = 0.9
    buffer_bytes: int = BUFFER_BYTES
    buffers: int = 4
    host_bytes: int | None = None
    domain: int | None = None
    """Machines that fail together, which follow each other."""
    standby: int = 0
    persistent: Persistent | None = None


DEFAULTS = CheckpointSetup()


def problem_of(
    name: str,
    hardware: Hardware,
    state_bytes: int,
    timeline: JobTimeline | None = None,
    setup: CheckpointSetup = DEFAULTS,
) -> CheckpointProblem:
    """The problem of a job whose devices hold `state_bytes` each. Without a timeline an iteration is as long as a
    checkpoint takes, and its links are taken to be idle.

    Raises InputError for unequal nodes, links without costs, and for what is wrong with the problem.
    """
    machines, devices = hardware.nodes, hardware.devices_per_node
    alpha_ns, link_rate = link_of(hardware)
    shown = timeline or silent(1)
    failures = FAILURES_PER_MACHINE * machines if setup.failures_per_day is None else setup.failures_per_day
    problem = CheckpointProblem(
        version=VERSION,
        name=name,
        machines=machines,
        copies=setup.copies,
        devices=devices,
        state_bytes=state_bytes,
        domains=domains_of(hardware, setup.domain),
        iteration_ns=shown.iteration_ns,
        messages=shown.messages,
        spans=shown.spans,
        fill_ppm=max(1, round(setup.fill * 10**6)),
        alpha_ns=alpha_ns,
        link_rate=link_rate,
        copy_rate=copy_rate_of(hardware),
        buffer_bytes=setup.buffer_bytes,
        buffers=setup.buffers,
        host_bytes=hardware.host.memory_bytes if setup.host_bytes is None else setup.host_bytes,
        failures_per_day=failures,
        persistent=setup.persistent,
        recovery=Recovery(standby=setup.standby),
    )
    for path, found, expected in problem.problems():
        raise InputError(f"found {found}, expected {expected}", where=name, path=path.removeprefix("$."))
    return problem if timeline is not None else _as_long_as_needed(problem)


def state_bytes_of(trace: Trace) -> int:
    """Bytes of the parameters and buffers of a step, the states of its optimizer among them if the trace has them."""
    return sum(
        each.storage_bytes or each.bytes or 0
        for each in trace.tensors
        if each.role in ("parameter", "buffer") and each.alias_of is None
    )


def link_of(hardware: Hardware) -> tuple[int, int]:
    """alpha in ns, and bytes per second that one device gets to other machines while all devices send. Nodes behind an
    uplink share it, as if every piece passed it. Raises InputError as `inter_link`."""
    link = inter_link(flat(hardware, shared=True), sums=False)
    if not link.beta_us_per_MB:
        raise InputError("found a network without costs, expected some", where=hardware.name, path="$.network")
    rate = MEBIBYTE * 10**6 / link.beta_us_per_MB / hardware.devices_per_node
    return round(1000 * link.alpha_us), max(1, int(rate))


def flat(hardware: Hardware, shared: bool) -> Hardware:
    """The profile without uplinks; its network is as slow as one of them for a node, or as a node's share of it."""
    network = hardware.network
    if network is None or not network.uplinks:
        return hardware
    nics = sum(rate for _, rate in nic_sets(hardware)) or float(hardware.devices_per_node)
    slowest = max(each.beta_us_per_MB * (len(each.nodes) if shared else 1) for each in network.uplinks)
    beta = max(network.beta_us_per_MB, slowest * nics)
    return replace(hardware, network=replace(network, uplinks=(), beta_us_per_MB=beta))


def domains_of(hardware: Hardware, size: int | None) -> tuple[int, ...]:
    """The failure domain of each machine: `size` of them that follow each other, or those behind one uplink; none where
    each fails in isolation."""
    if size is not None:
        return () if size == 1 else tuple(machine // size for machine in range(hardware.nodes))
    return () if hardware.network is None else _racks(hardware.network, hardware.nodes)


def copy_rate_of(hardware: Hardware) -> int | None:
    """Bytes per second from a device to its host; None where devices are CPUs, and where the profile has no rate."""
    if all(device.kind == "cpu" for device in hardware.devices):
        return None
    rates = [engine.bandwidth for engine in hardware.copy_engines if engine.direction == "device-to-host"]
    return max(1, int(min(rates))) if rates else None


def _racks(network: Network, machines: int) -> tuple[int, ...]:
    if not network.uplinks:
        return ()
    racks = sorted(network.uplinks, key=lambda each: len(each.nodes))
    names = [next((rack.name for rack in racks if node in rack.nodes), f"node {node}") for node in range(machines)]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return tuple(numbers[name] for name in names)


def _as_long_as_needed(problem: CheckpointProblem) -> CheckpointProblem:
    """The problem with the shortest iteration that a checkpoint does not make longer."""
    empty = replace(problem, spans=silent(0).spans, iteration_ns=1)
    late = pieces_late_ns(empty, partition(empty), "planned"), own_late_ns(empty, own_pieces(empty)) + 1
    timeline = silent(max(late))
    return replace(problem, iteration_ns=timeline.iteration_ns, spans=timeline.spans)
