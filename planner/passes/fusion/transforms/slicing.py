"""State of which each rank keeps a slice, and gathers that become superfluous (CoCoNet, section 3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from treadle.planner.passes.fusion.infer import typed
from treadle.planner.passes.fusion.layouts import FLAT, Block, Replicated, Sliced, layout_text
from treadle.planner.passes.fusion.program import Input, Node, Program
from treadle.planner.passes.fusion.rules.operands import scalar
from treadle.planner.passes.fusion.slice_maps import map_of
from treadle.planner.passes.fusion.stages import kind
from treadle.planner.passes.fusion.transforms.editing import (
    Names,
    Rewrite,
    materialises,
    redirected,
    refuse,
    settled,
    single,
)


def as_slice(program: Program, t: str) -> Rewrite:
    """The Replicated input `t` as a Sliced one, by the slices in which it is read and updated.

    It changes what the caller passes: a slice by that map, instead of the whole. Makes no names. Raises
    InvalidTransform: not-an-input, not-replicated, output, gather-read, read-whole, update-whole, slices-differ,
    no-slice.
    """
    of = program.by_name.get(t)
    if not isinstance(of, Input):
        refuse("as_slice", "not-an-input", t, f"found no input {t!r} in {program.name}")
    if not isinstance(of.type.layout, Replicated) or scalar(of.type):
        found = "a scalar" if scalar(of.type) else layout_text(of.type.layout)
        refuse("as_slice", "not-replicated", t, f"found {t}, which is {found}, expected it Replicated")
    update = program.updates.get(t)
    gathers = [node for node in program.readers[update.name] if node.op == "AllGather"] if update else []
    for name in (t, *([update.name] if update else []), *(node.name for node in gathers)):
        if name in program.outputs and isinstance(program.by_name[name].type.layout, Replicated):
            refuse("as_slice", "output", name, f"found {name} among the outputs, where the caller expects all of {t}")
    slices: list[Sliced] = []
    for reader in program.readers[t]:
        if reader.op != "Slice" or not isinstance(reader.type.layout, Sliced):
            refuse("as_slice", "read-whole", reader.name, f"found {reader.name}, which reads all of {t}")
        slices.append(reader.type.layout)
    if update:
        if not isinstance(update.type.layout, Sliced):
            refuse("as_slice", "update-whole", update.name, f"found {update.name}, which writes all of {t}")
        slices.append(update.type.layout)
    for gather in gathers:
        for reader in program.readers[gather.name]:
            refuse("as_slice", "gather-read", reader.name, f"found {reader.name}, which reads all of the new {t}")
    if len(set(slices)) > 1:
        found = " and ".join(sorted({layout_text(layout) for layout in slices}))
        refuse("as_slice", "slices-differ", found, f"found {t} sliced differently ({found}), expected one")
    if not slices:
        refuse("as_slice", "no-slice", t, f"found {t} neither read nor written, expected slices of it")
    views = {reader.name: t for reader in program.readers[t]}
    sliced = replace(of, type=replace(of.type, layout=slices[0]))
    whole = replace(
        program,
        inputs=tuple(sliced if value.name == t else value for value in program.inputs),
        nodes=redirected((node for node in program.nodes if node.name not in views), views),
        outputs=tuple(views.get(name, name) for name in program.outputs),
    )
    return Rewrite(settled("as_slice", whole))


def dead(program: Program, ag: str) -> Rewrite:
    """The program without the AllGather `ag`, which no op needs. Makes no names.

    Raises InvalidTransform: not-a-gather, read, output, materialises.
    """
    node = single(program, "dead", ag)
    if node.op != "AllGather":
        refuse("dead", "not-a-gather", ag, f"found {ag}, a {node.op}, expected an AllGather")
    for reader in program.readers[ag]:
        refuse("dead", "read", reader.name, f"found {reader.name}, which reads {ag}, expected no reader")
    if ag in program.outputs:
        refuse("dead", "output", ag, f"found {ag} among the outputs, expected no use of it")
    target = materialises(program, node)
    if target is not None:
        refuse("dead", "materialises", target, f"found {ag}, which makes {target} whole again, expected as_slice first")
    return Rewrite(settled("dead", replace(program, nodes=tuple(x for x in program.nodes if x.name != ag))))


def slice_intro(
    program: Program, x: str, dim: int = FLAT, map: str = "block", readers: Sequence[str] | None = None
) -> Rewrite:
    """The Replicated value `x` as the AllGather of its Slice for all who read it, or for the operations `readers`, of
    which products keep a right operand whole; of use only before a reorder.

    Makes the names of the two. Raises InvalidTransform: not-replicated, dim, map, unread.
    """
    of = program.by_name.get(x)
    if of is None or not isinstance(of.type.layout, Replicated) or scalar(of.type):
        refuse("slice_intro", "not-replicated", x, f"found {x!r}, expected a Replicated tensor")
    if not FLAT <= dim < len(of.type.shape):
        shown = len(of.type.shape)
        refuse("slice_intro", "dim", str(dim), f"found dim={dim} of {shown} dimensions, expected one of them")
    if dim != FLAT and not isinstance(map_of(map), Block):
        refuse("slice_intro", "map", map, f"found a ring's tiles along dimension {dim}, expected dim=FLAT")
    whole = {reader.name for reader in program.readers[x] if kind(reader) != "view"}
    if unread := sorted(set(readers or ()) - whole):
        refuse("slice_intro", "unread", unread[0], f"found {unread[0]}, which does not read {x} whole")
    chosen = whole if readers is None else set(readers)
    if not chosen:
        refuse("slice_intro", "unread", x, f"found {x}, which no operation reads whole")
    names = Names(program)
    part = typed(names.fresh(x.rstrip("_") + "_part"), "Slice", (x,), {"dim": dim, "map": map}, {x: of.type})
    gather = typed(names.fresh("ag_" + x.strip("_")), "AllGather", (part.name,), {}, {part.name: part.type})
    at = next(number for number, node in enumerate(program.nodes) if node.name in chosen)
    nodes = [
        _reading(node, x, gather.name, left=readers is not None) if node.name in chosen else node
        for node in program.nodes
    ]
    made = replace(program, nodes=(*nodes[:at], part, gather, *nodes[at:]))
    return Rewrite(settled("slice_intro", made), (part.name, gather.name))


def _reading(node: Node, old: str, new: str, *, left: bool) -> Node:
    """The node with `new` for `old`, but for the target of an Update; of products on the `left` alone."""
    (read,) = redirected([node], {old: new})
    kept = 1 if node.op == "Update" else 0
    changed = 1 if left and kind(node) == "layer" else len(node.inputs)
    return replace(read, inputs=(*node.inputs[:kept], *read.inputs[kept:changed], *node.inputs[changed:]))
