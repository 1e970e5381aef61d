"""Where each part of a node goes in its picture; geometry only, in units of one device spacing.

Every part gets an index along the devices and a level: fabrics below 0, devices at 0, then PCIe switches, NICs and the
network. Nodes of three or more devices that are linked directly become a ring (level = distance outwards), others a
row (level = down).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from treadle.planner.documents.hardware import Hardware

Point = tuple[float, float]
FIRST_PCIE, PCIE_STEP, NIC_STEP, NETWORK_STEP = 0.95, 0.7, 0.85, 0.75
FABRIC, FABRIC_STEP = -1.2, -0.8
GAP = 0.9


@dataclass(frozen=True)
class Panel:
    """Positions inside one node, its centre at x = 0."""

    ring: float | None
    """Radius of the devices' ring; absent in a row."""
    devices: tuple[Point, ...]
    pcie: dict[str, Point]
    nics: dict[str, Point]
    fabrics: dict[str, tuple[float, float, float]]
    """Left end, right end and y of each switch's bar."""
    network: float
    """Level of the network: y of the bar under a row, or radius of the circle around a ring, both as a distance."""
    half_width: float
    top: float
    bottom: float


def arrange(hardware: Hardware) -> Panel:
    """Lay out one node of `hardware`."""
    count = hardware.devices_per_node
    ring = count * 0.24 if hardware.links and count > 2 else None
    heights = _heights(hardware)
    deepest = max(heights.values(), default=-1)
    nic_level = FIRST_PCIE + PCIE_STEP * deepest + (NIC_STEP if heights else PCIE_STEP)
    network_level = (nic_level if hardware.nics else 0.0) + NETWORK_STEP
    place = _ring(count, ring) if ring is not None else _row(count)
    pcie_at = _pcie_indices(hardware, heights)
    nic_at = _spaced({nic.name: _nic_index(hardware, index, pcie_at) for index, nic in enumerate(hardware.nics)})
    fabrics = _fabrics(hardware, ring, count)
    outermost = max([network_level if hardware.network else 0.0, nic_level if hardware.nics else 0.0, 0.0])
    if heights:
        outermost = max(outermost, FIRST_PCIE + PCIE_STEP * deepest)
    reach = 0.5 if ring is None else ring + outermost + 0.5
    width = count / 2 + 0.2 if ring is None else reach
    extra = [abs(place(index, 0)[0]) + 0.6 for index in (*pcie_at.values(), *nic_at.values())] if ring is None else []
    bars = [y for _, _, y in fabrics.values()]
    return Panel(
        ring=ring,
        devices=tuple(place(index, 0.0) for index in range(count)),
        pcie={name: place(at, FIRST_PCIE + PCIE_STEP * heights[name]) for name, at in pcie_at.items()},
        nics={name: place(at, nic_level) for name, at in nic_at.items()},
        fabrics=fabrics,
        network=network_level if ring is None else ring + network_level,
        half_width=max([width, *extra]),
        top=max([reach + 0.3, *(y + 0.75 for y in bars)]),
        bottom=-reach if ring is not None else -outermost - 0.5,
    )


def _row(count: int) -> Callable[[float, float], Point]:
    return lambda index, level: (index - (count - 1) / 2, -level)


def _ring(count: int, radius: float) -> Callable[[float, float], Point]:
    def place(index: float, level: float) -> Point:
        angle = math.pi / 2 + math.pi / count - 2 * math.pi * index / count
        return ((radius + level) * math.cos(angle), (radius + level) * math.sin(angle))

    return place


def _heights(hardware: Hardware) -> dict[str, int]:
    """How many PCIe switches are stacked below each one, towards the devices."""
    heights = {pcie.name: 0 for pcie in hardware.pcie}
    parents = {pcie.name: pcie.parent for pcie in hardware.pcie}
    for name in heights:
        above, height = parents[name], 1
        while above is not None:
            heights[above] = max(heights[above], height)
            above, height = parents[above], height + 1
    return heights


def _pcie_indices(hardware: Hardware, heights: dict[str, int]) -> dict[str, float]:
    """Each switch over the middle of the devices below it; one without any is drawn at its parent."""
    parents = {pcie.name: pcie.parent for pcie in hardware.pcie}
    below: dict[str, list[int]] = {name: [] for name in heights}
    for pcie in hardware.pcie:
        name: str | None = pcie.name
        while name is not None:
            below[name].extend(pcie.devices)
            name = parents[name]
    wished: dict[str, float] = {}
    for name in sorted(heights, key=lambda name: -heights[name]):
        parent = parents[name]
        wished[name] = _mean(below[name]) if below[name] else wished.get(parent or "", 0.0)
    found: dict[str, float] = {}
    for level in set(heights.values()):
        found |= _spaced({name: at for name, at in wished.items() if heights[name] == level})
    return {name: found[name] for name in heights}


def _nic_index(hardware: Hardware, index: int, pcie_at: dict[str, float]) -> float:
    nic = hardware.nics[index]
    near = next((pcie.devices for pcie in hardware.pcie if pcie.name == nic.pcie), ())
    if nic.pcie is not None and (not nic.devices or len(nic.devices) > max(len(near), 1)):
        return pcie_at[nic.pcie]
    return _mean(nic.devices) if nic.devices else 0.0


def _fabrics(hardware: Hardware, ring: float | None, count: int) -> dict[str, tuple[float, float, float]]:
    """A bar for each switch above its members, on the lowest free line."""
    lines: list[list[tuple[float, float]]] = []
    found = {}
    base = 0.0 if ring is None else ring
    for switch in hardware.switches:
        if not switch.members:
            continue
        if ring is None:
            left, right = min(switch.members) - (count - 1) / 2 - 0.35, max(switch.members) - (count - 1) / 2 + 0.35
        else:
            left, right = -ring, ring
        line = next((n for n, used in enumerate(lines) if all(right < a or b < left for a, b in used)), len(lines))
        if line == len(lines):
            lines.append([])
        lines[line].append((left, right))
        found[switch.name] = (left, right, base - FABRIC - FABRIC_STEP * line)
    return found


def _spaced(wished: dict[str, float]) -> dict[str, float]:
    """Keep parts of one level at least GAP apart, in their order, around where they wish to be."""
    order = sorted(wished, key=lambda name: wished[name])
    found: dict[str, float] = {}
    last = -math.inf
    for name in order:
        last = max(wished[name], last + GAP)
        found[name] = last
    drift = _mean([found[name] - wished[name] for name in order]) if order else 0.0
    return {name: found[name] - drift for name in wished}


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers)
