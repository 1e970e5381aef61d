"""Cluster topologies of NVIDIA's topograph: its simulation models in YAML, and the `topology.yaml` it writes for Slurm.

They say which nodes there are, which switches lead to them, and which nodes share an NVLink domain; not what a node has
or what anything costs. So the profile of a node comes from elsewhere, and each switch and domain becomes a group of
`network.groups`, to which a person can give costs. Models came in three forms over time: lists of switches and capacity
blocks with a `name`; maps of switches, nodes and capacity blocks; maps of switches with a list of `blocks`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from treadle.planner.documents.explain import found as shown
from treadle.planner.documents.explain import short
from treadle.planner.documents.hardware import Hardware, NodeGroup
from treadle.planner.errors import InputError

_SECTIONS = ("switches", "nodes", "blocks", "capacity_blocks")
_FIRST = re.compile(rf"^(({'|'.join(_SECTIONS)})\s*:|- *\"?topology\"?\s*:)", re.MULTILINE)
_RANGE = re.compile(r"([^\[\]]*)\[([0-9,\s-]+)\]([^\[\]]*)")
MAX_NODES = 100_000


def is_topograph(text: str) -> bool:
    """Whether YAML text looks like one of these files."""
    return _FIRST.search(text) is not None


def import_topograph(raw: Any, where: str, name: str, node: Hardware | None) -> Hardware:
    """As many nodes like that of the profile `node` as the file has, in its order, and its switches as groups.

    Raises InputError with the place in the file for what is no such topology, and without `node`.
    """
    found = _Found(where)
    if isinstance(raw, list):
        _slurm(raw, found)
    else:
        _model(_a(dict, raw, "$", found), found)
    if not found.nodes:
        raise InputError("found no node, expected some under nodes, blocks, capacity_blocks or switches", where=where)
    if node is None:
        raise InputError(
            f"found {len(found.nodes)} nodes and not what one has, which this format does not say; expected a profile "
            "to take a node and its network from (`treadle profile list`)",
            where="--costs-from",
        )
    if node.network is None or node.other_nodes:
        reason = "no network" if node.network is None else "unequal nodes"
        raise InputError(f"found {reason} in profile {node.name!r}, expected a node with a network", where=where)
    types = f"; types {', '.join(sorted(found.types))}" if found.types else ""
    sources = {key: f"copied from profile {node.name}" for key in node.sources if not key.startswith("nodes")}
    sources |= {"nodes": f"imported from topograph YAML{types}"}
    groups = found.groups()
    if groups:
        sources["network.groups"] = "imported from topograph YAML: its NVLink domains and switches, which have no costs"
    return replace(
        node,
        name=name,
        nodes=len(found.nodes),
        network=replace(node.network, groups=groups),
        sources=sources,
    )


@dataclass
class _Found:
    where: str
    nodes: dict[str, int] = field(default_factory=dict)
    """Node -> its number."""
    under: dict[str, str] = field(default_factory=dict)
    """Node -> the switch it is attached to."""
    parents: dict[str, str] = field(default_factory=dict)
    domains: dict[str, list[str]] = field(default_factory=dict)
    types: set[str] = field(default_factory=set)

    def add(self, name: str) -> None:
        if len(self.nodes) == MAX_NODES:
            raise InputError(f"found over {MAX_NODES} nodes, expected at most as many", where=self.where)
        self.nodes.setdefault(name, len(self.nodes))

    def attach(self, node: str, switch: str, path: str) -> None:
        if self.under.setdefault(node, switch) != switch:
            other = f"only {short(self.under[node])}, named before"
            raise self.fault(path, f"node {short(node)} under switch {short(switch)}", other)

    def adopt(self, child: str, parent: str, path: str) -> None:
        if self.parents.setdefault(child, parent) != parent:
            other = f"only {short(self.parents[child])}, named before"
            raise self.fault(path, f"switch {short(child)} under {short(parent)}", other)
        if child in self.above(parent):
            raise self.fault(path, f"switch {short(child)} under itself", "a tree of switches")

    def above(self, switch: str) -> list[str]:
        """The switch and those it hangs under."""
        path = [switch]
        while path[-1] in self.parents and len(path) <= len(self.parents):
            path.append(self.parents[path[-1]])
        return path

    def groups(self) -> tuple[NodeGroup, ...]:
        """NVLink domains, then switches; without those of a single node or of all, and one of equal switches."""
        below: dict[str, list[int]] = {}
        for node, switch in self.under.items():
            for above in self.above(switch):
                below.setdefault(above, []).append(self.nodes[node])
        made = [(f"nvlink {name}", [self.nodes[node] for node in members]) for name, members in self.domains.items()]
        switches = {tuple(sorted(members)): name for name, members in reversed(below.items())}
        made += [(name, list(members)) for members, name in sorted(switches.items(), key=lambda item: len(item[0]))]
        return tuple(
            NodeGroup(name=name, nodes=tuple(sorted(members)))
            for name, members in made
            if 1 < len(members) < len(self.nodes)
        )

    def fault(self, path: str, found: str, expected: str) -> InputError:
        return InputError(f"found {found}, expected {expected}", where=self.where, path=path)


def _model(raw: dict[str, Any], found: _Found) -> None:
    if not any(section in raw for section in _SECTIONS):
        raise found.fault("$", f"keys {', '.join(sorted(raw)) or 'none'}", f"one of {', '.join(_SECTIONS)}")
    for name, node, path in _entries(raw, "nodes", found):
        found.add(name)
        _describe(found, [name], node, _texts(node.get("attributes"), f"{path}.attributes", found).get("nvlink"))
    listed = "nodes" in raw
    homes: dict[str, list[str]] = {}
    for name, block, path in _entries(raw, "capacity_blocks", found):
        members = _nodes(block.get("nodes"), f"{path}.nodes", found, listed)
        homes[name] = members
        nvlink = block.get("nvlink", _texts(block.get("attributes"), f"{path}.attributes", found).get("nvlink"))
        _describe(found, members, block, nvlink)
    for index, entry in enumerate(_a(list, raw.get("blocks", []), "$.blocks", found)):
        path = f"$.blocks[{index}]"
        block = _a(dict, entry, path, found)
        members = _nodes(block.get("nodes"), f"{path}.nodes", found, listed)
        if block.get("switch") is not None:
            for member in members:
                found.attach(member, _a(str, block["switch"], f"{path}.switch", found), path)
        labels = {
            key: value
            for part in ("labels", "annotations")
            for key, value in _texts(block.get(part), f"{path}.{part}", found).items()
        }
        domain = [key for key in sorted(labels) if "accelerat" in key and not key.endswith("sub-domain")]
        _describe(found, members, block, labels[domain[0]] if domain else None)
    listed = bool(found.nodes)
    for name, switch, path in _entries(raw, "switches", found):
        for child in _names(switch.get("switches"), f"{path}.switches", found):
            found.adopt(child, name, f"{path}.switches")
        for home in _names(switch.get("capacity_blocks"), f"{path}.capacity_blocks", found):
            if home not in homes:
                raise found.fault(f"{path}.capacity_blocks", f"unknown {short(home)}", "the name of a capacity block")
            for member in homes[home]:
                found.attach(member, name, f"{path}.capacity_blocks")
        for member in _nodes(switch.get("nodes"), f"{path}.nodes", found, listed):
            found.attach(member, name, f"{path}.nodes")


def _describe(found: _Found, members: list[str], entry: dict[str, Any], domain: Any) -> None:
    if isinstance(entry.get("type"), str):
        found.types.add(entry["type"])
    for node in members if domain else ():
        if node not in (domains := found.domains.setdefault(str(domain), [])):
            domains.append(node)


def _slurm(raw: list[Any], found: _Found) -> None:
    for index, entry in enumerate(raw):
        path = f"$[{index}]"
        entry = _a(dict, entry, path, found)
        tree = _a(dict, entry.get("tree") or {}, f"{path}.tree", found)
        for number, switch in enumerate(_a(list, tree.get("switches", []), f"{path}.tree.switches", found)):
            at = f"{path}.tree.switches[{number}]"
            switch = _a(dict, switch, at, found)
            name = _a(str, switch.get("switch"), f"{at}.switch", found)
            for child in _names(switch.get("children"), f"{at}.children", found):
                found.adopt(child, name, f"{at}.children")
            for node in _nodes(switch.get("nodes"), f"{at}.nodes", found, False):
                found.attach(node, name, f"{at}.nodes")
        blocks = _a(dict, entry.get("block") or {}, f"{path}.block", found)
        for number, block in enumerate(_a(list, blocks.get("blocks", []), f"{path}.block.blocks", found)):
            at = f"{path}.block.blocks[{number}]"
            block = _a(dict, block, at, found)
            members = _nodes(block.get("nodes"), f"{at}.nodes", found, False)
            _describe(found, members, block, _a(str, block.get("block"), f"{at}.block", found))


def _entries(raw: dict[str, Any], section: str, found: _Found) -> Iterator[tuple[str, dict[str, Any], str]]:
    """(name, entry, path) of a section: a map by name, or a list whose entries have a name."""
    given = raw.get(section) or {}
    if isinstance(given, list):
        for index, entry in enumerate(given):
            path = f"$.{section}[{index}]"
            entry = _a(dict, entry, path, found)
            yield _a(str, entry.get("name"), f"{path}.name", found), entry, path
        return
    for name, entry in _a(dict, given, f"$.{section}", found).items():
        yield name, _a(dict, entry or {}, f"$.{section}.{name}", found), f"$.{section}.{name}"


def _nodes(given: Any, path: str, found: _Found, listed: bool) -> list[str]:
    """The nodes that a list names; new ones are added, unless all nodes were `listed` before."""
    names = _names(given, path, found)
    for name in names:
        if listed and name not in found.nodes:
            raise found.fault(path, f"unknown node {short(name)}", "one that nodes or a block lists")
        found.add(name)
    return names


def _names(given: Any, path: str, found: _Found) -> list[str]:
    """Names of a list, or of a text with commas between; `n[01-03,7]` is four of them."""
    if given is None:
        return []
    texts = [given] if isinstance(given, str) else _a(list, given, path, found)
    names: list[str] = []
    for text in texts:
        text = str(text) if isinstance(text, int) and not isinstance(text, bool) else _a(str, text, path, found)
        for part in re.split(r",(?![^\[]*\])", text):
            names += _spelled_out(part.strip(), path, found)
    return names


def _spelled_out(text: str, path: str, found: _Found) -> list[str]:
    if "[" not in text and "]" not in text and text:
        return [text]
    match = _RANGE.fullmatch(text)
    fault = found.fault(path, shown(text), "a name, or several as in n[01-16]")
    if match is None:
        raise fault
    names: list[str] = []
    for part in match[2].split(","):
        first, _, last = part.strip().partition("-")
        last = last or first
        if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last) < int(first) + MAX_NODES):
            raise fault
        names += [f"{match[1]}{number:0{len(first)}d}{match[3]}" for number in range(int(first), int(last) + 1)]
    return names


def _texts(given: Any, path: str, found: _Found) -> dict[str, Any]:
    return {} if given is None else _a(dict, given, path, found)


def _a(kind: type[Any], value: Any, path: str, found: _Found) -> Any:
    """`value`, which must be of this type."""
    if not isinstance(value, kind):
        words: dict[type[Any], str] = {dict: "an object", list: "a list", str: "a text"}
        raise found.fault(path, "nothing" if value is None else shown(value), words[kind])
    return value
