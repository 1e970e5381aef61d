"""The hardware profile of several hosts, from what their survey found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from treadle.planner.documents.hardware import (
    VERSION,
    Device,
    Hardware,
    Host,
    Link,
    Network,
    Nic,
    NodeGroup,
    OtherNodes,
    Uplink,
)
from treadle.planner.documents.scalars import MEBIBYTE
from treadle.probe.survey import Survey

INSIDE = "loopback"


@dataclass(frozen=True)
class MeasuredHost:
    """`ranks` processes that share an interface, and the CPU they run on."""

    interface: str
    ranks: int
    cpu_model: str
    cpu_cores: int | None
    memory_bytes: int | None


@dataclass(frozen=True)
class Inside:
    """Between two processes of a host: latency, and bytes per second."""

    latency_us: float
    rate: float


def profile(
    hosts: Sequence[MeasuredHost],
    found: Survey,
    latency_us: float,
    inside: Inside | None,
    command: str,
    added_us: float,
    *,
    one_machine: bool = False,
) -> Hardware:
    """`latency_us` includes `added_us`, which the runtime adds in a lab; `inside` is absent where each host has one
    rank. The hosts of a lab are on `one_machine`, of whose memory each has an equal share. Every number is rounded to
    four significant digits."""
    if one_machine:
        hosts = [replace(each, memory_bytes=(each.memory_bytes or 0) // len(hosts) or None) for each in hosts]
    fastest = max(found.nics)
    alike = groupby(zip(found.nics, hosts, strict=True), lambda it: (it[0], it[1].ranks, it[1].interface))
    kinds = [(kind, [host for _, host in members]) for kind, members in alike]
    (first_rate, first_ranks, first_interface), first_hosts = kinds[0]
    one = first_hosts[0]
    how = f"measured: `{command}` on {len(hosts)} hosts, TCP streams"
    network = Network(
        kind="ethernet",
        alpha_us=_rounded(latency_us),
        beta_us_per_MB=_beta(fastest),
        groups=tuple(
            NodeGroup(
                name=f"{src}-{dst}",
                nodes=(src, dst),
                beta_us_per_MB=_beta(rate * fastest / min(found.nics[src], found.nics[dst])),
            )
            for (src, dst), rate in sorted(found.slow_pairs.items())
        ),
        uplinks=tuple(
            Uplink(name=f"uplink {number}", nodes=nodes, beta_us_per_MB=_beta(rate))
            for number, (nodes, rate) in enumerate(found.uplinks)
        ),
    )
    added = f"; of it {added_us:g} us that the runtime adds (TREADLE_LATENCY_US)" if added_us else ""
    sources = {
        "nodes": "the hosts that were measured",
        "devices": "the processes that were measured",
        "host": "read from the operating system of the first host"
        + (", whose memory all hosts of the lab share equally" if one_machine else ""),
        "nics": f"{how}; the fastest stream of each host",
        "network": f"{how}; half a round trip of one byte, and the fastest stream{added}",
    }
    if inside is not None:
        sources["links"] = f"{how} between two processes of a host"
    if len(kinds) > 1:
        sources["other_nodes"] = f"{how}; the fastest stream of each host"
    return Hardware(
        version=VERSION,
        name="measured",
        nodes=len(first_hosts),
        devices=_devices(one, first_ranks),
        host=Host(cpu_cores=one.cpu_cores, memory_bytes=one.memory_bytes, cpu_model=one.cpu_model),
        links=_links(first_ranks, inside),
        nics=_nics(first_interface, first_ranks, first_rate),
        network=network,
        other_nodes=tuple(
            OtherNodes(
                nodes=len(members),
                devices=_devices(members[0], ranks) if ranks != first_ranks else None,
                links=_links(ranks, inside) if ranks != first_ranks else None,
                nics=_nics(interface, ranks, rate),
            )
            for (rate, ranks, interface), members in kinds[1:]
        ),
        sources=sources,
    )


def _devices(host: MeasuredHost, ranks: int) -> tuple[Device, ...]:
    memory = None if host.memory_bytes is None else max(1, host.memory_bytes // ranks)
    return (Device(model=host.cpu_model, kind="cpu", count=ranks, memory_bytes=memory),)


def _links(ranks: int, inside: Inside | None) -> tuple[Link, ...]:
    if inside is None:
        return ()
    alpha, beta = _rounded(inside.latency_us), _beta(inside.rate)
    pairs = [(src, dst) for src in range(ranks) for dst in range(ranks) if src != dst]
    return tuple(Link(src=src, dst=dst, kind=INSIDE, alpha_us=alpha, beta_us_per_MB=beta) for src, dst in pairs)


def _nics(interface: str, ranks: int, rate: float) -> tuple[Nic, ...]:
    return (Nic(name=interface, devices=tuple(range(ranks)), speed_gbps=_rounded(8 * rate / 1e9)),)


def _beta(bytes_per_second: float) -> float:
    return _rounded(MEBIBYTE * 1e6 / bytes_per_second)


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
