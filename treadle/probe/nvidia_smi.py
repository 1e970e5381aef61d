"""The text of `nvidia-smi topo -m`, old and new columns, straight from the tool or pasted with blanks for tabs.

Cells name the slowest part of the path between two devices: NV# (that many NVLinks), PIX (one PCIe switch), PXB
(several), PHB (the CPU's host bridge), NODE (several host bridges), SYS (the link between CPUs; SOC in old drivers).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import networkx as nx
from msgspec.structs import replace

from treadle.planner.documents.hardware import Hardware, Host, Link, PcieSwitch, Switch
from treadle.planner.errors import InputError
from treadle.probe.pcie_tree import NicPort, PcieGpu, PciePlace, assemble, merged

MOST_NVLINKS = 18
"""No GPU up to Blackwell has more; a matrix that needs more per GPU shows one NVSwitch fabric, not direct links."""

PEERS = "assumed: without NVLink the GPUs reach each other over PCIe, which counts as one switch"
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_GPU = re.compile(r"GPU[0-9]+")
_NVLINKS = re.compile(r"NV([1-9][0-9]{0,2})")
_CELL = re.compile(r"X|SYS|SOC|NODE|PHB|PXB|PIX|PSB|N/A|NV[1-9][0-9]{0,2}")
_LEGEND = re.compile(r"\s*(NIC[0-9]+)\s*:\s*(\S+)\s*")


@dataclass(frozen=True)
class _Row:
    line: int
    cells: dict[str, str]
    rest: tuple[str, ...]


def import_nvidia_smi(text: str, where: str, name: str) -> Hardware:
    """A profile without costs; PCIe switches are those that the cells prove: a PIX group, or a PXB group around some.

    Raises InputError with file and line for text that is no such matrix.
    """
    text = _ANSI.sub("", text)
    columns, rows = _matrix(text, where)
    gpus = [column for column in columns if _GPU.fullmatch(column)]
    others = [column for column in columns if column not in gpus]
    nvlinks = _nvlinks(gpus, rows)
    bridges, places = _pcie(columns, rows)
    numa = {gpu: _numa(rows[gpu]) for gpu in gpus}
    legend = {match[1]: match[2] for line in text.splitlines() if (match := _LEGEND.fullmatch(line))}
    switched = _is_switched(gpus, nvlinks)
    links = [] if switched else merged((gpus.index(a), gpus.index(b), "nvlink", n) for (a, b), n in nvlinks.items())
    affinities = {row.rest[0] for gpu in gpus if (row := rows[gpu]).rest}
    numas = {node for node in numa.values() if node is not None}
    hardware = assemble(
        name,
        "imported from the text of `nvidia-smi topo -m`",
        [PcieGpu(gpu, "unknown GPU", PciePlace(places[gpu], numa[gpu])) for gpu in gpus],
        [NicPort(legend.get(nic, nic), PciePlace(places[nic], _numa_of_nic(nic, gpus, rows, numa))) for nic in others],
        bridges,
        links,
        _switches(len(gpus), min(nvlinks.values()) if switched else None, links),
        Host(numa_nodes=len(numas) or len(affinities) or None),
    )
    if any(switch.kind == "pcie" for switch in hardware.switches):
        return replace(hardware, sources={**hardware.sources, "switches": PEERS})
    return hardware


def _switches(gpus: int, nvlinks: int | None, links: list[Link]) -> list[Switch]:
    """NVSwitch with `nvlinks` of each GPU, or PCIe where there is no NVLink at all."""
    members = tuple(range(gpus))
    if nvlinks is not None:
        return [Switch(name="nvswitch0", kind="nvswitch", members=members, count=nvlinks)]
    return [] if links or gpus < 2 else [Switch(name="pcie-peers", kind="pcie", members=members)]


def _matrix(text: str, where: str) -> tuple[list[str], dict[str, _Row]]:
    columns: list[str] = []
    rows: dict[str, _Row] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        words, at = line.split(), f"{where}:{number}"
        if not columns:
            if len(words) > 1 and _GPU.fullmatch(words[0]) and not _CELL.fullmatch(words[1]):
                columns = words[: next((place for place, word in enumerate(words) if word in ("CPU", "NUMA")), None)]
                if len(set(columns)) != len(columns):
                    raise InputError("found a column name twice, expected each once", where=at)
        elif words and words[0] in columns:
            cells, rest = words[1 : len(columns) + 1], words[len(columns) + 1 :]
            if words[0] in rows:
                raise InputError(f"found a second row {words[0]}, expected each once", where=at)
            if len(cells) < len(columns):
                raise InputError(f"found {len(cells)} cells, expected {len(columns)} as in the header", where=at)
            if odd := [cell for cell in cells if not _CELL.fullmatch(cell)]:
                raise InputError(f"found cell {odd[0]!r}, expected X, NV#, PIX or alike", where=at)
            rows[words[0]] = _Row(number, dict(zip(columns, cells, strict=True)), tuple(rest))
        elif rows:
            break
    if not columns:
        expected = "the output of `nvidia-smi topo -m`, XML, JSON or topograph YAML"
        raise InputError(f"found no header with GPU0, expected {expected}", where=where)
    if missing := [column for column in columns if column not in rows]:
        raise InputError(f"found no row {missing[0]}, expected one for each column", where=where)
    for name, row in rows.items():
        at = f"{where}:{row.line}"
        if row.cells[name] != "X":
            raise InputError(f"found {row.cells[name]!r} between {name} and itself, expected X", where=at)
        for column, cell in row.cells.items():
            if (back := rows[column].cells[name]) != cell:
                found = f"found {cell} from {name} to {column} but {back} back"
                raise InputError(f"{found}, expected the same in both directions", where=at)
    return columns, rows


def _nvlinks(gpus: list[str], rows: dict[str, _Row]) -> dict[tuple[str, str], int]:
    cells = ((gpu, other, _NVLINKS.fullmatch(rows[gpu].cells[other])) for gpu in gpus for other in gpus)
    return {(gpu, other): int(match[1]) for gpu, other, match in cells if match}


def _is_switched(gpus: list[str], nvlinks: dict[tuple[str, str], int]) -> bool:
    return any(sum(nvlinks.get((gpu, other), 0) for other in gpus) > MOST_NVLINKS for gpu in gpus)


def _pcie(columns: list[str], rows: dict[str, _Row]) -> tuple[list[PcieSwitch], dict[str, tuple[str, ...]]]:
    """PCIe switches and the path of each device. Cells of a NIC show what NVLink hides."""
    places: dict[str, tuple[str, ...]] = dict.fromkeys(columns, ())
    bridges: list[PcieSwitch] = []
    for kinds, label in ((("PIX", "PXB"), "pxb"), (("PIX",), "pix")):
        graph: nx.Graph[str] = nx.Graph()
        graph.add_nodes_from(columns)
        graph.add_edges_from((a, b) for a in columns for b in columns if rows[a].cells[b] in kinds)
        groups = [sorted(group, key=columns.index) for group in nx.connected_components(graph) if len(group) > 1]
        for group in sorted(groups, key=lambda group: columns.index(group[0])):
            if label == "pxb" and all(rows[a].cells[b] != "PXB" for a in group for b in group):
                continue
            switch = f"{label}{sum(bridge.name.startswith(label) for bridge in bridges)}"
            parent = places[group[0]][-1] if places[group[0]] else None
            bridges.append(PcieSwitch(name=switch, parent=parent))
            for column in group:
                places[column] = (*places[column], switch)
    return bridges, places


def _numa(row: _Row) -> int | None:
    """New drivers print CPU affinity, NUMA affinity and the GPU's own NUMA id; old ones only the first."""
    return int(row.rest[1]) if len(row.rest) >= 2 and row.rest[1].isdecimal() and len(row.rest[1]) < 5 else None


def _numa_of_nic(nic: str, gpus: list[str], rows: dict[str, _Row], numa: dict[str, int | None]) -> int | None:
    """NIC rows have no affinity, but a GPU that is not across the CPUs' link is on the same NUMA node."""
    near = [gpu for gpu in gpus if rows[nic].cells[gpu] in ("PIX", "PXB", "PHB", "NODE")]
    return numa[near[0]] if near else None
