"""The inverse of split: two collectives as the AllReduce that they are together (CoCoNet, section 3.1)."""

from __future__ import annotations

from dataclasses import replace

from treadle.planner.passes.fusion.infer import typed
from treadle.planner.passes.fusion.program import Program
from treadle.planner.passes.fusion.transforms.editing import Names, Rewrite, redirected, refuse, settled, single

PAIRS = {"ReduceScatter": "AllGather", "Reduce": "Broadcast"}


def merge(program: Program, first: str, second: str) -> Rewrite:
    """ReduceScatter and AllGather, or Reduce and Broadcast of one root, as an AllReduce. Makes its name.

    Raises InvalidTransform: not-a-pair, not-adjacent, read.
    """
    before, after = single(program, "merge", first), single(program, "merge", second)
    if PAIRS.get(before.op) != after.op:
        message = f"found {before.op} and {after.op}, expected ReduceScatter and AllGather, or Reduce and Broadcast"
        refuse("merge", "not-a-pair", f"{first}, {second}", message)
    if after.inputs != (first,):
        refuse(
            "merge", "not-adjacent", second, f"found {second} without {first} as its operand, expected one of the other"
        )
    others = [reader.name for reader in program.readers[first] if reader.name != second]
    if others or first in program.outputs:
        witness = others[0] if others else first
        refuse("merge", "read", witness, f"found {first} needed besides {second}, expected no other use")
    name = Names(program).fresh("ar")
    operand = str(before.inputs[0])
    types = {operand: program.by_name[operand].type}
    whole = typed(name, "AllReduce", (operand,), {"op": before.attribute("op")}, types)
    nodes = tuple(whole if node.name == second else node for node in program.nodes if node.name != first)
    outputs = tuple(name if output == second else output for output in program.outputs)
    return Rewrite(
        settled("merge", replace(program, nodes=redirected(nodes, {second: name}), outputs=outputs)), (name,)
    )
