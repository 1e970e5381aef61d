"""Networks of 16 hosts whose numbers say nothing about where they stand, as a provider hands hosts out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

HOSTS, SEED = 16, 1
SCALE = 400.0
"""25 Mbit/s in place of 10 Gbit/s: 16 hosts that all send come to 0.4 Gbit/s, which two cores carry with ease."""
OVERSUBSCRIBED = 4
"""All NICs of a rack over its uplink."""
US_PER_MIB = 838.861
"""Of a NIC of 10 Gbit/s."""
TEXT = """kind: hardware
version: 1
name: {name}
nodes: {nodes}
devices:
  - {{model: a process on a CPU, kind: cpu, count: 1}}
nics:
  - {{name: eth0, devices: [0], speed_gbps: 10}}
network:
  kind: ethernet
  alpha_us: 30
  beta_us_per_MB: {nic}
{rest}sources: {{nodes: "by definition", network: "by definition"}}
"""


@dataclass(frozen=True)
class LabNetwork:
    """`text` is a hardware profile; `racks` are its hosts by number."""

    name: str
    text: str
    racks: tuple[tuple[int, ...], ...]


def racks(count: int) -> LabNetwork:
    """Equal racks, each behind an uplink, 4:1."""
    numbers = list(range(HOSTS))
    Random(SEED).shuffle(numbers)
    size = HOSTS // count
    found = tuple(tuple(sorted(numbers[first : first + size])) for first in range(0, HOSTS, size))
    name = f"racks-{count}x{size}"
    beta = US_PER_MIB * OVERSUBSCRIBED / size
    uplinks = "".join(
        f"    - {{name: rack {place}, nodes: {list(rack)}, beta_us_per_MB: {beta:.3f}}}\n"
        for place, rack in enumerate(found)
    )
    return LabNetwork(name, profile(name, HOSTS, f"  uplinks:\n{uplinks}"), found)


def slow_host() -> LabNetwork:
    """One rack, and its last host has a quarter of the others' rate."""
    rest = "other_nodes:\n  - nics:\n      - {name: eth0, devices: [0], speed_gbps: 2.5}\n"
    return LabNetwork("slow-host", profile("slow-host", HOSTS - 1, rest), (tuple(range(HOSTS)),))


def profile(name: str, nodes: int, rest: str = "") -> str:
    """The text of a profile of hosts with 10 Gbit/s each."""
    return TEXT.format(name=name, nodes=nodes, nic=US_PER_MIB, rest=rest)


NETWORKS: Sequence[LabNetwork] = (racks(2), racks(4), slow_host())
