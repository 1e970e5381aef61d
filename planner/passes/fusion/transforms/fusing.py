"""Several stages as one kernel (CoCoNet, section 3.3; the conditions of each policy are in docs/fusion.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast, get_args

from treadle.planner.documents.nearest import meant
from treadle.planner.passes.fusion.dims import ONE, shape_text
from treadle.planner.passes.fusion.layouts import Replicated, Sliced, layout_text
from treadle.planner.passes.fusion.program import Kernel, Node, Policy, Program, TensorType
from treadle.planner.passes.fusion.refusal import TypeRefusal
from treadle.planner.passes.fusion.rules.elementwise import aligned, broadcast
from treadle.planner.passes.fusion.rules.operands import scalar
from treadle.planner.passes.fusion.stages import behind, consumers, home_of, kind
from treadle.planner.passes.fusion.transforms.editing import Names, Rewrite, distinct, launched, refuse, settled
from treadle.planner.passes.fusion.transforms.overwriting import Overwriting

ENDS: dict[Policy, tuple[str | None, str | None]] = {
    "ComputationFuse": (None, None),
    "AllReduceFuse": ("ReduceScatter", "AllGather"),
    "ReduceScatterFuse": ("ReduceScatter", None),
    "AllGatherFuse": (None, "AllGather"),
    "ReduceFuse": ("Reduce", None),
    "BroadcastFuse": (None, "Broadcast"),
    "SendFuse": (None, "Send"),
}
"""The operation that a kernel of a policy begins with and the one that it ends with, besides computation."""


def fuse(program: Program, members: Sequence[str], policy: str, name: str | None = None) -> Rewrite:
    """The stages `members` as one kernel, with the anonymous parts of their expressions. Makes its name.

    Raises InvalidTransform: policy, repeated, single, name, cycle, groups, streams, sources, sinks, no-computation,
    disconnected, before-source, after-sink, maps, space, phases, anti-dependence, live-out, gathers.
    """
    if policy not in get_args(Policy):
        refuse("fuse", "policy", policy, f"found policy {policy!r}, {meant(policy, get_args(Policy))}")
    distinct("fuse", members)
    stages = [launched(program, "fuse", member) for member in members]
    if len(stages) < 2:
        refuse("fuse", "single", ", ".join(members), f"found {len(stages)} stages, expected at least two")
    stem = "fused" if policy == "ComputationFuse" else f"fused_{policy.removesuffix('Fuse').lower()}"
    kernel = Kernel(Names(program).given("fuse", name, stem), cast(Policy, policy), tuple(members))
    whole = settled("fuse", replace(program, kernels=(*program.kernels, kernel)))
    homes = home_of(whole)
    _Fusion(whole, kernel, tuple(node for node in whole.nodes if homes.get(node.name) == kernel.name)).check()
    return Rewrite(whole, (kernel.name,))


@dataclass(frozen=True)
class _Fusion:
    """A kernel to be, and the operations that run in it."""

    program: Program
    kernel: Kernel
    nodes: tuple[Node, ...]

    def check(self) -> None:
        self.streams()
        self.groups()
        self.space()
        self.phases()
        self.live_outs()

    @cached_property
    def inside(self) -> set[str]:
        return {node.name for node in self.nodes}

    @cached_property
    def computing(self) -> list[Node]:
        return [node for node in self.nodes if kind(node) in ("pointwise", "reduction")]

    @cached_property
    def moving(self) -> list[Node]:
        return [node for node in self.nodes if kind(node) not in ("pointwise", "reduction")]

    @cached_property
    def consumers(self) -> dict[str, list[Node]]:
        return consumers(self.program)

    def sources(self, node: Node) -> list[str]:
        return [behind(self.program, name) for name in node.reads]

    def live(self, node: Node) -> bool:
        outputs = {behind(self.program, name) for name in self.program.outputs}
        readers = self.consumers[node.name]
        return not readers or node.name in outputs or any(reader.name not in self.inside for reader in readers)

    def streams(self) -> None:
        """One collective in and one out at most, with computation between them or on the side of the whole values."""
        if self.kernel.policy == "AllToAllFuse":
            self.exchange()
            return
        first, last = ENDS[self.kernel.policy]
        for node in self.moving:
            if node.op not in (first, last):
                code = "not-pointwise" if kind(node) == "layer" else "streams"
                refuse("fuse", code, node.name, f"found {node.name}, a {node.op}, in a kernel of {self.kernel.policy}")
        source = self.one("sources", first) if first else None
        sink = self.one("sinks", last) if last else None
        self.computes()
        if source is not None:
            for name in self.sources(source):
                if name in self.inside:
                    message = f"found {name}, which {source.name} reads, expected it made before the kernel"
                    refuse("fuse", "before-source", name, message)
            if not self.inside & {reader.name for reader in self.consumers[source.name]} - {sink.name if sink else ""}:
                message = f"found no computation on what {source.name} makes"
                refuse("fuse", "disconnected", source.name, message)
        if sink is not None:
            self.ends(sink)
            if not self.inside.issuperset(self.sources(sink)) or (source and not self.reaches(source, sink)):
                refuse("fuse", "disconnected", sink.name, f"found {sink.name} of a value made elsewhere")
        if source is not None and sink is not None:
            made, sent = source.type.layout, self.operand(sink).layout
            if made != sent:
                message = f"found {source.name} by {layout_text(made)} and {sink.name} by {layout_text(sent)}"
                refuse("fuse", "maps", f"{source.name}, {sink.name}", f"{message}, expected the same slices")

    def one(self, code: str, op: str) -> Node:
        found = [node for node in self.nodes if node.op == op]
        if len(found) != 1:
            witness = ", ".join(node.name for node in found) or op
            message = f"found {len(found)} operations {op}, expected exactly one for {self.kernel.policy}"
            refuse("fuse", code, witness, message)
        return found[0]

    def computes(self) -> None:
        if not self.computing:
            message = f"found no computation in a kernel of {self.kernel.policy}"
            refuse("fuse", "no-computation", self.kernel.members[0], message)

    def exchange(self) -> None:
        """An AllToAll of what is computed before it, from rows put in order as they are read from outside."""
        exchange = self.one("sources", "AllToAll")
        for node in self.moving:
            if node.op not in ("AllToAll", "Permute"):
                refuse("fuse", "streams", node.name, f"found {node.name}, a {node.op}, in a kernel of AllToAllFuse")
            if node.op == "Permute" and (found := self.inside.intersection(self.sources(node))):
                message = f"found {node.name}, which needs rows of {min(found)} that other blocks make"
                refuse("fuse", "phases", node.name, message)
        self.ends(exchange)
        if not self.inside.intersection(self.sources(exchange)):
            refuse("fuse", "disconnected", exchange.name, f"found {exchange.name} of a value made elsewhere")

    def ends(self, sink: Node) -> None:
        """Refuse what reads the last collective of the kernel."""
        for reader in self.consumers[sink.name]:
            if reader.name in self.inside:
                message = f"found {reader.name}, which reads {sink.name}, expected it outside the kernel"
                refuse("fuse", "after-sink", reader.name, message)

    def reaches(self, source: Node, sink: Node) -> bool:
        reached = {source.name}
        for node in self.nodes:
            if reached.intersection(self.sources(node)):
                reached.add(node.name)
        return sink.name in reached

    def operand(self, node: Node) -> TensorType:
        return self.program.by_name[node.reads[0]].type

    def over(self, node: Node) -> TensorType:
        """The elements that an operation runs over in the kernel."""
        whole = node.op in ("AllGather", "Broadcast", "Send") or kind(node) == "reduction"
        return self.operand(node) if whole else node.type

    def groups(self) -> None:
        found = {str(of.group): node.name for node in self.nodes if not scalar(of := self.over(node))}
        if len(found) > 1:
            message = f"found operations on {' and '.join(found)}, expected one group"
            refuse("fuse", "groups", ", ".join(found.values()), message)

    def space(self) -> None:
        """One iteration space: the same elements in the same places, but for operands that are broadcast."""
        spaces = {node.name: of for node in self.nodes if not scalar(of := self.over(node))}
        if not spaces:
            return
        try:
            shape = broadcast("fuse", [of.shape for of in spaces.values()])
        except TypeRefusal as error:
            refuse("fuse", "space", ", ".join(spaces), str(error))
        full = [name for name, of in spaces.items() if (ONE,) * (len(shape) - len(of.shape)) + of.shape == shape]
        if not full:
            refuse("fuse", "space", ", ".join(spaces), f"found no operation over all of {shape_text(shape)}")
        layout = aligned(spaces[full[0]], shape)
        for name, of in spaces.items():
            if aligned(of, shape) != layout and (name in full or not isinstance(of.layout, Replicated)):
                found = f"{full[0]} {layout_text(spaces[full[0]].layout)} and {name} {layout_text(of.layout)}"
                refuse("fuse", "space", f"{full[0]}, {name}", f"found {found}, expected the same elements on each rank")
        for node in self.nodes:
            if node.name not in full and kind(node) == "pointwise" and (self.live(node) or node.op == "Update"):
                self.over_results(node, full[0])

    def over_results(self, node: Node, widest: str) -> None:
        """Refuse a value that is written to memory unless it has the elements of what the kernel reduces to."""
        beside = [each for each in self.nodes if kind(each) == "reduction" and each.type.shape == node.type.shape]
        if not beside:
            message = f"found {node.name}, which is written to memory, over fewer elements than {widest}"
            refuse("fuse", "space", f"{widest}, {node.name}", message)
        for each in beside:
            made, layout = each.type.layout, node.type.layout
            if made != layout and isinstance(made, Sliced):
                found = f"{each.name} {layout_text(made)} and {node.name} {layout_text(layout)}"
                message = f"found {found}, which is written to memory, expected the same elements on each rank"
                refuse("fuse", "space", f"{each.name}, {node.name}", message)

    def phases(self) -> None:
        """Reductions cut a kernel into phases; what is overwritten must not be read by others, or later."""
        for node in self.nodes:
            if kind(node) == "reduction" and self.kernel.policy == "SendFuse":
                message = f"found {node.name}, which needs all elements, in a kernel that sends them one by one"
                refuse("fuse", "phases", node.name, message)
        for update, reader, why in Overwriting(self.program, self.nodes, self.live).races():
            message = f"found {reader.name}, which reads {update.inputs[0]} {why}"
            refuse("fuse", "anti-dependence", f"{update.name} -> {reader.name}", message)

    def live_outs(self) -> None:
        """What leaves the kernel besides its collective."""
        if self.kernel.policy == "SendFuse":
            for node in self.computing:
                if self.live(node) or node.op == "Update":
                    refuse("fuse", "live-out", node.name, f"found {node.name} needed besides the Send")
        if self.kernel.policy == "AllReduceFuse":
            sink = self.one("sinks", "AllGather")
            for node in self.nodes:
                if node is not sink:
                    self.stays_sliced(node, sink)

    def stays_sliced(self, node: Node, sink: Node) -> None:
        """Refuse a value that leaves the kernel other than by its gather or as a slice in memory."""
        for reader in self.consumers[node.name]:
            if reader.op == "AllGather" and reader is not sink:
                message = f"found {reader.name}, a second gather besides {sink.name}, expected one"
                refuse("fuse", "gathers", reader.name, message)
        if node.op == "Update" and node.name not in sink.reads:
            target = str(node.inputs[0])
            if not isinstance(self.program.by_name[target].type.layout, Sliced):
                refuse(
                    "fuse",
                    "live-out",
                    target,
                    f"found {node.name}, a slice of {target}, which is not Sliced",
                )
        elif self.live(node) and not isinstance(node.type.layout, Sliced):
            refuse("fuse", "live-out", node.name, f"found {node.name} needed outside the kernel, expected only slices")
