"""What a schedule moves and keeps, counted exactly from its stages (docs/fusion.md; CoCoNet, sections 2 and 5).

Volume is the elements that a rank sends, by the ring algorithm: AllReduce 2(n-1)/n of its tensor, ReduceScatter,
AllGather and AllToAll (n-1)/n; of Reduce and Broadcast the ranks' average. Traffic is the elements of tensors that a
rank loads and stores: each operand once per stage, results once, what stays in registers or buffers of a collective
never, scalars never. State is what a rank keeps of the tensors that the program updates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from treadle.planner.machine.collectives import PASSES
from treadle.planner.machine.dtypes import BYTES
from treadle.planner.passes.fusion.dims import volume
from treadle.planner.passes.fusion.expressions import ZERO, Expression
from treadle.planner.passes.fusion.layouts import Sliced
from treadle.planner.passes.fusion.program import Node, Program, TensorType
from treadle.planner.passes.fusion.stages import Stage, behind, consumers, kind, stages

Role = Literal["input", "state", "output"]


@dataclass(frozen=True)
class StageCounts:
    """Counts of one rank, in elements; `volume` by offset of the group it is sent in, `between` that between groups."""

    name: str
    kind: str
    volume: Mapping[int, Expression]
    between: Expression
    loads: Expression
    stores: Expression

    @property
    def traffic(self) -> Expression:
        return self.loads + self.stores


@dataclass(frozen=True)
class Allocation:
    """What one rank keeps of a tensor of the caller, in elements."""

    name: str
    role: Role
    dtype_bytes: int
    elements: Expression


@dataclass(frozen=True)
class Counts:
    """Counts of one rank."""

    stages: tuple[StageCounts, ...]
    memory: tuple[Allocation, ...]

    @property
    def launches(self) -> int:
        return len(self.stages)

    @cached_property
    def traffic(self) -> Expression:
        return total(stage.traffic for stage in self.stages)

    @cached_property
    def volume(self) -> Expression:
        """Sent within groups."""
        return total(amount for stage in self.stages for amount in stage.volume.values())

    @cached_property
    def between(self) -> Expression:
        """Sent to the next group."""
        return total(stage.between for stage in self.stages)

    def volume_in(self, offset: int) -> Expression:
        """Sent within the group `offset` groups after the one that runs the program."""
        return total(stage.volume.get(offset, ZERO) for stage in self.stages)

    @cached_property
    def state(self) -> Expression:
        return total(kept.elements for kept in self.memory if kept.role == "state")


def counts(program: Program) -> Counts:
    """Everything counted for a schedule, in symbolic dimensions."""
    memory = (Allocation(name, role, BYTES[of.dtype], _elements(of)) for name, role, of in _kept(program))
    return Counts(tuple(_stage(program, stage) for stage in stages(program)), tuple(memory))


def _stage(program: Program, stage: Stage) -> StageCounts:
    sent: dict[int, Expression] = {}
    between = ZERO
    for node in stage.nodes:
        if node.op == "Send":
            between += _elements(node.type)
        elif amount := _sent(program, node):
            sent[node.type.group.offset] = sent.get(node.type.group.offset, ZERO) + amount
    stores = total(_elements(node.type) for node in stored(program, stage))
    return StageCounts(stage.name, stage.kind, sent, between, total(_loads(program, stage)), stores)


def _sent(program: Program, node: Node) -> Expression | None:
    """Elements that each rank sends within its group, None for operations that send nothing."""
    passes = PASSES["AllReduce"] if sums_slices(program, node) else PASSES.get(node.op)
    whole = Expression.of(volume(node.type.shape))
    return (whole - whole.shared()).scaled(passes) if passes else None


def sums_slices(program: Program, node: Node) -> bool:
    """Whether it reduces slices over all ranks, so that an AllReduce of the ranks' parts belongs to it."""
    if kind(node) != "reduction" or isinstance(node.type.layout, Sliced):
        return False
    return isinstance(program.by_name[str(node.inputs[0])].type.layout, Sliced)


def _elements(of: TensorType) -> Expression:
    """Elements of a tensor on a rank that has them."""
    return Expression.of(volume(of.shape), share=int(isinstance(of.layout, Sliced)))


def _kept(program: Program) -> Iterator[tuple[str, Role, TensorType]]:
    """What a rank keeps of the caller's tensors: what the program updates is state, and an Update is no new output."""
    for value in program.inputs:
        yield value.name, "state" if value.name in program.updates else "input", value.type
    for name in program.outputs:
        if not _in_place(program, name):
            yield name, "output", program.by_name[name].type


def total(amounts: Iterable[Expression]) -> Expression:
    """The sum of all amounts, 0 without any."""
    return sum(amounts, ZERO)


def _in_place(program: Program, name: str) -> bool:
    """Whether a value lies in the storage of an input: an input, its Update or the gathered Update."""
    value = program.by_name[name]
    return not isinstance(value, Node) or value.op == "Update" or _completes(program, value)


def _completes(program: Program, node: Node) -> bool:
    """Whether it is an AllGather that makes the target of an Update whole."""
    source = program.by_name[behind(program, str(node.inputs[0]))] if node.op == "AllGather" else None
    return isinstance(source, Node) and source.op == "Update"


def _loads(program: Program, stage: Stage) -> Iterable[Expression]:
    """Elements that a stage loads, once for each part of each tensor."""
    inside = {node.name for node in stage.nodes}
    found: dict[tuple[str, str], Expression] = {}
    for name in dict.fromkeys(name for node in stage.nodes for name in node.reads):
        of, source = program.by_name[name].type, behind(program, name)
        if source not in inside and of.shape:
            size = _elements(of)
            found[source, str(size)] = size
    return found.values()


def stored(program: Program, stage: Stage) -> tuple[Node, ...]:
    """Operations of a stage whose results go to memory.

    An Update is stored in its target whatever reads it, by the AllGather of the same stage if there is one.
    """
    inside, readers = {node.name for node in stage.nodes}, consumers(program)

    def goes(node: Node) -> bool:
        if node.op == "Update":
            return not any(reader.op == "AllGather" and reader.name in inside for reader in readers[node.name])
        escapes = node.name in program.outputs or any(reader.name not in inside for reader in readers[node.name])
        return bool(node.type.shape) and (escapes or _completes(program, node))

    return tuple(node for node in stage.nodes if goes(node))
