"""Proposing a sketch: what a person who knows the machine would write first (TACCL, sections 5.4 and 5.8).

Every choice follows from the profile: switches and links as they are, one port for each NIC, senders by their place
next to a NIC (`collective/gates.py`), and symmetries that are checked permutations (`collective/automorphisms.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from math import isqrt
from typing import Any

import msgspec
import networkx as nx
import yaml

from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.scalars import MEBIBYTE, format_bytes
from treadle.planner.documents.sketch import (
    VERSION,
    Contiguity,
    Hyperparameters,
    InternodeSketch,
    IntranodeSketch,
    Policy,
    Sketch,
    Symmetry,
)
from treadle.planner.errors import InputError
from treadle.planner.machine.nodes import one_node, passes_nics, require_few
from treadle.planner.passes.collective.automorphisms import generators
from treadle.planner.passes.collective.gates import MOST_DIRECT, SMALL, Gates, gates_of
from treadle.planner.passes.collective.symmetry import rotated

SPLIT = frozenset({"alltoall", "allreduce", "reducescatter"})
"""Collectives whose input is cut into one part for each rank."""
ONE_SOURCE = frozenset({"broadcast", "reduce", "scatter"})
"""Collectives whose chunks all start (or, inverted, end) at one rank."""
PIPELINED = frozenset({"broadcast", "reduce"})
WHOLE = 2**18
"""Chunks of a gathering collective up to here stay whole; on NDv2, DGX-1 and DGX-2 halves pay from 1 MiB on."""
MOST_CHOICES = 100_000
"""(chunk, link) pairs up to which chunks are cut in two."""


@dataclass(frozen=True)
class Proposal:
    """`reasons` says why, by the sketch's field; the empty key covers the whole."""

    sketch: Sketch
    reasons: dict[str, str]


def propose(hardware: Hardware, *, collective: str | None = None, size_bytes: int | None = None) -> Sketch:
    """A sound sketch for `hardware`, made for one collective and input size where they are given.

    Raises InputError where the devices of a node cannot reach each other, or there are more than MAX_RANKS ranks.
    """
    return proposal(hardware, collective=collective, size_bytes=size_bytes).sketch


def proposal(hardware: Hardware, *, collective: str | None = None, size_bytes: int | None = None) -> Proposal:
    """A sketch as by `propose`, with the reason for every choice."""
    require_few(hardware)
    rails = _rails(hardware)
    unequal, hardware = not hardware.is_even, one_node(hardware)
    nodes, size = hardware.nodes, hardware.devices_per_node
    reasons: dict[str, str] = {}
    chunk = None if size_bytes is None else -(-size_bytes // (nodes * size if collective in SPLIT else 1))
    _require_reach(hardware)
    for_what = " ".join(
        [collective or "any collective", f"of {format_bytes(size_bytes)}" if size_bytes else ""]
    ).strip()
    name = " ".join(hardware.name.split())
    reasons[""] = f"Proposed for {nodes} x {size} devices of profile {name}, {for_what}."
    if unequal:
        reasons[""] += " The nodes are unequal, so they count as one."
    intra = _intranode(hardware, chunk, reasons)
    if rails:
        intra = msgspec.structs.replace(intra, direct_links=rails)
        reasons["intranode_sketch"] += " Between nodes each device sends to its like (rails)."
    gates = gates_of(hardware, collective, chunk) if nodes > 1 and hardware.network else None
    inter = None if gates is None else _internode(gates, size, collective, reasons)
    offsets: tuple[tuple[int, ...], ...] = ()
    listed: tuple[Symmetry, ...] = ()
    if collective not in ONE_SOURCE and not rails:
        offsets, listed = _symmetries(hardware, gates, reasons)
    takes_turns = bool(gates.nics if gates is not None else hardware.nics and passes_nics(hardware))
    if takes_turns:
        reasons["ib_ports"] = "The devices of one NIC take turns on it, in each direction."
    if gates is not None or passes_nics(hardware):
        reasons["contiguity"] = "Neighbouring chunks may cross in one message where that saves an alpha."
    sketch = Sketch(
        version=VERSION,
        name=f"{name}-{nodes}x{size}",
        num_nodes=None if unequal else nodes,
        intranode_sketch=intra,
        internode_sketch=inter,
        symmetry_offsets=offsets,
        symmetries=listed,
        ib_ports="per_nic" if takes_turns else "per_device",
        contiguity=Contiguity(links=(hardware.network.kind,))
        if hardware.network and (gates is not None or passes_nics(hardware))
        else Contiguity(),
        hyperparameters=Hyperparameters(
            input_chunkup=_chunkup(hardware, collective, size_bytes, chunk, reasons),
            input_size=None if size_bytes is None else _size_text(size_bytes),
        ),
    )
    return Proposal(sketch, reasons)


def to_yaml(made: Proposal) -> str:
    """The sketch as a person would write it, each reason as a comment above its field."""
    raw = msgspec.to_builtins(made.sketch)
    lines = [f"# {made.reasons.get('', '')}"]
    for key, value in raw.items():
        if value in ({}, (), []):
            continue
        lines += [f"# {line}" for line in _wrapped(made.reasons.get(key, ""))]
        if isinstance(value, dict):
            lines += [f"{key}:", *(f"  {inner}: {_flow(item)}" for inner, item in value.items())]
        else:
            lines.append(f"{key}: {_flow(value)}")
    return "\n".join(lines) + "\n"


def _flow(value: Any) -> str:
    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=2**20)
    return text.removesuffix("...\n").rstrip()


def _wrapped(text: str, width: int = 110) -> list[str]:
    lines: list[str] = []
    for word in text.split():
        if lines and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def _size_text(count: int) -> str:
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count % 2**power == 0:
            return f"{count >> power}{unit}"
    return str(count)


# Inside a node


def _require_reach(hardware: Hardware) -> None:
    size = hardware.devices_per_node
    graph: nx.DiGraph[Any] = nx.DiGraph((link.src, link.dst) for link in hardware.links)
    graph.add_nodes_from(range(size))
    for switch in hardware.switches:
        graph.add_edges_from((member, switch.name) for member in switch.members)
        graph.add_edges_from((switch.name, member) for member in switch.members)
    from_first, to_first = nx.descendants(graph, 0), nx.ancestors(graph, 0)
    for device in range(1, size):
        if device not in from_first or device not in to_first:
            a, b = (0, device) if device not in from_first else (device, 0)
            raise InputError(
                f"found no path from device {a} to device {b} inside a node, expected links or a switch between all; "
                "add what joins them (PCIe peers are a switch of kind pcie)",
                where=hardware.name,
                path="$.links",
            )


def _rails(hardware: Hardware) -> tuple[tuple[int, int], ...]:
    """Links of a machine of unequal nodes that is too large for all: those inside nodes, and between nodes those from
    each device to the one of its number, counted round in the smaller node."""
    if hardware.is_even or hardware.ranks <= MOST_DIRECT:
        return ()
    bases: list[tuple[int, int]] = []
    found: set[tuple[int, int]] = set()
    for node in hardware.every_node:
        base, size = sum(bases[-1]) if bases else 0, node.devices_per_node
        pairs = [(link.src, link.dst) for link in node.links]
        pairs += [pair for switch in node.switches for pair in permutations(switch.members, 2)]
        found.update((base + src, base + dst) for src, dst in pairs)
        for other, count in bases:
            both = [(base + i % size, other + i % count) for i in range(max(size, count))]
            found.update((*both, *((b, a) for a, b in both)))
        bases.append((base, size))
    return tuple(sorted(found))


def _intranode(hardware: Hardware, chunk: int | None, reasons: dict[str, str]) -> IntranodeSketch:
    groups = tuple(dict.fromkeys(tuple(sorted(s.members)) for s in hardware.switches if len(s.members) > 1))
    policy: Policy = "auto" if chunk is None else "uc-max" if chunk <= SMALL else "uc-min"
    how = {
        "uc-min": "few connections, for large chunks",
        "uc-max": "many connections, for small chunks",
        "auto": "many connections for chunks up to 1 MiB and few above (auto)",
    }[policy]
    if groups and not hardware.links:
        reasons["intranode_sketch"] = f"All links of a node belong to its switches; {how}."
        return IntranodeSketch(strategy="switch", switches=groups, switch_hyperedge_strategy=(policy,) * len(groups))
    if groups:
        reasons["intranode_sketch"] = f"Every physical link of a node; on its switches {how}."
        return IntranodeSketch(strategy="direct", switch_hyperedge_strategy=(policy,))
    reasons["intranode_sketch"] = "Every physical link of a node."
    return IntranodeSketch(strategy="direct")


# Between nodes and symmetry


def _internode(gates: Gates, size: int, collective: str | None, reasons: dict[str, str]) -> InternodeSketch:
    reason = gates.reason
    connections: Any = {str(sender): receivers for sender, receivers in gates.connections.items()}
    if gates.connections == {device: (device,) for device in range(size)}:
        connections = "direct-map"
    elif gates.connections == {device: tuple(range(size)) for device in range(size)}:
        connections = "fully-connected"
    shares = {str(device): share for device, share in sorted(gates.share.items())}
    sketch = InternodeSketch(strategy="relay", internode_conn=connections, beta_split=shares)
    if gates.sender_of is None or collective in ONE_SOURCE:
        open_to_all = " One rank has it all, so its chunks may leave by any sender." if gates.sender_of else ""
        reasons["internode_sketch"] = reason + open_to_all
        return sketch
    reasons["internode_sketch"] = f"{reason} A chunk leaves its node only through the sender of its device."
    for group in range(1, size + 1):
        member = gates.sender_of[0]
        if member < group and all(gates.sender_of[d] == d // group * group + member for d in range(size)):
            return msgspec.structs.replace(sketch, chunk_to_relay_map=(group, member))
    served: dict[str, tuple[int, ...]] = {}
    for device, sender in enumerate(gates.sender_of):
        served[str(sender)] = (*served.get(str(sender), ()), device)
    return msgspec.structs.replace(sketch, gpus_to_sender_rev_map=served)


def _symmetries(
    hardware: Hardware, gates: Gates | None, reasons: dict[str, str]
) -> tuple[tuple[tuple[int, ...], ...], tuple[Symmetry, ...]]:
    """`symmetry_offsets` and `symmetries`; all of them tie links between nodes too."""
    size, nodes = hardware.devices_per_node, hardware.nodes
    found, order = generators(hardware, gates)
    offsets = [_offset((o * size, group * size), size * nodes) for o, group in _node_rotations(hardware)]
    if offsets:
        racks = " by racks" if hardware.network and hardware.network.uplinks else ""
        reasons["symmetry_offsets"] = f"Nodes are alike{racks}."
    offsets += [_offset(one.rotation, size * nodes) for one in found if one.rotation is not None]
    if found:
        first = "symmetry_offsets" if offsets else "symmetries"
        text = f"A node's devices have {order} renumberings that change nothing (checked)."
        reasons[first] = f"{reasons.get(first, '')} {text}".strip()
    return tuple(offsets), tuple(Symmetry(perm=one.perm) for one in found if one.rotation is None)


def _node_rotations(hardware: Hardware) -> list[tuple[int, int]]:
    """(offset, group) in nodes: nested rotations that take every uplink to an equal one."""
    uplinks = hardware.network.uplinks if hardware.network else ()
    alike = {(frozenset(uplink.nodes), uplink.beta_us_per_MB) for uplink in uplinks}
    found: list[tuple[int, int]] = []
    group = hardware.nodes
    while group > 1:
        for offset in (o for o in range(1, group) if group % o == 0):
            if alike == {(frozenset(rotated(n, offset, group) for n in nodes), beta) for nodes, beta in alike}:
                found.append((offset, group))
                group = offset
                break
        else:
            group = max(size for size in range(1, group) if group % size == 0)
    return found


def _offset(rotation: tuple[int, int], ranks: int) -> tuple[int, ...]:
    return rotation if rotation[1] == ranks else (*rotation, ranks)


# Pieces


def _chunkup(
    hardware: Hardware, collective: str | None, size_bytes: int | None, chunk: int | None, reasons: dict[str, str]
) -> int:
    ranks = hardware.ranks
    if size_bytes is None or chunk is None:
        return 1
    if collective in PIPELINED:
        costs = [
            (part.alpha_us, part.beta_us_per_MB)
            for part in (*hardware.links, *hardware.switches, hardware.network)
            if part is not None and part.alpha_us and part.beta_us_per_MB
        ]
        if not costs:
            return 1
        alpha, beta = max(costs)  # the slowest to start
        best = isqrt(int(max(ranks - 2, 0) * (beta or 0) * size_bytes / MEBIBYTE / (alpha or 1)))
        pieces = min(max(best, 1), 8)
        if pieces > 1:
            reasons["hyperparameters"] = (
                f"{pieces} pieces follow each other along the path, so no link waits for the whole."
            )
        return pieces
    links = hardware.nodes * (len(hardware.links) + sum(len(s.members) ** 2 for s in hardware.switches))
    gathers = collective in (None, "allgather", "reducescatter", "allreduce")
    if gathers and chunk > WHOLE and 2 * ranks * links <= MOST_CHOICES:
        reasons["hyperparameters"] = "Two pieces, so that two paths share the load of a large chunk."
        return 2
    return 1
