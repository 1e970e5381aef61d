"""Cluster topologies of NVIDIA's topograph: its simulation models in YAML, and the `topology.yaml` it writes for Slurm.

They say which nodes there are, which switches lead to them, and which nodes share an NVLink domain; not what a node has
or what anything costs. So the profile of a node comes from elsewhere, and each switch and domain becomes a group of
`network.groups`, to which a person can give costs. Models came in three forms over time: lists of switches and capacity
blocks with a `name`; maps of switches, nodes and capacity blocks; maps of switches with a list of `blocks`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from treadle.planner.documents.explain import child, misfit, short
from treadle.planner.documents.hardware import Hardware, NodeGroup
from treadle.planner.errors import InputError

SECTIONS = ("switches", "nodes", "blocks", "capacity_blocks")
_FIRST = re.compile(rf"^(({'|'.join(SECTIONS)})\s*:|- *\"?topology\"?\s*:)", re.MULTILINE)
_RANGE = re.compile(r"([^\[\]]*)\[([0-9,\s-]+)\]([^\[\]]*)")
MAX_NODES = 100_000

Names = tuple[str | int, ...] | str | None


class _Part(msgspec.Struct):
    """A node, switch, block or capacity block of any form."""

    name: str | None = None
    type: Any = None
    nodes: Names = None
    switches: Names = None
    capacity_blocks: Names = None
    children: Names = None
    switch: str | None = None
    block: str | None = None
    nvlink: Any = None
    attributes: dict[str, Any] | None = None
    labels: dict[str, Any] | None = None
    annotations: dict[str, Any] | None = None


Section = dict[str, _Part | None] | tuple[_Part, ...] | None
"""Parts by name, or a list of parts that have a name."""


class _Model(msgspec.Struct):
    nodes: Section = None
    capacity_blocks: Section = None
    blocks: tuple[_Part, ...] | None = None
    switches: Section = None


class _Slurm(msgspec.Struct):
    """One entry of `topology.yaml`."""

    tree: _Model | None = None
    block: _Model | None = None


def is_topograph(text: str) -> bool:
    """Whether YAML text looks like one of these files."""
    return _FIRST.search(text) is not None


def import_topograph(raw: Any, where: str, name: str, node: Hardware | None) -> Hardware:
    """As many nodes like that of the profile `node` as the file has, in its order, and its switches as groups.

    Raises InputError with the place in the file for what is no such topology, and without `node`.
    """
    form: Any = tuple[_Slurm, ...] if isinstance(raw, list) else _Model
    cluster = _Cluster(where)
    try:
        read = msgspec.convert(raw, form, strict=True)
    except msgspec.ValidationError as error:
        raise cluster.fault(*(misfit(raw, form) or ("$", f"a value out of place ({error})", "a topology"))) from error
    (cluster.slurm if isinstance(raw, list) else cluster.model)(read)
    if not cluster.nodes:
        raise InputError("found no node, expected some under nodes, blocks, capacity_blocks or switches", where=where)
    if node is None:
        raise InputError(
            f"found {len(cluster.nodes)} nodes and not what one has, which this format does not say; expected a "
            "profile to take a node and its network from (`treadle profile list`)",
            where="--costs-from",
        )
    if node.network is None or node.other_nodes:
        reason = "no network" if node.network is None else "unequal nodes"
        raise InputError(f"found {reason} in profile {node.name!r}, expected a node with a network", where=where)
    types = f"; types {', '.join(sorted(cluster.types))}" if cluster.types else ""
    sources = {key: f"copied from profile {node.name}" for key in node.sources if not key.startswith("nodes")}
    sources |= {"nodes": f"imported from topograph YAML{types}"}
    groups = cluster.groups()
    if groups:
        sources["network.groups"] = "imported from topograph YAML: its NVLink domains and switches, which have no costs"
    network = replace(node.network, groups=groups)
    return replace(node, name=name, nodes=len(cluster.nodes), network=network, sources=sources)


class _Cluster:
    """Nodes, switches and NVLink domains read so far."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.nodes: dict[str, int] = {}
        """Number of each node."""
        self.under: dict[str, str] = {}
        """The switch that each node is attached to."""
        self.parents: dict[str, str] = {}
        self.domains: dict[str, list[str]] = {}
        self.types: set[str] = set()

    def model(self, model: _Model) -> None:
        for name, node, _ in self.parts(model.nodes, "$.nodes"):
            self.add(name)
            self.describe([name], node, (node.attributes or {}).get("nvlink"))
        listed = model.nodes is not None
        homes: dict[str, list[str]] = {}
        for name, block, path in self.parts(model.capacity_blocks, "$.capacity_blocks"):
            homes[name] = self.members(block.nodes, f"{path}.nodes", listed)
            self.describe(homes[name], block, block.nvlink or (block.attributes or {}).get("nvlink"))
        for index, block in enumerate(model.blocks or ()):
            path = f"$.blocks[{index}]"
            members = self.members(block.nodes, f"{path}.nodes", listed)
            for member in members if block.switch is not None else ():
                self.attach(member, str(block.switch), path)
            labels = (block.labels or {}) | (block.annotations or {})
            domain = [key for key in sorted(labels) if "accelerat" in key and not key.endswith("sub-domain")]
            self.describe(members, block, labels[domain[0]] if domain else None)
        listed = bool(self.nodes)
        for name, switch, path in self.parts(model.switches, "$.switches"):
            self.adopt(name, switch.switches, f"{path}.switches")
            for home in self.names(switch.capacity_blocks, f"{path}.capacity_blocks"):
                if home not in homes:
                    expected = "the name of a capacity block"
                    raise self.fault(f"{path}.capacity_blocks", f"unknown {short(home)}", expected)
                for member in homes[home]:
                    self.attach(member, name, f"{path}.capacity_blocks")
            for member in self.members(switch.nodes, f"{path}.nodes", listed):
                self.attach(member, name, f"{path}.nodes")

    def slurm(self, entries: Sequence[_Slurm]) -> None:
        for index, entry in enumerate(entries):
            tree, blocks = entry.tree or _Model(), entry.block or _Model()
            for name, switch, path in self.parts(tree.switches, f"$[{index}].tree.switches", "switch"):
                self.adopt(name, switch.children, f"{path}.children")
                for node in self.members(switch.nodes, f"{path}.nodes", False):
                    self.attach(node, name, f"{path}.nodes")
            for name, block, path in self.parts(blocks.blocks, f"$[{index}].block.blocks", "block"):
                self.describe(self.members(block.nodes, f"{path}.nodes", False), block, name)

    def parts(self, section: Section, path: str, key: str = "name") -> Iterator[tuple[str, _Part, str]]:
        """(name, part, path) of a section; parts of a list have their name under `key`."""
        if isinstance(section, dict):
            for name, part in section.items():
                yield name, part or _Part(), child(path, name)
            return
        for index, part in enumerate(section or ()):
            own = getattr(part, key)
            if own is None:
                raise self.fault(f"{path}[{index}].{key}", "nothing", "a text")
            yield own, part, f"{path}[{index}]"

    def add(self, name: str) -> None:
        if len(self.nodes) == MAX_NODES:
            raise InputError(f"found over {MAX_NODES} nodes, expected at most as many", where=self.where)
        self.nodes.setdefault(name, len(self.nodes))

    def describe(self, members: list[str], part: _Part, domain: Any) -> None:
        if isinstance(part.type, str):
            self.types.add(part.type)
        for node in members if domain else ():
            if node not in (domains := self.domains.setdefault(str(domain), [])):
                domains.append(node)

    def attach(self, node: str, switch: str, path: str) -> None:
        if self.under.setdefault(node, switch) != switch:
            other = f"only {short(self.under[node])}, named before"
            raise self.fault(path, f"node {short(node)} under switch {short(switch)}", other)

    def adopt(self, parent: str, children: Names, path: str) -> None:
        for name in self.names(children, path):
            if self.parents.setdefault(name, parent) != parent:
                other = f"only {short(self.parents[name])}, named before"
                raise self.fault(path, f"switch {short(name)} under {short(parent)}", other)
            if name in self.above(parent):
                raise self.fault(path, f"switch {short(name)} under itself", "a tree of switches")

    def above(self, switch: str) -> list[str]:
        """The switch and those it hangs under."""
        path = [switch]
        while path[-1] in self.parents and len(path) <= len(self.parents):
            path.append(self.parents[path[-1]])
        return path

    def members(self, names: Names, path: str, listed: bool) -> list[str]:
        """The nodes of a list; new ones are added, unless all nodes were `listed` before."""
        found = self.names(names, path)
        for name in found:
            if listed and name not in self.nodes:
                raise self.fault(path, f"unknown node {short(name)}", "one that nodes or a block lists")
            self.add(name)
        return found

    def names(self, names: Names, path: str) -> list[str]:
        """Names of a list, or of a text with commas between; `n[01-03,7]` is four of them."""
        texts = [names] if isinstance(names, str) else map(str, names or ())
        parts = (part.strip() for text in texts for part in re.split(r",(?![^\[]*\])", text))
        return [name for part in parts for name in self.spelled_out(part, path)]

    def spelled_out(self, text: str, path: str) -> list[str]:
        if text and "[" not in text and "]" not in text:
            return [text]
        fault = self.fault(path, f"{short(text)} (text)", "a name, or several as in n[01-16]")
        match = _RANGE.fullmatch(text)
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
