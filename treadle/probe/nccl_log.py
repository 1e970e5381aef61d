"""The log of NCCL or RCCL with `NCCL_DEBUG=INFO`: the topology that its GRAPH lines print, and what ran.

The tree of a node starts with a line `=== System : maxBw ...`, and each `+` stands further right than that of its
parent:

    CPU/0-0 (1/1/2)
    + PCI[24.0] - PCI/0-2000 (10b5879610b58796)
                  + PCI[24.0] - GPU/0-4000 (0)
                                + NVL[240.0] - NVS/0
                  + PCI[24.0] - NIC/0-6000
                                + NET[25.0] - NET/0-1 (0/0/25.000000)

Rates are GB/s that NCCL counts with, all links between two ends together; a GPU has its rank, in brackets.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from treadle.planner.documents.hardware import Hardware, Host, Link, Switch
from treadle.planner.documents.scalars import MEBIBYTE, many
from treadle.planner.errors import InputError
from treadle.probe.nccl_tests import PREFIX
from treadle.probe.pcie_tree import NicPort, PcieGpu, PciePlace, assemble, tree

LINK_GBPS = (20.6, 20.0, 21.0, 22.0, 40.1, 18.0, 12.0)
"""What NCCL counts one NVLink with: Hopper; Volta, Ampere and older NCCL; Blackwell; Pascal; Ampere cards."""
MOST_LINKS = 18
_START = re.compile(r"=== System : max(?:Bw|Width) ")
_END = re.compile(r"={20,}")
_INFO = re.compile(r"(?:(\S+?):(\d+:\d+) \[\S+\] )?NCCL INFO (.*)")
_NODE = re.compile(
    r"( *)(?:\+ ([A-Z0-9]+)\[(\d+(?:\.\d+)?)\] - )?([A-Z]+)/([0-9A-Fa-f]+(?:-[0-9A-Fa-f]+)*)(?: \(([^)]*)\))?"
)
_NICS = re.compile(r"NET/\w+ : Using (.*)")
_NIC = re.compile(r"\[(\d+)\]([\w.-]+)")
_NVLS = re.compile(r"NVLS multicast support is available")
_VERSION = re.compile(r"NCCL version (\d+\.\d+(?:\.\d+)?)")
_RANKS = re.compile(r"\bnranks (\d+)", re.IGNORECASE)
_CHANNEL = re.compile(r"Channel (\d+)(?:/\d+)? : (\d+)\S* -> (\d+)\S* .*?via (.*)")
_VIA = re.compile(r"P2P|SHM|shared memory|NET/\w+|COLLNET")


@dataclass
class _Parts:
    """What stands below the CPUs of one node; links and attachments are (rank, end, GB/s)."""

    gpus: dict[int, tuple[str, PciePlace]] = field(default_factory=dict)
    links: list[tuple[int, str, str, float]] = field(default_factory=list)
    attachments: list[tuple[int, float]] = field(default_factory=list)
    bridges: dict[str, PciePlace] = field(default_factory=dict)
    ports: dict[str, NicPort] = field(default_factory=dict)
    numas: set[int] = field(default_factory=set)


def is_log(text: str) -> bool:
    return "NCCL INFO" in text or _START.search(text) is not None


def has_topology(text: str) -> bool:
    return _START.search(text) is not None


def import_nccl_log(text: str, where: str, name: str) -> Hardware:
    """The first node whose tree the log prints; its links have the rates of NCCL and no alpha.

    Raises InputError for a log without a whole tree, and for one without GPUs.
    """
    lines = [_parts(line) for line in text.splitlines()]
    dump = _first_tree(lines)
    if not dump:
        raise InputError(
            f"found a log of {summary(text) or 'NCCL'}, without times or topology, expected what `all_reduce_perf "
            "-b 8 -e 1G -f 2` prints with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,GRAPH",
            where=where,
        )
    names = {
        int(number): nic for _, line in lines if (used := _NICS.search(line)) for number, nic in _NIC.findall(used[1])
    }
    found = _walk(dump, names, where)
    if not found.gpus:
        raise InputError("found a topology without GPUs, expected at least one line GPU/BUS (RANK)", where=where)
    ranks = {rank: local for local, rank in enumerate(sorted(found.gpus))}
    local = {found.gpus[rank][0]: place for rank, place in ranks.items()}
    return assemble(
        name,
        "imported from the log of NCCL, with its rates",
        [PcieGpu(busid, "unknown GPU", place) for _, (busid, place) in sorted(found.gpus.items())],
        list(found.ports.values()),
        tree(found.bridges),
        [_link(ranks[rank], local[end], kind, rate) for rank, end, kind, rate in found.links if end in local],
        _fabric([(ranks[rank], rate) for rank, rate in found.attachments], in_network=_NVLS.search(text) is not None),
        Host(numa_nodes=len(found.numas) or None),
    )


def summary(text: str) -> str:
    """Version, ranks, hosts, channels and transports of a log, as far as it has them."""
    lines = [line for _, line in map(_parts, text.splitlines())]
    channels = [match.groups() for line in lines if (match := _CHANNEL.match(line))]
    ends = {int(end) for _, src, dst, _ in channels for end in (src, dst)}
    ranks = max([int(count) for count in _RANKS.findall(text)] + [1 + max(ends, default=-1)])
    hosts = {match[1] for match in _INFO.finditer(text) if match[1]}
    vias = sorted({via[0] for *_, text in channels if (via := _VIA.search(text))})
    version = _VERSION.search(text)
    parts = [f"NCCL {version[1]}"] if version else []
    parts += [many(ranks, "rank")] if ranks else []
    parts += [many(len(hosts), "host")] if hosts else []
    parts += [many(len({number for number, *_ in channels}), "channel")] if channels else []
    return ", ".join(parts + ([f"over {' and '.join(vias)}"] if vias else []))


def _parts(line: str) -> tuple[str, str]:
    """Who wrote a line, and what; processes of a run write at the same time."""
    info = _INFO.search(line)
    return (f"{info[1]}:{info[2]}", info[3]) if info else ("", PREFIX.sub("", line))


def _first_tree(lines: list[tuple[str, str]]) -> list[str]:
    """The lines of the first tree that has its end."""
    trees: dict[str, list[str]] = defaultdict(list)
    started: set[str] = set()
    for process, line in lines:
        if _START.match(line.strip()):
            started.add(process)
            trees[process].clear()
        elif process in started and _END.fullmatch(line.strip()):
            return trees[process]
        elif process in started:
            trees[process].append(line)
    return []


def _nodes(dump: list[str]) -> Iterator[tuple[int, re.Match[str]]]:
    for line in dump:
        if match := _NODE.match(line):
            yield (len(match[1]) if match[2] else -1), match


def _walk(dump: list[str], names: dict[int, str], where: str) -> _Parts:
    found, path = _Parts(), list[tuple[int, str, str, PciePlace]]()
    for column, match in _nodes(dump):
        _, link, rate, kind, busid, rest = match.groups()
        busid = busid.lower()
        if rate is not None and not float(rate):
            raise InputError(f"found {link}[{rate}] to {kind}/{busid}, expected a rate above 0", where=where)
        while path and path[-1][0] >= column:
            path.pop()
        place = path[-1][3] if path else PciePlace()
        if kind == "CPU" and link is None:
            numa = int(busid.split("-")[-1], 16)
            found.numas.add(numa)
            place = PciePlace((), numa)
        elif link == "PCI" and kind == "PCI":
            found.bridges[busid] = place
            place = PciePlace((*place.path, busid), place.numa)
        elif link == "PCI" and kind == "GPU":
            if rest is None or not rest.split(" ")[0].isdecimal():
                raise InputError(f"found GPU/{busid} without a rank, expected one in brackets", where=where)
            found.gpus[int(rest.split(" ")[0])] = (busid, place)
        elif link in ("NVL", "XGMI") and path and path[-1][1] == "GPU":
            rank = next((rank for rank, (gpu, _) in found.gpus.items() if gpu == path[-1][2]), None)
            if rank is None:
                raise InputError(f"found a link of GPU/{path[-1][2]}, which has no rank", where=where)
            if kind == "GPU":
                found.links.append((rank, busid, "nvlink" if link == "NVL" else "xgmi", float(rate)))
            elif kind == "NVS":
                found.attachments.append((rank, float(rate)))
        elif link == "NET" and kind == "NET":
            number = int(busid.split("-")[-1], 16)
            port = names.get(number, f"net{number}")
            found.ports[port] = NicPort(port, place, speed_gbps=float(rate) * 8)
        path.append((column, kind, busid, place))
    return found


def _count(rate: float) -> int:
    """The number of NVLinks that NCCL counts with `rate` GB/s."""
    fits = (round(rate / one) for one in LINK_GBPS if abs(rate / one - round(rate / one)) < 0.02)
    return next((count for count in fits if 1 <= count <= MOST_LINKS), 1)


def _link(src: int, dst: int, kind: str, rate: float) -> Link:
    count = _count(rate) if kind == "nvlink" else 1
    return Link(src=src, dst=dst, kind=kind, count=count, beta_us_per_MB=_beta(rate / count))


def _fabric(attachments: list[tuple[int, float]], *, in_network: bool) -> list[Switch]:
    """One NVSwitch fabric of all GPUs with a link into one, with the least of their rates; NVLS both adds up and
    multicasts."""
    if len(attachments) < 2:
        return []
    rate = min(rate for _, rate in attachments)
    members, count = tuple(sorted({rank for rank, _ in attachments})), _count(rate)
    fabric = Switch(
        name="nvswitch0",
        kind="nvswitch",
        members=members,
        count=count,
        beta_us_per_MB=_beta(rate / count),
        in_network=("multicast", "reduce") if in_network else (),
    )
    return [fabric]


def _beta(gbps: float) -> float:
    return round(MEBIBYTE / gbps / 1e3, 4)
