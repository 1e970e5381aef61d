"""Chains of a schedule's stages that may overlap (CoCoNet, sections 3.4 and 5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from treadle.planner.passes.fusion import pieces
from treadle.planner.passes.fusion.candidates import COMPUTE, StageGraph
from treadle.planner.passes.fusion.decisions import TransformCall
from treadle.planner.passes.fusion.program import Program
from treadle.planner.passes.fusion.refusal import InvalidTransform
from treadle.planner.passes.fusion.transform_calls import apply

Chain = tuple[str, ...]
"""Stages that overlap, in order."""


@dataclass(frozen=True)
class Chains:
    """All chains of two or more stages: those that may overlap, and why the others may not.

    Chains grow by one stage from legal ones, so one that contains a refused chain at its head is not listed.
    """

    programs: Mapping[Chain, Program]
    """The schedule with each legal chain overlapped, and no other."""
    refused: tuple[tuple[Chain, InvalidTransform], ...]


def chains(program: Program, *, generated: bool = False) -> Chains:
    """The chains of a schedule's stages; `generated`: only those that generated kernels run at the same time."""
    flow = StageGraph.of(program)
    legal: dict[Chain, Program] = {}
    refused: list[tuple[Chain, InvalidTransform]] = []
    waiting: list[Chain] = [(name,) for name in flow.stages]
    while waiting:
        chain = waiting.pop(0)
        for name in (name for name in flow.stages if name in flow.readers[chain[-1]]):
            longer = (*chain, name)
            try:
                if generated:
                    _generated(flow, longer)
                legal[longer] = apply(program, overlap_call(longer)).program
            except InvalidTransform as error:
                refused.append((longer, error))
            else:
                waiting.append(longer)
    return Chains(legal, tuple(refused))


def _generated(flow: StageGraph, chain: Chain) -> None:
    for name in chain[-2:]:
        if flow.stages[name].kind in COMPUTE:
            message = f"found {name}, a launch of computation alone, expected it in the kernel of a neighbour"
            raise InvalidTransform("overlap", "computation", name, message)
    if error := pieces.refusal(flow.program, [flow.stages[name] for name in chain]):
        raise InvalidTransform("overlap", "in-turn", " -> ".join(chain[-2:]), str(error))


def overlap_call(chain: Chain) -> TransformCall:
    """The transformation that overlaps a chain."""
    return TransformCall(transform="overlap", arguments={"members": list(chain)})
