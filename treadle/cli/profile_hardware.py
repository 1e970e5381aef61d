"""How hardware profiles are printed."""

from __future__ import annotations

from collections import Counter

from treadle.cli.output import print_rich, print_table, ranges
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.scalars import MEBIBYTE, format_bytes, many


def summary(hardware: Hardware) -> dict[str, object]:
    return {
        "name": hardware.name,
        "nodes": hardware.all_nodes,
        "devices_per_node": hardware.devices_per_node,
        "ranks": hardware.ranks,
        "devices": [device.model for device in hardware.devices],
        "links": sum(link.count for link in hardware.links),
        "switches": len(hardware.switches),
        "nics": len(hardware.nics),
        "pcie_switches": len(hardware.pcie),
        "network": hardware.network.kind if hardware.network else None,
    }


def _other_kinds(hardware: Hardware) -> list[tuple[int, Hardware]]:
    """How many there are of each kind of `other_nodes`, and such a node."""
    start, found = hardware.nodes, []
    for other in hardware.other_nodes:
        found.append((other.nodes, hardware.every_node[start]))
        start += other.nodes
    return found


def devices_of(hardware: Hardware) -> str:
    return ", ".join(f"{device.count} x {device.model}" for device in hardware.devices)


def fabric_of(hardware: Hardware) -> str:
    """`48 nvlink` counts both directions of each link."""
    kinds = Counter[str]()
    for link in hardware.links:
        kinds[link.kind] += link.count
    parts = [f"{count} {kind}" for kind, count in sorted(kinds.items())]
    parts += [f"{switch.kind} of {len(switch.members)}" for switch in hardware.switches]
    return ", ".join(parts) or "none"


def show_hardware(hardware: Hardware) -> None:
    from rich.markup import escape

    kinds = [(hardware.nodes, hardware), *_other_kinds(hardware)]
    sizes = ", ".join(f"{many(count, 'node')} of {many(kind.devices_per_node, 'device')}" for count, kind in kinds)
    print_rich(f"[bold]{escape(hardware.name)}[/]: {sizes}")
    print_table(
        "devices of a node",
        ("local", "model", "kind", "memory", "memory bandwidth", "peak TFLOP/s", "operator call"),
        _device_rows(hardware),
    )
    host = hardware.host
    print_table(
        "host of a node",
        ("CPU", "cores", "NUMA nodes", "memory"),
        [(host.cpu_model, host.cpu_cores, host.numa_nodes, host.memory_bytes and format_bytes(host.memory_bytes))],
    )
    alike = Counter((link.kind, link.count, link.alpha_us, link.beta_us_per_MB) for link in hardware.links)
    print_table(
        "links in a node (each direction counts)",
        ("kind", "pairs", "links per pair", "alpha", "beta per pair", "rate per pair"),
        [(kind, pairs, count, *_cost(alpha, beta, count)) for (kind, count, alpha, beta), pairs in alike.items()],
    )
    print_table(
        "switches in a node",
        ("name", "kind", "devices", "links per device", "alpha", "beta per device", "rate per device", "in network"),
        [
            (
                s.name,
                s.kind,
                ranges(s.members),
                s.count,
                *_cost(s.alpha_us, s.beta_us_per_MB, s.count),
                ", ".join(s.in_network) or None,
            )
            for s in hardware.switches
        ],
    )
    if hardware.network is not None:
        net = hardware.network
        print_table(
            "between nodes",
            ("kind", "alpha", "beta per NIC", "rate per NIC"),
            [(net.kind, *_cost(net.alpha_us, net.beta_us_per_MB, 1))],
        )
        print_table(
            "groups of nodes: the network between two of one, where it has other costs",
            ("name", "nodes", "alpha", "beta per NIC", "rate per NIC"),
            [
                (group.name, ranges(group.nodes), *_cost(group.alpha_us, group.beta_us_per_MB, 1))
                for group in net.groups
            ],
        )
        print_table(
            "uplinks: what nodes share to all others, in each direction",
            ("name", "nodes", "beta", "rate"),
            [
                (
                    uplink.name,
                    ranges(uplink.nodes),
                    f"{uplink.beta_us_per_MB:.4g} us/MiB",
                    f"{MEBIBYTE / uplink.beta_us_per_MB / 1e3:.4g} GB/s",
                )
                for uplink in net.uplinks
            ],
        )
    print_table(
        "other nodes, whose ranks follow",
        ("nodes", "devices", "links and switches", "NICs"),
        [(count, devices_of(kind), fabric_of(kind), len(kind.nics)) for count, kind in _other_kinds(hardware)],
    )
    print_table(
        "NICs of a node",
        ("name", "devices", "PCIe switch", "GPUDirect", "Gb/s"),
        [
            (
                nic.name,
                ranges(nic.devices),
                nic.pcie,
                None if nic.gpudirect is None else "yes" if nic.gpudirect else "no",
                _number(nic.speed_gbps),
            )
            for nic in hardware.nics
        ],
    )
    print_table(
        "PCIe switches of a node",
        ("name", "under", "devices"),
        [
            (pcie.name, pcie.parent or ("CPU" if pcie.numa is None else f"CPU {pcie.numa}"), ranges(pcie.devices))
            for pcie in hardware.pcie
        ],
    )
    print_table(
        "copy engines of a device",
        ("direction", "engines", "rate", "alpha"),
        [
            (e.direction, e.count, f"{e.bandwidth / 1e9:.4g} GB/s", f"{e.alpha_us:.4g} us")
            for e in hardware.copy_engines
        ],
    )
    print_table("where the numbers come from", ("what", "source"), sorted(hardware.sources.items()))


def _device_rows(hardware: Hardware) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    first = 0
    for device in hardware.devices:
        local = ranges(tuple(range(first, first + device.count))) if device.count <= 4096 else f"{device.count} devices"
        first += device.count
        flops = "\n".join(f"{name} {rate / 1e12:.4g}" for name, rate in device.peak_flops.items())
        bandwidth = device.memory_bandwidth and f"{device.memory_bandwidth / 1e9:.4g} GB/s"
        memory = device.memory_bytes and format_bytes(device.memory_bytes)
        launch = f"{device.launch_us:.4g} us" if device.launch_us else None
        rows.append((local, device.model, device.kind, memory, bandwidth, flops, launch))
    return rows


def _cost(alpha: float | None, beta: float | None, count: int) -> tuple[str | None, str | None, str | None]:
    """Texts of alpha, beta and rate over `count` parallel links; 1 MB is 2^20 bytes, 1 GB/s is 10^9 bytes per s."""
    shared = None if beta is None else beta / count
    return (
        None if alpha is None else f"{alpha:.4g} us",
        None if shared is None else f"{shared:.4g} us/MiB",
        f"{MEBIBYTE / shared / 1e3:.4g} GB/s" if shared else None,
    )


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:g}"
