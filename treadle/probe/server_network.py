"""The network cards of this machine as a server would use them, read from the operating system."""

from __future__ import annotations

import socket
from pathlib import Path

import psutil

from treadle.planner.documents.server_parts import ServerInterface

DEVICES = Path("/sys/class/net")
HEADERS, FRAMING = 52, 38
"""Bytes of IP and TCP in a packet, with time stamps, and of Ethernet around it."""
LANE = {2.5: 0.8, 5.0: 0.8, 8.0: 128 / 130, 16.0: 128 / 130, 32.0: 128 / 130, 64.0: 242 / 256}
"""Share of a lane's rate in GT/s that carries data."""


def interfaces(domains: int, devices: Path = DEVICES) -> tuple[list[ServerInterface], list[str]]:
    """Cards that are up and state their speed; and names of those that are up and do not. A card whose domain is
    unknown counts to domain 0."""
    found: list[ServerInterface] = []
    silent: list[str] = []
    addresses = psutil.net_if_addrs()
    for name, state in sorted(psutil.net_if_stats().items()):
        device = devices / name / "device"
        if not state.isup or "loopback" in state.flags:
            continue
        if state.speed <= 0:
            silent.append(name)
            continue
        numbers = [each.address for each in addresses.get(name, ()) if each.family == socket.AF_INET]
        found.append(
            ServerInterface(
                name=name,
                domain=min(max(0, int(_read(device / "numa_node") or 0)), domains - 1),
                link_gbps=state.speed / 1000,
                encoding=round((state.mtu - HEADERS) / (state.mtu + FRAMING), 4),
                slot_GBps=_slot(device),
                address=numbers[0] if numbers else None,
            )
        )
    return found, silent


def _slot(device: Path) -> float | None:
    """GB/s of a card's slot in each direction, None where it is in none."""
    speed, width = _read(device / "current_link_speed").split(), _read(device / "current_link_width")
    rate = float(speed[0]) if speed and speed[0].replace(".", "", 1).isdigit() else 0.0
    return round(rate * LANE[rate] * int(width) / 8, 3) if rate in LANE and width.isdigit() and int(width) else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
