"""Computation moved before the collective whose result it reads (CoCoNet, section 3.2; conditions in docs/fusion.md).

AllGather: the region runs on slices, every other operand of full extent is sliced, and what is needed outside is
gathered. Broadcast: it runs on the root. AllToAll: elementwise operations run before the exchange. Only these three
commute with computation, since they change where values are and not what they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from treadle.planner.passes.fusion.dims import Shape
from treadle.planner.passes.fusion.infer import typed
from treadle.planner.passes.fusion.layouts import FLAT, At, Layout, Replicated, Sliced, layout_text
from treadle.planner.passes.fusion.program import Attribute, Kernel, Node, Program
from treadle.planner.passes.fusion.refusal import InvalidTransform, TypeRefusal
from treadle.planner.passes.fusion.rules.elementwise import aligned, full_along
from treadle.planner.passes.fusion.rules.operands import scalar
from treadle.planner.passes.fusion.slice_maps import map_text
from treadle.planner.passes.fusion.stages import Stage, behind, home_of, kind
from treadle.planner.passes.fusion.transforms.editing import (
    Names,
    Rewrite,
    distinct,
    launched,
    materialises,
    path_between,
    redirected,
    refuse,
    settled,
    single,
)

SUFFIX = {"AllGather": "_s", "Broadcast": "_at", "AllToAll": "_before"}
"""Suffixes of the operations that now run before the collective."""
STEM = {"AllGather": "ag_", "Broadcast": "bc_", "AllToAll": "a2a_"}


def reorder(program: Program, gather: str, region: Sequence[str]) -> Rewrite:
    """The stages `region` before the collective `gather` that they read, and a collective for each value needed after.

    Makes the moved stages, in the order given, and the collectives by the old names of the values they complete. A
    kernel in the region stays one. `gather` stays where another operation needs it.

    Raises InvalidTransform: not-a-gather, unread, not-convex, not-sliceable, not-loadable, not-unary, operand-layout,
    untouched, anti-dependence.
    """
    node = single(program, "reorder", gather)
    if node.op not in SUFFIX:
        refuse("reorder", "not-a-gather", gather, f"found {gather}, a {node.op}, expected one of {', '.join(SUFFIX)}")
    distinct("reorder", region)
    stages = [launched(program, "reorder", name) for name in region]
    held = {member.name for stage in stages for member in stage.nodes}
    if not any(gather in member.reads for stage in stages for member in stage.nodes):
        refuse(
            "reorder", "unread", gather, f"found no operation of {', '.join(region) or 'nothing'} that reads {gather}"
        )
    waits = {
        member.name: {behind(program, name) for name in member.reads}
        for member in program.nodes
        if kind(member) != "view"
    }
    path = path_between(waits, held, [gather], home_of(program))
    if path:
        refuse("reorder", "not-convex", path, f"found {path} leaving the region and coming back, expected it inside")
    return _Move(program, node, held).finish(stages)


@dataclass
class _Move:
    """The region while it is moved. `moved`: what is there before the collective, by the names of what was after it."""

    program: Program
    gather: Node
    held: set[str]
    moved: dict[str, str] = field(default_factory=dict)
    replaced: dict[str, list[Node]] = field(default_factory=dict)
    """What takes a node's place, views of its operands first, by its name."""
    views: dict[tuple[str, int], str] = field(default_factory=dict)
    """Views that were made, by the operand and the dimension of it."""
    lifted: set[str] = field(default_factory=set)
    """Gathers whose operands are read directly now, instead of a view of them."""

    def __post_init__(self) -> None:
        self.names = Names(self.program)
        self.types = {name: value.type for name, value in self.program.by_name.items()}
        self.code = {"AllGather": "not-sliceable", "Broadcast": "not-loadable"}.get(self.gather.op, "not-unary")
        self.moved[self.gather.name] = str(self.gather.inputs[0])
        for node in self.program.nodes:
            if node.name in self.held:
                self.replaced[node.name] = self.clones(node)

    def finish(self, stages: Sequence[Stage]) -> Rewrite:
        for stage in stages:
            if all(self.replaced[node.name] == [node] for node in stage.nodes):
                message = f"found {stage.name}, which would stay as it is, expected it left out"
                refuse("reorder", "untouched", stage.name, message)
        nodes, gathers = self.rebuilt()
        outputs = tuple(gathers.get(name, name) for name in self.program.outputs)
        kernels, called = self.kernels(stages)
        whole = self.pruned(replace(self.program, nodes=nodes, outputs=outputs, kernels=kernels))
        made = tuple(called.get(stage.name, self.moved.get(stage.name, stage.name)) for stage in stages)
        return Rewrite(settled("reorder", whole), made, gathers)

    def clones(self, node: Node) -> list[Node]:
        """The node as it is before the collective, behind views of operands that have to be; itself if unconcerned."""
        space = self.space(node)
        if space is None:
            return [node]
        self.check(node, space[1])
        views: list[Node] = []
        inputs = [
            x if not isinstance(x, str) or (node.op == "Update" and not at) else self.operand(node, x, space, views)
            for at, x in enumerate(node.inputs)
        ]
        name = self.names.fresh(node.name.rstrip("_") + SUFFIX[self.gather.op])
        try:
            clone = typed(name, node.op, inputs, dict(node.attributes), self.types)
        except TypeRefusal as error:
            refuse("reorder", self.code, node.name, f"{node.name} cannot run before {self.gather.name} ({error})")
        if isinstance(clone.type.layout, Replicated):
            self.names.taken.discard(name)
            clone = replace(clone, name=node.name)
        else:
            self.moved[node.name] = name
        self.types[clone.name] = clone.type
        return [*views, clone]

    def space(self, node: Node) -> tuple[Shape, Layout] | None:
        """The elements that the node runs over, and where they are before the collective; None if it stays as it is."""
        shape = self.types[node.reads[0]].shape if kind(node) == "reduction" else node.type.shape
        anchor = next((self.moved[name] for name in node.reads if name in self.moved), None)
        if anchor is not None:
            return shape, aligned(self.types[anchor], shape)
        if kind(node) not in ("pointwise", "reduction"):
            message = f"found {node.name}, which does not read {self.gather.name}, expected it left out"
            refuse("reorder", self.code, node.name, message)
        if not isinstance(node.type.layout, Replicated) or all(scalar(self.types[name]) for name in node.reads):
            return None
        source = self.types[self.moved[self.gather.name]]
        layout = aligned(source, shape)
        if isinstance(layout, Sliced):
            at = len(source.shape) - len(shape) + layout.dim
            same = (
                shape == source.shape
                if layout.dim == FLAT
                else layout.dim >= 0 and shape[layout.dim] == source.shape[at]
            )
            return (shape, layout) if same else None
        return shape, layout

    def check(self, node: Node, layout: Layout) -> None:
        """Refuse what does not commute with the collective, whatever the types of its operands."""
        why = None
        if self.gather.op == "AllGather":
            assert isinstance(layout, Sliced)
            why = _unsliceable(node, layout, tuple(self.moved))
        elif kind(node) != "pointwise" or node.op == "Update":
            why = "which is no pointwise operation without effects"
        elif self.gather.op == "AllToAll" and node.op == "Dropout":
            why = "whose random numbers depend on the place of an element"
        if why:
            refuse("reorder", self.code, node.name, f"found {node.name}, {why}")

    def operand(self, node: Node, name: str, space: tuple[Shape, Layout], views: list[Node]) -> str:
        """What the moved node reads instead of `name`; a view of it is put in `views` where one is missing."""
        if name in self.moved:
            return self.moved[name]
        of, (shape, layout) = self.types[name], space
        if scalar(of):
            return name
        if isinstance(layout, Sliced) and isinstance(of.layout, Replicated):
            if node.op in ("MatMul", "Conv2d") or not full_along(of.shape, shape, layout):
                return name
            at = FLAT if layout.dim == FLAT else layout.dim - len(shape) + len(of.shape)
            return self.view(name, "Slice", {"dim": at, "map": map_text(layout.map)}, views)
        if isinstance(layout, At) and isinstance(of.layout, Replicated):
            return self.view(name, "Load", {"root": layout.rank}, views)
        if isinstance(of.layout, Sliced | At) and aligned(of, shape) == layout:
            return name
        if self.gather.op == "AllToAll":
            message = f"found {node.name} of {name} besides {self.gather.name}, expected an operation of one tensor"
            refuse("reorder", "not-unary", node.name, message)
        message = f"found {name}, which is {layout_text(of.layout)}, next to {layout_text(layout)}"
        message += ", expected it Replicated or with the same slices"
        raise InvalidTransform("reorder", "operand-layout", name, message)

    def view(self, name: str, op: str, attributes: dict[str, Attribute], views: list[Node]) -> str:
        """The part of a whole value that a rank holds; that of a gathered one is what it was gathered from."""
        of = self.types[name]
        made = typed("", op, (name,), attributes, {name: of})
        value = self.program.by_name[name]
        if isinstance(value, Node) and value.op in ("AllGather", "Broadcast"):
            source = str(value.inputs[0])
            if self.types[source].layout == made.type.layout and not self.decided(name):
                self.lifted.add(name)
                return source
        known = self.program.readers.get(name, ())
        found = next((x.name for x in known if x.op == op and x.attributes == made.attributes), None)
        key = (name, cast(int, attributes.get("dim", 0)))
        if found is None and key not in self.views:
            self.views[key] = self.names.fresh(name.rstrip("_") + "_part")
            views.append(replace(made, name=self.views[key]))
            self.types[self.views[key]] = made.type
        return found or self.views[key]

    def decided(self, name: str) -> bool:
        """Whether a kernel or overlap holds it."""
        members = [x.members for x in self.program.kernels] + [x.members for x in self.program.overlaps]
        return any(name in held for held in members)

    def rebuilt(self) -> tuple[tuple[Node, ...], dict[str, str]]:
        """All nodes, with a collective behind each moved one that is needed whole, and those by the old names."""
        stem, gathers = STEM[self.gather.op], {}
        nodes: list[Node] = []
        for node in self.program.nodes:
            nodes += self.replaced.get(node.name, [node])
            if node.name in self.held and node.name in self.moved and self.needed(node):
                name = self.names.fresh(stem + node.name.strip("_"))
                gathers[node.name] = name
                attributes = dict(self.gather.attributes)
                nodes.append(typed(name, self.gather.op, (self.moved[node.name],), attributes, self.types))
        inside = {node.name for name in self.held for node in self.replaced[name]}
        return tuple(x if x.name in inside else redirected([x], gathers)[0] for x in nodes), gathers

    def needed(self, node: Node) -> bool:
        """Whether the whole value is read or handed out, or is what an input has to be afterwards."""
        if node.name in self.program.outputs or any(x.name not in self.held for x in self.program.readers[node.name]):
            return True
        return node.op == "Update" and isinstance(self.types[str(node.inputs[0])].layout, Replicated)

    def kernels(self, stages: Sequence[Stage]) -> tuple[tuple[Kernel, ...], dict[str, str]]:
        """All kernels with those of the region renamed, and the new names of the latter."""
        waiting, called = list(stages), dict[str, str]()
        while waiting:
            stage = waiting.pop()
            waiting += stage.inside
            if stage.kernel:
                called[stage.name] = self.names.fresh(stage.name.rstrip("_") + SUFFIX[self.gather.op])
        new = {**{name: self.moved[name] for name in self.held if name in self.moved}, **called}
        renamed = (
            replace(x, name=called[x.name], members=tuple(new.get(name, name) for name in x.members))
            if x.name in called
            else x
            for x in self.program.kernels
        )
        return tuple(renamed), called

    def pruned(self, program: Program) -> Program:
        """Without views of what was gathered just now, and without gathers that no op needs any more."""
        identities = {
            node.name: str(source.inputs[0])
            for node in program.nodes
            if node.op in ("Slice", "Load") and isinstance(source := program.by_name[str(node.inputs[0])], Node)
            if source.name not in self.program.by_name and self.types[str(source.inputs[0])].layout == node.type.layout
        }
        nodes = redirected((node for node in program.nodes if node.name not in identities), identities)
        program = replace(program, nodes=nodes)
        made = [node.name for node in nodes if node.op == self.gather.op and node.name not in self.program.by_name]
        idle = {
            name
            for name in (self.gather.name, *self.lifted, *made)
            if not program.readers[name] and name not in program.outputs
            if not materialises(program, cast(Node, program.by_name[name]))
        }
        return replace(program, nodes=tuple(node for node in program.nodes if node.name not in idle))


def _unsliceable(node: Node, layout: Sliced, moved: tuple[str, ...]) -> str | None:
    """Why an operation does not run on slices by `layout` of the elements it runs over, None if it does."""
    if node.op in ("MatMul", "Conv2d"):
        last = len(node.type.shape) - 1 if node.op == "MatMul" else 1
        if node.inputs[0] not in moved or node.inputs[1] in moved or not 0 <= layout.dim < last:
            return f"which runs on slices of its left operand's rows alone, not on {layout_text(layout)}"
    elif kind(node) == "reduction":
        at = node.attribute("dim")
        if at is not None and layout.dim in (FLAT, at):
            return f"which reduces dimension {at}, not whole in {layout_text(layout)}"
    elif kind(node) != "pointwise" and node.op != "Send":
        return f"a {node.op}, which needs values of other slices"
    return None
