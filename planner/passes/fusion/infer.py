"""Types of nodes from the types of their operands; rows are those of the table in docs/fusion.md.

What no row allows is refused: layouts change only where a program says so (CoCoNet, sections 2.1 and 2.2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from treadle.planner.errors import InputError
from treadle.planner.passes.fusion.layouts import Replicated, Sliced
from treadle.planner.passes.fusion.operations import completed, operation
from treadle.planner.passes.fusion.program import Attribute, Node, Operand, Program, TensorType
from treadle.planner.passes.fusion.refusal import TypeRefusal
from treadle.planner.passes.fusion.rules.elementwise import elementwise
from treadle.planner.passes.fusion.rules.movement import movement, reduction
from treadle.planner.passes.fusion.rules.operands import Argument, refuse
from treadle.planner.passes.fusion.rules.products import product


def infer(op: str, operands: Sequence[Argument], attributes: Mapping[str, Attribute]) -> TensorType:
    """The type of `op` on these operands; numbers take the type of the others.

    Raises TypeRefusal with the row that is violated, InputError for an unknown operation or attribute.
    """
    known, given = operation(op), dict(completed(op, attributes))
    if len(operands) != known.arity:
        raise InputError(f"{op}: found {len(operands)} operands, expected {known.arity}")
    if known.kind == "pointwise":
        return elementwise(op, operands, given)
    types = []
    for operand in operands:
        if not isinstance(operand, TensorType):
            refuse(op, "dtype", f"found the number {operand}, expected a tensor")
        types.append(operand)
    if known.kind == "layer":
        return product(op, types[0], types[1], given)
    if known.kind == "reduction":
        return reduction(op, types[0], given)
    return movement(op, types[0], given)


def typed(
    name: str,
    op: str,
    inputs: Sequence[Operand],
    attributes: Mapping[str, Attribute],
    types: Mapping[str, TensorType],
) -> Node:
    """A node with its attributes completed and its type inferred. Raises TypeRefusal."""
    operands = [types[value] if isinstance(value, str) else value for value in inputs]
    return Node(name, op, tuple(inputs), infer(op, operands, attributes), completed(op, attributes))


def retyped(program: Program) -> Program:
    """The program with the types of all nodes inferred again from those of its inputs.

    Raises TypeRefusal, with row 31 for an input that an Update leaves stale, and InputError for a value that is read
    before it is made, or as it was before an Update that has run.
    """
    types = {value.name: value.type for value in program.inputs}
    nodes, written = [], dict[str, str]()
    for node in program.nodes:
        for read in node.inputs:
            if isinstance(read, str) and read not in types:
                raise InputError(f"{node.name}: found {read!r} read before it is made, expected nodes in running order")
        for read in node.reads:
            if read in written:
                raise InputError(
                    f"{node.name}: found the old value of {read!r} read after {written[read]} has written it"
                )
        if node.op == "Update":
            written[str(node.inputs[0])] = node.name
        made = typed(node.name, node.op, node.inputs, dict(node.attributes), types)
        types[node.name] = made.type
        nodes.append(made)
    whole = replace(program, nodes=tuple(nodes))
    for target in stale(whole):
        message = f"{target} is Replicated and its Update sliced; expected an AllGather of the Update, or as_slice"
        raise TypeRefusal("Update", "31", message)
    return whole


def stale(program: Program) -> tuple[str, ...]:
    """Replicated inputs of which an Update leaves each rank only a slice that no AllGather completes (row 31)."""
    return tuple(
        target
        for target, node in program.updates.items()
        if isinstance(program.by_name[target].type.layout, Replicated)
        and isinstance(node.type.layout, Sliced)
        and not any(reader.op == "AllGather" for reader in program.readers[node.name])
    )
