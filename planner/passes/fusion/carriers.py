"""Which algorithms there are kernels for, so that a plan promises none that cannot run (CoCoNet, section 5.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from treadle.planner.machine.collectives import Tuning
from treadle.planner.passes.fusion.layouts import RingTile, Sliced
from treadle.planner.passes.fusion.program import Program
from treadle.planner.passes.fusion.stages import Stage, moves_data


def carried(program: Program, together: Sequence[Stage], tuning: Tuning) -> Tuning:
    """`tuning` without what no kernel of these stages, which share a choice, carries.

    Slices that are tiles of a ring come from that ring alone, on its channels. A tree finishes chunks at its roots and
    not at their owners, so what is computed there has no operands in slices.
    """
    moving = [stage for stage in together if any(moves_data(node) for node in stage.nodes)]
    for stage in moving:
        for layout in _layouts(program, stage, computed=False):
            if isinstance(layout.map, RingTile):
                rings = tuple(each for each in tuning.algorithms if each == "ring")
                return replace(tuning, algorithms=rings, channels=(layout.map.channels,))
    if any(_layouts(program, stage, computed=True) for stage in moving):
        return replace(tuning, algorithms=tuple(each for each in tuning.algorithms if each != "tree"))
    return tuning


def _layouts(program: Program, stage: Stage, *, computed: bool) -> list[Sliced]:
    """Of the slices in a stage, or only of those that its computation reads or makes."""
    nodes = [node for node in stage.nodes if not (computed and moves_data(node))]
    types = [of.type for node in nodes for of in (node, *(program.by_name[name] for name in node.reads))]
    return [of.layout for of in types if isinstance(of.layout, Sliced)]
