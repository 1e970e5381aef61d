"""An AllReduce as two collectives, between which computation runs on slices or on one rank (CoCoNet, section 3.1)."""

from __future__ import annotations

from dataclasses import replace

from treadle.planner.documents.nearest import meant
from treadle.planner.passes.fusion.infer import typed
from treadle.planner.passes.fusion.layouts import FLAT, Block, Local
from treadle.planner.passes.fusion.program import Attribute, Node, Program
from treadle.planner.passes.fusion.slice_maps import map_of
from treadle.planner.passes.fusion.transforms.editing import Names, Rewrite, redirected, refuse, settled, single

POLICIES = ("ARSplitRSAG", "ARSplitReduceBcast")


def split(program: Program, ar: str, policy: str, dim: int = FLAT, map: str = "block", root: int = 0) -> Rewrite:
    """`ar` as ReduceScatter along `dim` by `map` and AllGather, or as Reduce to `root` and Broadcast.

    Makes the names of the two. Raises InvalidTransform: not-allreduce, not-local, policy, dim, extent, map, root.
    """
    node = single(program, "split", ar)
    if node.op != "AllReduce":
        refuse("split", "not-allreduce", ar, f"found {ar}, a {node.op}, expected an AllReduce")
    operand = str(node.inputs[0])
    of = program.by_name[operand].type
    if not isinstance(of.layout, Local):
        refuse("split", "not-local", operand, f"found {operand}, which is not Local, expected values to be reduced")
    names = Names(program)
    attributes: dict[str, Attribute] = {"op": node.attribute("op")}
    if policy == "ARSplitRSAG":
        if not FLAT <= dim < len(of.shape) or not of.shape:
            refuse("split", "dim", str(dim), f"found dim={dim} of {len(of.shape)} dimensions, expected one of them")
        if dim != FLAT and of.shape[dim].one:
            refuse("split", "extent", str(dim), f"found dimension {dim} of extent 1, expected one to divide")
        if dim != FLAT and not isinstance(map_of(map), Block):
            refuse("split", "map", map, f"found a ring's tiles along dimension {dim}, expected dim=FLAT")
        first = _made(program, names.fresh("rs"), "ReduceScatter", operand, {**attributes, "dim": dim, "map": map})
        second = _made(program, names.fresh("ag"), "AllGather", first, {})
    elif policy == "ARSplitReduceBcast":
        if root < 0:
            refuse("split", "root", str(root), f"found root {root}, expected a rank of the group")
        first = _made(program, names.fresh("red"), "Reduce", operand, {**attributes, "root": root})
        second = _made(program, names.fresh("bc"), "Broadcast", first, {"root": root})
    else:
        refuse("split", "policy", policy, f"found policy {policy!r}, {meant(policy, POLICIES)}")
    others = redirected(program.nodes, {ar: second.name})
    at = program.nodes.index(node)
    whole = replace(
        program,
        nodes=(*others[:at], first, second, *others[at + 1 :]),
        outputs=tuple(second.name if name == ar else name for name in program.outputs),
    )
    return Rewrite(settled("split", whole), (first.name, second.name))


def _made(program: Program, name: str, op: str, operand: str | Node, attributes: dict[str, Attribute]) -> Node:
    source = operand if isinstance(operand, Node) else program.by_name[operand]
    return typed(name, op, (source.name,), attributes, {source.name: source.type})
