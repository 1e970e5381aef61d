"""Prunings of the search that do not lose the best schedule (CoCoNet, section 5); each can be switched off.

pointwise_first   neighbouring computations become one kernel before the search
idle_splits       a split that neither a reorder nor a fusion follows moves the same bytes in more launches
lone_slices       a slice_intro without a reorder only adds a gather
dominated         another schedule with the same collectives and products is no worse in volume of any kind of link,
                  traffic, launches and state, and better in one
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from treadle.planner.passes.fusion.candidates import StageGraph
from treadle.planner.passes.fusion.counts import Counts
from treadle.planner.passes.fusion.decisions import TransformCall
from treadle.planner.passes.fusion.program import Bindings, Program
from treadle.planner.passes.fusion.refusal import InvalidTransform
from treadle.planner.passes.fusion.stages import kind, moves_data
from treadle.planner.passes.fusion.transform_calls import apply
from treadle.planner.passes.fusion.transforms.merge import PAIRS

NEIGHBOURS = ("pointwise", "rows", "reduction")
LARGEST = 64
"""Operations that one kernel may have before the search."""


@dataclass(frozen=True)
class Prunings:
    """Which are switched on; `largest`: operations that one kernel may have before the search."""

    pointwise_first: bool = True
    idle_splits: bool = True
    lone_slices: bool = True
    dominated: bool = True
    largest: int = LARGEST


PRUNED = Prunings()


def pointwise_first(program: Program, largest: int = LARGEST) -> tuple[Program, tuple[TransformCall, ...]]:
    """The program with neighbouring computations in kernels as large as they can be, and the calls that make them."""
    calls: list[TransformCall] = []
    done: set[str] = set()
    while True:
        flow = StageGraph.of(program)
        first = next((name for name in flow.unfused(*NEIGHBOURS) if name not in done), None)
        if first is None:
            return program, tuple(calls)
        call = _grown(flow, first, largest)
        if call is None:
            done.add(first)
        else:
            program = apply(program, call).program
            calls.append(call)


def _grown(flow: StageGraph, first: str, largest: int) -> TransformCall | None:
    """The fusion of `first` with all around it that can join; None where nothing can."""
    alone = flow.unfused(*NEIGHBOURS)
    held, best = {first}, None
    growing = True
    while growing:
        growing = False
        for name in alone:
            near = (flow.sources[name] | flow.readers[name]) & held
            members = [x for x in flow.stages if x in held or x == name]
            if name in held or not near or sum(len(flow.stages[x].nodes) for x in members) > largest:
                continue
            call = TransformCall(transform="fuse", arguments={"members": members, "policy": "ComputationFuse"})
            try:
                apply(flow.program, call)
            except InvalidTransform:
                continue
            held.add(name)
            best, growing = call, True
    return best


def idle(program: Program) -> bool:
    """Whether a ReduceScatter (or Reduce) is read by nothing but the AllGather (Broadcast) that undoes the split."""
    held = {member for kernel in program.kernels for member in kernel.members}
    for node in program.nodes:
        readers = program.readers[node.name] if node.op in PAIRS and node.name not in held else ()
        undone = all(reader.op == PAIRS[node.op] for reader in readers)
        if undone and any(reader.name not in held for reader in readers):
            return True
    return False


def undominated(programs: Sequence[Program], counted: Sequence[Counts], bindings: Bindings) -> list[int]:
    """Positions of the schedules that no other of the same structure is better than, in order."""
    structures = [_structure(program, counts) for program, counts in zip(programs, counted, strict=True)]
    costs = [_costs(counts, bindings) for counts in counted]
    return [
        at
        for at, (structure, cost) in enumerate(zip(structures, costs, strict=True))
        if not any(
            structure == other and cheaper != cost and all(x <= y for x, y in zip(cheaper, cost, strict=True))
            for other, cheaper in zip(structures, costs, strict=True)
        )
    ]


def _structure(program: Program, counts: Counts) -> tuple[object, ...]:
    """What is communicated and multiplied, in which kernels: everything but pointwise launches and their places."""
    moved = ((node.op, node.type.group.offset) for node in program.nodes if moves_data(node) or kind(node) == "layer")
    return (*sorted(moved), *sorted(stage.kind for stage in counts.stages if stage.kind not in NEIGHBOURS))


def _costs(counts: Counts, bindings: Bindings) -> tuple[Fraction | int, ...]:
    offsets = range(bindings.groups)
    volumes = (counts.volume_in(offset).value(bindings) for offset in offsets)
    others = (counts.between, counts.traffic, counts.state)
    return (*volumes, *(amount.value(bindings) for amount in others), counts.launches)
