"""Which launches of an overlap generated kernels run at the same time, piece by piece (CoCoNet, sections 3.4 and 5.3).

A schedule may overlap whatever streams; the kernels of this project overlap less: products and collectives, of which
each takes the one value that the one before hands on. All other launches run one after the other, and are priced so.
What depends on sizes and on the algorithm of a collective is judged by `price.supported` and the generator.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from treadle.planner.passes.fusion.anatomy import anatomy_of
from treadle.planner.passes.fusion.layouts import Sliced
from treadle.planner.passes.fusion.program import Node, Program
from treadle.planner.passes.fusion.refusal import TypeRefusal
from treadle.planner.passes.fusion.stages import Stage, behind, moves_data

ROW = "4.5"
"""The row of every TypeRefusal here."""


def together(program: Program, stages: Sequence[Stage]) -> tuple[tuple[Stage, ...], ...]:
    """The stages of an overlap as they are launched: at the same time as far as they meet, from the head on."""
    found, left = [], tuple(stages)
    while left:
        count = next(count for count in range(len(left), 0, -1) if refusal(program, left[:count]) is None)
        found.append(left[:count])
        left = left[count:]
    return tuple(found)


def refusal(program: Program, stages: Sequence[Stage]) -> TypeRefusal | None:
    """Why no kernels run all of these stages at the same time; None where they do, and of one stage alone."""
    try:
        require(program, stages)
    except TypeRefusal as error:
        return error
    return None


def require(program: Program, stages: Sequence[Stage]) -> None:
    """Raises TypeRefusal where a stage cannot follow the one before piece by piece."""
    if len(stages) > 1:
        for stage in stages:
            _takes_pieces(stage)
        for number, stage in enumerate(stages):
            _only_neighbour(program, stage, stages[: max(0, number - 1)])
        for before, after in pairwise(stages):
            handed_on(program, before, after)


def handed_on(program: Program, before: Stage, after: Stage) -> Node:
    """The value between two stages. Raises TypeRefusal where it is none, several, or one that they do not make and take
    piece by piece."""
    if multiplies(before) and multiplies(after):
        raise TypeRefusal(after.name, ROW, "found a product behind another, expected a collective between")
    inside = {node.name: node for node in before.nodes}
    read = sorted({name for node in after.nodes for name in node.reads if behind(program, name) in inside})
    last = None if multiplies(before) else anatomy_of(before).last
    if len(read) != 1 or read[0] not in ({last.name} if last is not None else set(inside)):
        found = ", ".join(read) or "nothing"
        message = f"found {found} read from {before.name}, expected the one value that it hands on"
        raise TypeRefusal(after.name, ROW, message)
    value = inside[read[0]]
    sends = after.nodes[0] if multiplies(after) else anatomy_of(after).sends
    computes = not multiplies(after) and anatomy_of(after).first is None
    whole = program.type_of(sends.inputs[0])
    taken = sends.inputs[0] == value.name and value.name not in map(str, sends.inputs[1:])
    if not (taken or computes) or whole is None or whole.shape != value.type.shape:
        message = f"found {value.name} as another operand than the one it takes piece by piece"
        raise TypeRefusal(after.name, ROW, message)
    sliced = isinstance(value.type.layout, Sliced) and value.type.layout.dim != 0
    if sliced and (multiplies(before) or multiplies(after)):
        raise TypeRefusal(after.name, ROW, f"found {value.name} in slices of columns, expected whole rows")
    return value


def multiplies(stage: Stage) -> bool:
    """Whether it is a matrix product."""
    return stage.kind == "matmul"


def _takes_pieces(stage: Stage) -> None:
    """Refuse what is neither a product nor a collective that keeps the order of its chunks."""
    if multiplies(stage):
        return
    if not any(moves_data(node) for node in stage.nodes):
        raise TypeRefusal(stage.name, ROW, f"found a {stage.kind} kernel, expected a product or a collective")
    if anatomy_of(stage).permutes:
        raise TypeRefusal(stage.name, ROW, "found rows in the order of an index, expected chunks in their own order")


def _only_neighbour(program: Program, stage: Stage, earlier: Sequence[Stage]) -> None:
    read = {behind(program, name) for node in stage.nodes for name in node.reads}
    for other in earlier:
        if met := sorted(read & {node.name for node in other.nodes}):
            message = f"found {met[0]} of {other.name} read, expected values of the stage before"
            raise TypeRefusal(stage.name, ROW, message)
