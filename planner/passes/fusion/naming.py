"""Which nodes have names of their own: the named ones and, before each, the expression that it is made of.

An anonymous node is pointwise, is read once, and is called after the named node whose expression it is part of.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from treadle.planner.passes.fusion.operations import pointwise
from treadle.planner.passes.fusion.program import Node, Program

HIGHEST = 100
"""Levels of one expression; what lies below gets a visible name."""


def canonical(program: Program) -> Program:
    """The same program with every anonymous node right before its owner, numbered in the order of evaluation.

    Anonymous nodes that cannot be part of an expression get a visible name.
    """
    inner = _inlined(program)
    taken = {name for name in program.by_name if not name.startswith("_")}
    names: dict[str, str] = {}
    order: list[Node] = []
    nodes = {node.name: node for node in program.nodes}

    def emit(node: Node, owner: str, count: int) -> int:
        for read in node.inputs:
            if isinstance(read, str) and read in inner:
                count = emit(nodes[read], owner, count)
        if node.name in inner:
            count += 1
            names[node.name] = f"_{owner}_{count}"
        order.append(node)
        return count

    for node in program.nodes:
        if node.name not in inner:
            names[node.name] = _visible(node, taken) if node.anonymous else node.name
            emit(node, names[node.name], 0)
    return _renamed(replace(program, nodes=tuple(order)), names)


def _renamed(program: Program, names: Mapping[str, str]) -> Program:
    """The program with these values renamed."""
    return replace(
        program,
        nodes=tuple(
            replace(
                node,
                name=names.get(node.name, node.name),
                inputs=tuple(names.get(x, x) if isinstance(x, str) else x for x in node.inputs),
            )
            for node in program.nodes
        ),
        outputs=tuple(names.get(name, name) for name in program.outputs),
        kernels=tuple(
            replace(kernel, members=tuple(names.get(name, name) for name in kernel.members))
            for kernel in program.kernels
        ),
        overlaps=tuple(
            replace(chain, members=tuple(names.get(name, name) for name in chain.members)) for chain in program.overlaps
        ),
    )


def _inlined(program: Program) -> set[str]:
    """Anonymous nodes that stay so: pointwise, used once, and the same when their owner runs as where they stand."""
    uses = Counter(x for node in program.nodes for x in node.inputs if isinstance(x, str))
    called = {*program.outputs, *(name for kernel in program.kernels for name in kernel.members)}
    called.update(name for chain in program.overlaps for name in chain.members)
    inner = {
        node.name
        for node in program.nodes
        if node.anonymous
        and pointwise(node.op)
        and node.op != "Update"
        and uses[node.name] == 1
        and node.name not in called
    }
    heights: dict[str, int] = {}
    for node in program.nodes:
        if node.name in inner:
            height = 1 + max((heights.get(read, 0) for read in node.reads), default=0)
            if height > HIGHEST:
                inner.discard(node.name)
            else:
                heights[node.name] = height
    place = {node.name: number for number, node in enumerate(program.nodes)}
    written = {target: place[node.name] for target, node in program.updates.items()}
    owner_place: dict[str, int] = {}
    for node in reversed(program.nodes):
        if node.name in inner:
            reader = program.readers[node.name][0].name
            runs = owner_place.get(reader, place[reader])
            owner_place[node.name] = runs
            if any(place[node.name] < written.get(read, -1) < runs for read in node.reads):
                inner.discard(node.name)
                del owner_place[node.name]
    return inner


def _visible(node: Node, taken: set[str]) -> str:
    stem, number = node.op.lower(), 1
    while f"{stem}_{number}" in taken:
        number += 1
    taken.add(f"{stem}_{number}")
    return f"{stem}_{number}"
