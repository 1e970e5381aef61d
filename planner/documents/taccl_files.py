"""The sketch and topology files of TACCL's public release, read as they are.

A sketch there has no `kind`, `version` or `name`; `adapted` gives it ours and the meanings that differ. A topology
holds costs for one message size: time = alpha + beta with beta already multiplied by the size, matrices indexed
[destination][source] (microsoft/taccl, INPUT_GUIDE.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeGuard

from treadle.planner.documents.hardware import VERSION, Device, Hardware, Link, Network, Nic, Switch
from treadle.planner.documents.quantities import parse_bytes
from treadle.planner.documents.scalars import MEBIBYTE, format_bytes
from treadle.planner.errors import InputError

_TECCL = ("TopologyParams", "GurobiParams", "InstanceParams")
_NDV2_DOUBLE = (0, 1, 3, 2, 6, 7, 5, 4)
"""The ring of doubled NVLinks of an NDv2 node in TACCL's numbering."""
_NAMED_SIZE = re.compile(r"(?:^|[^0-9A-Za-z.])([0-9.]+ ?[KMG]i?B?)$", re.IGNORECASE)


# Sketches


def adapted(raw: Any, where: str) -> Any:
    """`raw` as a sketch document where it is a TACCL sketch, else unchanged.

    Raises InputError, saying what to do, for TACCL topologies and TE-CCL inputs.
    """
    if not isinstance(raw, dict) or "kind" in raw or "version" in raw:
        return raw
    if any(key in raw for key in _TECCL):
        held = ", ".join(key for key in _TECCL if key in raw)
        raise InputError(
            f"found a TE-CCL input ({held}): it names a built-in topology and solver settings and is no sketch; write "
            "one with `treadle sketch new`",
            where=where,
        )
    if is_topology(raw):
        raise InputError(
            "found a TACCL topology, expected a document; make it a profile with `treadle profile import`", where=where
        )
    return dict(_sketch(raw, where)) if isinstance(raw.get("intranode_sketch"), dict) else raw


def remarks(raw: Any) -> tuple[str, ...]:
    """What of a TACCL sketch is not carried over, and what was assumed; nothing for other values."""
    if not isinstance(raw, dict) or "kind" in raw or not isinstance(raw.get("intranode_sketch"), dict):
        return ()
    said = []
    intra, inter = raw["intranode_sketch"], raw.get("internode_sketch")
    if intra.get("strategy") in ("minmax", "maxmin"):
        said.append(
            f"intranode_sketch.strategy {intra['strategy']}: every link is kept, but the load of links is no objective "
            "here"
        )
    if len(_groups(intra)) < len(_listed(intra, "switches")):
        said.append("intranode_sketch.switches: a group listed several times is one switch here")
    if isinstance(inter, dict):
        if inter.get("enforce_ordering"):
            said.append("internode_sketch.enforce_ordering: not carried over, a sender's chunks may leave in any order")
        if "ib_ports" not in raw and "beta_split" not in inter:
            said.append(
                "internode_sketch: devices of one NIC take turns on it (ib_ports: per_nic), where TACCL multiplies beta"
            )
        if "contiguity" not in raw:
            said.append("internode_sketch: up to 6 neighbouring chunks may share a message over ib, as in TACCL")
    return tuple(said)


def _sketch(raw: dict[str, Any], where: str) -> Iterator[tuple[str, Any]]:
    yield from (("kind", "sketch"), ("version", 1), ("name", raw.get("name", Path(where).stem or "sketch")))
    intra, inter = raw["intranode_sketch"], raw.get("internode_sketch")
    for key, value in raw.items():
        if key == "nnodes":
            yield "num_nodes", value
        elif key not in ("name", "intranode_sketch", "internode_sketch"):
            yield key, value
    changes: dict[str, Any] = {}
    if intra.get("strategy") in ("none", "minmax", "maxmin"):
        changes["strategy"] = "direct"
    groups = _groups(intra)
    if len(groups) < len(_listed(intra, "switches")):
        policies = _listed(intra, "switch_hyperedge_strategy")
        changes["switches"] = [list(group) for group in groups]
        if len(policies) == len(intra["switches"]):
            changes["switch_hyperedge_strategy"] = [policies[i] for i in groups.values()]
    yield "intranode_sketch", {**intra, **changes}
    if not isinstance(inter, dict):
        if inter is not None:
            yield "internode_sketch", inter
        return
    yield "internode_sketch", {key: value for key, value in inter.items() if key != "enforce_ordering"}
    if "ib_ports" not in raw and "beta_split" not in inter:
        yield "ib_ports", "per_nic"
    if "contiguity" not in raw:
        yield "contiguity", {"links": ["ib"]}


def _groups(intra: dict[str, Any]) -> dict[tuple[Any, ...], int]:
    """The different switch groups, each with its first place."""
    found: dict[tuple[Any, ...], int] = {}
    for index, group in enumerate(_listed(intra, "switches")):
        if not isinstance(group, list) or not all(isinstance(member, int) for member in group):
            return {(index,): index for index in range(len(intra["switches"]))}  # left for validation to refuse
        found.setdefault(tuple(group), index)
    return found


def _listed(intra: dict[str, Any], key: str) -> list[Any]:
    value = intra.get(key)
    return value if isinstance(value, list) else []


# Topologies


def is_topology(raw: Any) -> TypeGuard[dict[str, Any]]:
    """Whether plain values look like a TACCL topology."""
    return isinstance(raw, dict) and "gpus_per_node" in raw and "alpha" in raw and "kind" not in raw


def hardware_of(
    raw: dict[str, Any], where: str, name: str | None = None, message_bytes: int | None = None, scale: float = 1
) -> Hardware:
    """A profile of one node. Costs of the file are `scale` times microseconds, for messages of `message_bytes`.

    Without `message_bytes` the size is read from the end of the file's own name (`NDv2_1MB`). Which of TACCL's
    built-in graphs is meant stands on its command line only: two betas mean NDv2, one a switch of all devices.
    Raises InputError for missing or misplaced fields.
    """
    own = raw.get("name")
    size, origin = message_bytes, "as given"
    if size is None:
        match = _NAMED_SIZE.search(own) if isinstance(own, str) else None
        if match is None:
            raise InputError(
                "found costs for one message size that the file does not name, expected --message-size", where=where
            )
        binary = match[1].rstrip("Bb")  # TACCL's 1 MB is 1024 KB
        size, origin = parse_bytes(binary, where=where), f"assumed from the name {own!r}"
    count = _whole(raw, "gpus_per_node", where, 1, 64)
    links, switches, graph = _fabric(raw, where, count, size, scale)
    nics = _whole(raw, "nics_per_node", where, -1, count) if "nics_per_node" in raw else -1
    network = None
    if nics > 0:
        alpha, beta = (_cost(raw, key, where) for key in ("remote_alpha", "remote_beta"))
        network = Network(kind="ib", alpha_us=alpha / scale, beta_us_per_MB=beta * MEBIBYTE / size / scale)
    source = (
        f"TACCL topology {own!r}: costs of a message of {format_bytes(size)}, {origin}; in us "
        f"{f'times {scale:g}, as given' if scale != 1 else '(assumed: files may be scaled)'}"
    )
    shares = [range(i * count // nics, (i + 1) * count // nics) for i in range(nics)] if nics > 0 else []
    hardware = Hardware(
        version=VERSION,
        name=name or str(own or Path(where).stem),
        nodes=1,
        devices=(Device(model="unknown GPU", kind="gpu", count=count),),
        links=links,
        switches=switches,
        nics=tuple(Nic(name=f"nic{i}", devices=tuple(share)) for i, share in enumerate(shares)),
        network=network,
        sources={
            "nodes": "one node; --nodes sets another number",
            "devices": f"TACCL topology {own!r}",
            **({"links": f"{source}; {graph}"} if links else {"switches": f"{source}; {graph}"}),
            **({"network": source, "nics": "assumed: neighbouring devices share a NIC, evenly"} if network else {}),
        },
    )
    for path, found, expected in hardware.problems():
        raise InputError(f"found {found}, expected {expected}", where=where, path=path)
    return hardware


def _fabric(
    raw: dict[str, Any], where: str, count: int, size: int, scale: float
) -> tuple[tuple[Link, ...], tuple[Switch, ...], str]:
    """(links, switches, where the graph comes from)."""
    alpha = _cost(raw, "alpha", where) / scale

    def link(src: int, dst: int, kind: str, beta: float, parallel: int) -> Link:
        per_MB = beta * MEBIBYTE / size / scale
        return Link(src=src, dst=dst, kind=kind, alpha_us=alpha, beta_us_per_MB=per_MB, count=parallel)

    if "links" in raw:
        found, betas = (_matrix(raw, key, where, count) for key in ("links", "betas"))
        pairs = [(src, dst) for src in range(count) for dst in range(count) if src != dst and found[dst][src]]
        listed = tuple(link(s, d, "link", betas[d][s], int(found[d][s])) for s, d in pairs)
        return listed, (), "its own link matrix"
    rates = raw.get("node_betas_list")
    if not isinstance(rates, list) or not all(_is_cost(rate) for rate in rates):
        raise InputError("found no list of numbers, expected one", where=where, path="$.node_betas_list")
    if len(rates) == 1:
        members = tuple(range(count))
        beta = rates[0] * MEBIBYTE / size / scale
        switch = Switch(name="nvswitch", kind="nvswitch", members=members, alpha_us=alpha, beta_us_per_MB=beta)
        return (), (switch,), "assumed: one beta is a switch of all devices (DGX2, HubAndSpoke)"
    if len(rates) == 2 and count == 8:
        double = {frozenset(pair) for pair in pairwise((*_NDV2_DOUBLE, _NDV2_DOUBLE[0]))}
        near = [(a, b) for a in range(8) for b in range(8) if a != b and (a // 4 == b // 4 or a % 4 == b % 4)]
        listed = tuple(
            link(a, b, "nvlink", 2 * rates[0] if {a, b} in double else rates[1], 2 if {a, b} in double else 1)
            for a, b in near
        )
        return listed, (), "assumed: two betas and eight devices are NDv2 in TACCL's numbering"
    raise InputError(
        f"found {len(rates)} betas for {count} devices and no link matrix, expected one, or two for the eight of NDv2",
        where=where,
        path="$.node_betas_list",
    )


def _is_cost(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1e15


def _cost(raw: dict[str, Any], key: str, where: str) -> float:
    if not _is_cost(raw.get(key)):
        seen = repr(raw[key])[:60] if key in raw else "nothing"
        raise InputError(f"found {seen}, expected a cost of 0 or more", where=where, path=f"$.{key}")
    return float(raw[key])


def _whole(raw: dict[str, Any], key: str, where: str, least: int, most: int) -> int:
    value = raw.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InputError(
            f"found {value!r:.60}, expected a whole number of {least} to {most}", where=where, path=f"$.{key}"
        )
    return value


def _matrix(raw: dict[str, Any], key: str, where: str, count: int) -> list[list[float]]:
    rows = raw.get(key)
    if not isinstance(rows, list) or len(rows) != count:
        raise InputError(f"found no matrix of {count} rows, expected one", where=where, path=f"$.{key}")
    for index, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != count or not all(_is_cost(cell) for cell in row):
            expected = f"expected a row of {count} numbers, one for each source"
            raise InputError(f"found something else, {expected}", where=where, path=f"$.{key}[{index}]")
    return rows
