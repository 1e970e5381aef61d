"""Which devices send across nodes, by their place next to the NICs (TACCL, sections 5.4 and 5.8).

With a NIC for each device every device sends to its like in other nodes. Where devices share a NIC, small chunks do the
same, each with its part of the NIC; large ones go through one device next to the NIC and arrive at another, which keeps
the number of connections low.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from treadle.planner.documents.hardware import Hardware, Nic

TINY = 16 * 2**10
"""Chunks of an alltoall up to here go straight to their destination (TACCL, section 5.8.2, dgx2-sk-3)."""
MOST_DIRECT = 64
"""Ranks up to which that leaves a number of links that can be handled."""
SMALL, ALLTOALL_SMALL = 2**16, 2**20
"""Chunks up to here are sent by every device. On NDv2, DGX-1 and DGX-2 the planned time is least with it up to 64 KiB,
and with relays from 256 KiB on; an alltoall has no use for relays before bandwidth is all that counts."""


@dataclass(frozen=True)
class Gates:
    """`connections`: sender -> receivers. `sender_of`: through which device each one's chunks leave (None: any).

    Where devices that send share a NIC, `share` says among how many, and each gets that part of it; otherwise `nics`
    are the sets of devices that take turns.
    """

    connections: dict[int, tuple[int, ...]]
    sender_of: tuple[int, ...] | None
    reason: str
    share: dict[int, int]
    nics: tuple[frozenset[int], ...] = ()


def gates_of(hardware: Hardware, collective: str | None, chunk: int | None) -> Gates:
    """Who sends across the nodes of `hardware`, for chunks of `chunk` bytes (None: of any size, taken as large)."""
    size = hardware.devices_per_node
    users = [nic for nic in hardware.nics if nic.devices]
    share = {device: max(len(nic.devices) for nic in users if device in nic.devices) for device in _on(users)}
    small = chunk is not None and chunk <= (ALLTOALL_SMALL if collective == "alltoall" else SMALL)
    every = tuple(range(size))
    own: dict[int, tuple[int, ...]] = {device: (device,) for device in every}
    if collective == "alltoall" and chunk is not None and chunk <= TINY and hardware.nodes * size <= MOST_DIRECT:
        reason = "Tiny chunks go straight to their destination, and devices of one NIC get equal parts of it."
        return Gates(dict.fromkeys(every, every), None, reason, {d: n for d, n in share.items() if n > 1})
    relays = None if small else every
    if not users:
        return Gates(own, relays, "No NIC is named, so each device sends to its like in other nodes.", {})
    if all(len(nic.devices) == 1 for nic in users) and len(share) == size:
        reason = "Each device has its own NIC and sends to its like in other nodes (rails)."
        return Gates(own, relays, reason, {}, tuple(dict.fromkeys(frozenset(nic.devices) for nic in users)))
    if small:
        reason = (
            "Small chunks: each device next to a NIC sends to its like in other nodes and gets an equal part of the "
            "NIC, so none waits for a relay."
        )
        return Gates({device: own[device] for device in share}, None, reason, share)
    served = _served(hardware, users)
    sender_of = list(every)
    taken: Counter[int] = Counter()
    connections: dict[int, dict[int, None]] = {}
    for index, devices in served.items():
        sender, receiver = _by_nic(hardware, users[index], taken)
        taken[sender] += 1
        connections.setdefault(sender, {})[receiver] = None
        for device in devices:
            sender_of[device] = sender
    reason = (
        f"{'One NIC' if len(served) == 1 else f'{len(served)} NICs'} for {size} devices: one device next to each sends "
        "for all that share it, another receives."
    )
    to = {sender: tuple(receivers) for sender, receivers in sorted(connections.items())}
    return Gates(to, tuple(sender_of), reason, {}, tuple(dict.fromkeys(frozenset(nic.devices) for nic in users)))


def _on(users: list[Nic]) -> list[int]:
    return sorted({device for nic in users for device in nic.devices})


def _served(hardware: Hardware, users: list[Nic]) -> dict[int, list[int]]:
    """NIC -> the devices whose chunks leave through it: its own, and those without a NIC that are nearest to it."""
    place = _places(hardware)
    served: dict[int, list[int]] = {}
    for device in range(hardware.devices_per_node):
        mine = [index for index, nic in enumerate(users) if device in nic.devices]

        def far(index: int, at: int = device) -> tuple[int, int, int]:
            nic = users[index]
            there = place.get(nic.pcie or "", ())
            here = place.get(("device", at), ())
            shared = sum(1 for one, other in zip(here, there, strict=False) if one == other)
            return (-shared, len(served.get(index, ())), index)

        best = min(mine or range(len(users)), key=far)
        served.setdefault(best, []).append(device)
    return dict(sorted(served.items()))


def _places(hardware: Hardware) -> dict[Any, tuple[Any, ...]]:
    """The path from the CPU down: (NUMA node, PCIe switches) of every PCIe switch and of every device under one."""
    by_name = {pcie.name: pcie for pcie in hardware.pcie}
    found: dict[Any, tuple[Any, ...]] = {}
    for pcie in hardware.pcie:
        path: list[Any] = [pcie.name]
        top = pcie
        while top.parent is not None:
            top = by_name[top.parent]
            path.append(top.name)
        found[pcie.name] = (f"numa {top.numa}" if top.numa is not None else top.name, *reversed(path))
        for device in pcie.devices:
            found["device", device] = found[pcie.name]
    return found


def _by_nic(hardware: Hardware, nic: Nic, taken: Mapping[int, int]) -> tuple[int, int]:
    """(sender, receiver) of a NIC: two of its devices under its own PCIe switch, or else any two of them."""
    under = next((set(pcie.devices) for pcie in hardware.pcie if pcie.name == nic.pcie), set())
    near = [device for device in sorted(nic.devices) if device in under] or sorted(nic.devices)
    near.sort(key=lambda device: taken.get(device, 0))
    return near[0], near[1] if len(near) > 1 else near[0]
