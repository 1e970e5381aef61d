"""The canonical form of a typed program modulo names: equal for programs that a renaming of values and
a reordering of independent operations turn into each other.

Each value is labelled by what computes it and then by what reads it, so that equal computations in different places
differ. Kernels are labelled by their members, nested ones as members: fuse(fuse(a, b), c) is not fuse(a, b, c).
Inputs count by position, types and attributes exactly. Operations that remain alike are interchangeable.
"""

from __future__ import annotations

import hashlib
from collections import Counter

from treadle.planner.passes.fusion.program import Input, Node, Operand, Program, TensorType


def canonical_hash(program: Program) -> str:
    """16 hexadecimal digits, the same for programs that differ only in names and in the order of their text."""
    return _digest(canonical_form(program))[:16]


def canonical_form(program: Program) -> tuple[tuple[str, ...], ...]:
    """Labels of the operations, outputs, kernels and overlaps; those of operations, kernels and overlaps are sorted."""
    labels = _labels(program)
    for kernel in program.kernels:  # after their members
        labels[kernel.name] = _digest(("kernel", kernel.policy, *sorted(labels[name] for name in kernel.members)))
    return (
        tuple(labels[value.name] for value in program.inputs),
        tuple(sorted(labels[node.name] for node in program.nodes)),
        tuple(labels[name] for name in program.outputs),
        tuple(sorted(labels[kernel.name] for kernel in program.kernels)),
        tuple(sorted(_digest([labels[name] for name in overlap.members]) for overlap in program.overlaps)),
    )


def _labels(program: Program) -> dict[str, str]:
    made = {value.name: _digest(("input", i, _type(value))) for i, value in enumerate(program.inputs)}
    for node in program.nodes:
        operands = [made[x] if isinstance(x, str) else repr(x) for x in node.inputs]
        made[node.name] = _digest((node.op, *operands, node.attributes, node.anonymous, _type(node)))
    used = _uses(program)
    outputs = Counter(program.outputs)
    read: dict[str, str] = {}
    values: tuple[Input | Node, ...] = (*program.inputs, *program.nodes)
    for value in reversed(values):
        uses = sorted(f"{read[node.name]} {positions}" for node, positions in used[value.name])
        read[value.name] = _digest((made[value.name], outputs[value.name], *uses))
    return read


def _uses(program: Program) -> dict[str, list[tuple[Node, tuple[int, ...]]]]:
    used: dict[str, list[tuple[Node, tuple[int, ...]]]] = {name: [] for name in program.by_name}
    for node in program.nodes:
        positions: dict[Operand, tuple[int, ...]] = {}
        for i, operand in enumerate(node.inputs):
            if isinstance(operand, str):
                positions[operand] = (*positions.get(operand, ()), i)
        for operand, where in positions.items():
            used[str(operand)].append((node, where))
    return used


def _type(value: Input | Node) -> str:
    kind: TensorType = value.type
    return f"{kind.dtype} {[str(extent) for extent in kind.shape]} {kind.layout} {kind.group}"


def _digest(content: object) -> str:
    return hashlib.blake2b(repr(content).encode(), digest_size=16).hexdigest()
