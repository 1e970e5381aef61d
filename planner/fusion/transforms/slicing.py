"""State that each rank keeps a slice of, and gathers that it makes superfluous (CoCoNet, section 3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planner.fusion.infer import layout_text, scalar, typed
from planner.fusion.layouts import FLAT, Block, Replicated, Sliced
from planner.fusion.program import Attribute, Input, Node, Operand, Program
from planner.fusion.slice_maps import map_of
from planner.fusion.transforms.editing import (
    Names,
    Rewrite,
    distinct,
    launched,
    materialises,
    redirected,
    refuse,
    settled,
    single,
)
from planner.fusion.transforms.reorder import reorder


def as_slice(program: Program, tensor: str) -> Rewrite:
    """The Replicated input `tensor` as a Sliced one, by the slices in which it is read and updated.

    It changes what the caller passes: a slice by that map, instead of the whole. Makes no names. Raises
    InvalidTransform: not-an-input, not-replicated, output, gather-read, read-whole, update-whole, slices-differ,
    no-slice.
    """
    of = program.by_name.get(tensor)
    if not isinstance(of, Input):
        refuse("as_slice", "not-an-input", tensor, f"found no input {tensor!r} in {program.name}")
    if not isinstance(of.type.layout, Replicated) or scalar(of.type):
        found = "a scalar" if scalar(of.type) else layout_text(of.type.layout)
        refuse("as_slice", "not-replicated", tensor, f"found {tensor}, which is {found}, expected it Replicated")
    update = program.updates.get(tensor)
    gathers = [node for node in program.readers[update.name] if node.op == "AllGather"] if update else []
    for name in (tensor, *([update.name] if update else []), *(node.name for node in gathers)):
        if name in program.outputs:
            refuse(
                "as_slice", "output", name, f"found {name} among the outputs, where the caller expects all of {tensor}"
            )
    slices: list[Sliced] = []
    for reader in program.readers[tensor]:
        if reader.op != "Slice" or not isinstance(reader.type.layout, Sliced):
            refuse("as_slice", "read-whole", reader.name, f"found {reader.name}, which reads all of {tensor}")
        slices.append(reader.type.layout)
    if update:
        if not isinstance(update.type.layout, Sliced):
            refuse("as_slice", "update-whole", update.name, f"found {update.name}, which writes all of {tensor}")
        slices.append(update.type.layout)
    for gather in gathers:
        for reader in program.readers[gather.name]:
            refuse("as_slice", "gather-read", reader.name, f"found {reader.name}, which reads all of the new {tensor}")
    if len(set(slices)) > 1:
        found = " and ".join(sorted({layout_text(layout) for layout in slices}))
        refuse("as_slice", "slices-differ", found, f"found {tensor} sliced in several ways ({found}), expected one")
    if not slices:
        refuse("as_slice", "no-slice", tensor, f"found {tensor} neither read nor written, expected slices of it")
    views = {reader.name: tensor for reader in program.readers[tensor]}
    sliced = replace(of, type=replace(of.type, layout=slices[0]))
    whole = replace(
        program,
        inputs=tuple(sliced if value.name == tensor else value for value in program.inputs),
        nodes=redirected((node for node in program.nodes if node.name not in views), views),
    )
    return Rewrite(settled("as_slice", whole))


def dead(program: Program, gather: str) -> Rewrite:
    """Without the AllGather `gather`, which nobody needs. Makes no names.

    Raises InvalidTransform: not-a-gather, read, output, materialises.
    """
    node = single(program, "dead", gather)
    if node.op != "AllGather":
        refuse("dead", "not-a-gather", gather, f"found {gather}, a {node.op}, expected an AllGather")
    for reader in program.readers[gather]:
        refuse("dead", "read", reader.name, f"found {reader.name}, which reads {gather}, expected no reader")
    if gather in program.outputs:
        refuse("dead", "output", gather, f"found {gather} among the outputs, expected no use of it")
    target = materialises(program, node)
    if target is not None:
        refuse(
            "dead", "materialises", target, f"found {gather}, which makes {target} whole again, expected as_slice first"
        )
    return Rewrite(settled("dead", replace(program, nodes=tuple(x for x in program.nodes if x.name != gather))))


def slice_intro(program: Program, value: str, region: Sequence[str], dim: int = FLAT, map: str = "block") -> Rewrite:
    """The stages `region`, which read the Replicated `value`, on slices of it: AllGather of its Slice, then reorder.

    Makes what reorder makes. Raises InvalidTransform as reorder, and: not-replicated, dim, map.
    """
    of = program.by_name.get(value)
    if of is None or not isinstance(of.type.layout, Replicated) or scalar(of.type):
        refuse("slice_intro", "not-replicated", value, f"found {value!r}, expected a Replicated tensor")
    if not FLAT <= dim < len(of.type.shape):
        shown = len(of.type.shape)
        refuse("slice_intro", "dim", str(dim), f"found dim={dim} of {shown} dimensions, expected one of them")
    if dim != FLAT and not isinstance(map_of(map), Block):
        refuse("slice_intro", "map", map, f"found a ring's tiles along dimension {dim}, expected dim=FLAT")
    distinct("slice_intro", region)
    held = {node.name for name in region for node in launched(program, "slice_intro", name).nodes}
    names, types = Names(program), {known: x.type for known, x in program.by_name.items()}
    attributes: dict[str, Attribute] = {"dim": dim, "map": map}
    view = typed(names.fresh(value + "_s"), "Slice", (value,), attributes, types)
    there = next((x for x in program.readers[value] if x.op == "Slice" and x.attributes == view.attributes), None)
    part = there or view
    gather = typed(names.fresh("ag_" + value), "AllGather", (part.name,), {}, {part.name: part.type})
    nodes: list[Node] = []
    for node in program.nodes:
        reading = node
        if node.name in held and value in node.reads:
            if gather not in nodes:
                nodes += [gather] if there else [view, gather]
            target: tuple[Operand, ...] = node.inputs[:1] if node.op == "Update" else ()
            (read,) = redirected([node], {value: gather.name})
            reading = replace(read, inputs=(*target, *read.inputs[len(target) :]))
        nodes.append(reading)
    if gather not in nodes:
        shown = ", ".join(region) or "nothing"
        refuse("slice_intro", "unread", value, f"found no operation of {shown} that reads {value}")
    whole = settled("slice_intro", replace(program, nodes=tuple(nodes)))
    return reorder(whole, gather.name, region, transform="slice_intro")
