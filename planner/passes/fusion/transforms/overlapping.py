"""A chain of stages, each of which starts on what the one before has finished (CoCoNet, section 3.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from treadle.planner.passes.fusion.program import Node, Overlap, Program
from treadle.planner.passes.fusion.stages import Stage, behind, dependences, first_positions, home_of, kind, ordered
from treadle.planner.passes.fusion.transforms.editing import (
    Names,
    Rewrite,
    distinct,
    launched,
    path_between,
    refuse,
    settled,
)


def overlap(program: Program, members: Sequence[str], name: str | None = None) -> Rewrite:
    """The stages `members`, in their order, as one overlap. Makes its name.

    Whether all of their kernels fit on a device together is known when they are generated. Raises InvalidTransform:
    repeated, single, not-a-chain, not-convex, not-streamable, anti-dependence, cycle, name.
    """
    distinct("overlap", members)
    stages = [launched(program, "overlap", member) for member in members]
    if len(stages) < 2:
        refuse("overlap", "single", ", ".join(members), f"found {len(stages)} stages, expected at least two")
    homes = home_of(program)
    graph = dependences(program, homes)
    for before, after in pairwise(stages):
        made = {node.name for node in before.nodes}
        if not any(behind(program, read) in made for node in after.nodes for read in node.reads):
            witness = f"{before.name} -> {after.name}"
            message = f"found {after.name}, which reads nothing of {before.name}, expected a chain"
            refuse("overlap", "not-a-chain", witness, message)
    order = {stage: graph[stage] for stage in ordered(graph, first_positions(program, homes))}
    path = path_between(order, members, (), {stage: stage for stage in order})
    if path:
        refuse("overlap", "not-convex", path, f"found {path} leaving the chain and coming back")
    for stage in stages:
        for node in stage.nodes:
            _streamable(stage, node)
    _overwriting(program, stages)
    chosen = Names(program).given("overlap", name, "ol")
    whole = replace(program, overlaps=(*program.overlaps, Overlap(chosen, tuple(members))))
    return Rewrite(settled("overlap", whole), (chosen,))


def _streamable(stage: Stage, node: Node) -> None:
    """Refuse what needs all of its input before its first output, or a part that is known only when it runs."""
    if kind(node) == "reduction" and node.attribute("dim") != len(node.type.shape) - 1:
        message = f"found {node.name} in {stage.name}, which needs all of its input before its first output"
        refuse("overlap", "not-streamable", node.name, message)
    if node.op == "Permute":
        message = f"found {node.name} in {stage.name}, which needs rows that are known only when it runs"
        refuse("overlap", "not-streamable", node.name, message)


def _overwriting(program: Program, stages: Sequence[Stage]) -> None:
    """Refuse a stage that overwrites a tensor of which an earlier one still reads more than the same elements."""
    for number, stage in enumerate(stages):
        for target in (str(node.inputs[0]) for node in stage.nodes if node.op == "Update"):
            for earlier in stages[:number]:
                for node in earlier.nodes:
                    alike = kind(node) == "pointwise" and node.type.shape == program.by_name[target].type.shape
                    if not alike and any(behind(program, read) == target for read in node.reads):
                        message = f"found {node.name}, which reads {target} while {stage.name} overwrites it"
                        refuse("overlap", "anti-dependence", f"{node.name} -> {target}", message)
