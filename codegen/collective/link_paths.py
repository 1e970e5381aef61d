"""What a message passes from one rank to another: links, ports of switches, NICs and uplinks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from treadle.planner.documents.scalars import MEBIBYTE
from treadle.planner.errors import InputError
from treadle.planner.machine.nodes import Topology


@dataclass(frozen=True, slots=True)
class LinkPath:
    """(name, us per byte) of each link or port, the latency of the link, and its kind."""

    passes: tuple[tuple[str, float], ...]
    alpha_us: float
    kind: str


def paths_of(
    pairs: Iterable[tuple[int, int]], topology: Topology, efficiency: float, device_gbps: float | None = None
) -> dict[tuple[int, int], LinkPath]:
    """The cheapest path of each (sender, receiver), at `efficiency` of the rates of `topology`. `device_gbps` is what a
    device carries in all, out and in each, where that is less than its links.

    Raises InputError for a pair without a link.
    """
    best: dict[tuple[int, int], tuple[float, float, str]] = {}
    for link in topology.links:
        if link.alpha_us is None or link.beta_us_per_MB is None:
            continue
        found = (link.beta_us_per_MB, link.alpha_us, link.kind)
        best[link.src, link.dst] = min(found, best.get((link.src, link.dst), found))
    nic = {rank: f"nic {number}" for number, members in enumerate(topology.nics) for rank in members}
    paths = {}
    for src, dst in pairs:
        if (src, dst) not in best:
            raise InputError(f"gpu {src} sends to gpu {dst}, between which the machine has no link")
        beta, alpha, kind = best[src, dst]
        per_byte = beta / MEBIBYTE / efficiency
        passes: tuple[tuple[str, float], ...]
        if topology.node(src) != topology.node(dst):
            out, into = nic.get(src, f"gpu {src}"), nic.get(dst, f"gpu {dst}")
            racks = [uplink for uplink in topology.uplinks if uplink.parts(src, dst)]
            uplinks = (
                (
                    f"uplink {rack.name} {'out' if src in rack.ranks else 'in'}",
                    rack.beta_us_per_MB / MEBIBYTE / efficiency,
                )
                for rack in racks
            )
            passes = ((f"{out} out", per_byte), *uplinks, (f"{into} in", per_byte))
        else:
            switch = next((s for s in topology.switches if s.kind == kind and {src, dst} <= set(s.members)), None)
            if switch is not None:
                passes = ((f"gpu {src} to {switch.name}", per_byte), (f"{switch.name} to gpu {dst}", per_byte))
            else:
                passes = ((f"link {src}->{dst}", per_byte),)
            if device_gbps is not None:
                each = 1e-3 / device_gbps
                passes = (*passes, (f"gpu {src} out", each), (f"gpu {dst} in", each))
        paths[src, dst] = LinkPath(passes, alpha, kind)
    return paths
