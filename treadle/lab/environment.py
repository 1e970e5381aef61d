"""What a program in the lab finds in its environment, with the names that programs for several hosts look for."""

from __future__ import annotations

from treadle.lab.layout import LabLayout
from treadle.runtime.sockets import LATENCY

LAB, SCALE = "TREADLE_LAB_HOST", "TREADLE_LAB_SCALE"
"""Set for programs in a lab: all hosts share the cores of one machine, and the network is slower than its profile."""
FIRST_PORT = 29500


def per_rank(layout: LabLayout, place: int, local: int, port: int = FIRST_PORT) -> dict[str, str]:
    """The environment of process `local` of host `place`, with one process per device as under torchrun."""
    before = sum(host.devices for host in layout.hosts[:place])
    return {
        **_shared(layout, place, port),
        "RANK": str(before + local),
        "WORLD_SIZE": str(sum(host.devices for host in layout.hosts)),
        "LOCAL_RANK": str(local),
        "LOCAL_WORLD_SIZE": str(layout.hosts[place].devices),
        "GROUP_RANK": str(place),
    }


def per_host(layout: LabLayout, place: int, port: int = FIRST_PORT) -> dict[str, str]:
    """The environment of the only process of host `place`; torchrun reads the names that begin with PET."""
    return {
        **_shared(layout, place, port),
        "RANK": str(place),
        "WORLD_SIZE": str(len(layout.hosts)),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": str(place),
        "PET_NNODES": str(len(layout.hosts)),
        "PET_NODE_RANK": str(place),
        "PET_MASTER_ADDR": _master(layout),
        "PET_MASTER_PORT": str(port),
        "PET_NPROC_PER_NODE": str(layout.hosts[place].devices),
    }


def _shared(layout: LabLayout, place: int, port: int) -> dict[str, str]:
    host = layout.hosts[place]
    return {
        "MASTER_ADDR": _master(layout),
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": host.interfaces[0].name,
        "NCCL_SOCKET_IFNAME": ",".join(interface.name for interface in host.interfaces),
        LATENCY: f"{layout.latency_us:g}",
        SCALE: f"{layout.scale:g}",
        LAB: host.name,
    }


def _master(layout: LabLayout) -> str:
    return layout.hosts[0].interfaces[0].address
