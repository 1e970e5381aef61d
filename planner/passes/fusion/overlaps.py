"""The ways to overlap a schedule's stages: chains of them start together (CoCoNet, sections 3.4 and 5)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from treadle.planner.passes.fusion import pieces
from treadle.planner.passes.fusion.calls import apply
from treadle.planner.passes.fusion.decisions import TransformCall
from treadle.planner.passes.fusion.moves import COMPUTE, Flow
from treadle.planner.passes.fusion.program import Program
from treadle.planner.passes.fusion.refusal import InvalidTransform

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

    @property
    def legal(self) -> tuple[Chain, ...]:
        return tuple(self.programs)


def chains(program: Program, *, generated: bool = False) -> Chains:
    """`generated`: only those that generated kernels run at the same time."""
    flow = Flow.of(program)
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


def _generated(flow: Flow, chain: Chain) -> None:
    for name in chain[-2:]:
        if flow.stages[name].kind in COMPUTE:
            message = f"found {name}, a launch of computation alone, expected it in the kernel of a neighbour"
            raise InvalidTransform("overlap", "computation", name, message)
    if error := pieces.refusal(flow.program, [flow.stages[name] for name in chain]):
        raise InvalidTransform("overlap", "in-turn", " -> ".join(chain[-2:]), str(error))


def overlap_call(chain: Chain) -> TransformCall:
    """The transformation that overlaps a chain."""
    return TransformCall(transform="overlap", arguments={"members": list(chain)})


def choices(program: Program, legal: tuple[Chain, ...]) -> Iterator[tuple[tuple[Chain, ...], Program]]:
    """Every set of chains that may overlap side by side, the empty one first, with the program that it makes."""

    def more(chosen: tuple[Chain, ...], made: Program, at: int) -> Iterator[tuple[tuple[Chain, ...], Program]]:
        yield chosen, made
        used = {name for chain in chosen for name in chain}
        for number in range(at, len(legal)):
            if used.isdisjoint(legal[number]):
                try:
                    further = apply(made, overlap_call(legal[number])).program
                except InvalidTransform:
                    continue
                yield from more((*chosen, legal[number]), further, number + 1)

    yield from more((), replace(program, overlaps=()), 0)
