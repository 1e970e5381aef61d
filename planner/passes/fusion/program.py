"""The program: a dataflow graph of typed operations, and how a schedule cuts it into kernels (CoCoNet, section 2).

Nodes say what is computed and where the values live; kernels and overlaps say how it is launched and never change a
value. A transformation is a function from a program to a program. Reading the name of an input means its value
before the program; reading the node of an Update means the value after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from treadle.planner.machine.dtypes import Dtype
from treadle.planner.passes.fusion.dims import Shape
from treadle.planner.passes.fusion.layouts import WORLD, Group, Layout

Policy = Literal[
    "ComputationFuse",
    "AllReduceFuse",
    "ReduceScatterFuse",
    "AllGatherFuse",
    "ReduceFuse",
    "BroadcastFuse",
    "AllToAllFuse",
    "SendFuse",
]
"""What a kernel of several operations is."""

Operand = str | int | float
"""The name of an input or node, or a number."""
Attribute = str | int | float | bool | None


@dataclass(frozen=True)
class TensorType:
    """Shapes are global; per rank a sliced tensor has one part of them."""

    dtype: Dtype
    shape: Shape
    layout: Layout
    group: Group = WORLD


@dataclass(frozen=True)
class Input:
    """A tensor of the caller. One that an Update writes is state: it lasts from step to step."""

    name: str
    type: TensorType


@dataclass(frozen=True)
class Node:
    """One operation. The names of anonymous ones, parts of a larger expression, begin with an underscore."""

    name: str
    op: str
    inputs: tuple[Operand, ...]
    type: TensorType
    attributes: tuple[tuple[str, Attribute], ...] = ()
    """Sorted by name."""

    @property
    def anonymous(self) -> bool:
        return self.name.startswith("_")

    def attribute(self, name: str, default: Attribute = None) -> Attribute:
        return dict(self.attributes).get(name, default)

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """Names of the tensors it reads, each once; the target of an Update is not read."""
        operands = self.inputs[1:] if self.op == "Update" else self.inputs
        return tuple(dict.fromkeys(x for x in operands if isinstance(x, str)))

    def number_dtype(self, dtypes: Mapping[str, Dtype]) -> Dtype:
        """What numbers among its operands are rounded to: the result's of Where, else that of the last tensor;
        `dtypes` of its operands by name."""
        tensors = [dtypes[operand] for operand in self.inputs if isinstance(operand, str)]
        return self.type.dtype if self.op == "Where" or not tensors else tensors[-1]


@dataclass(frozen=True)
class Kernel:
    """One launch of several operations. `members` are nodes, or kernels that were made before and run inside it."""

    name: str
    policy: Policy
    members: tuple[str, ...]


@dataclass(frozen=True)
class Overlap:
    """A chain of stages, each of which starts on what the one before has finished."""

    name: str
    members: tuple[str, ...]


@dataclass(frozen=True)
class Program:
    """`nodes` are in an order in which they may run. Every value may be read by later nodes or be an output."""

    name: str
    inputs: tuple[Input, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]
    kernels: tuple[Kernel, ...] = ()
    overlaps: tuple[Overlap, ...] = ()

    @cached_property
    def by_name(self) -> dict[str, Input | Node]:
        values: tuple[Input | Node, ...] = (*self.inputs, *self.nodes)
        return {value.name: value for value in values}

    @cached_property
    def readers(self) -> dict[str, tuple[Node, ...]]:
        """Nodes that read a value, in order, by its name."""
        found: dict[str, list[Node]] = {name: [] for name in self.by_name}
        for node in self.nodes:
            for name in node.reads:
                found[name].append(node)
        return {name: tuple(nodes) for name, nodes in found.items()}

    @cached_property
    def updates(self) -> dict[str, Node]:
        """The node that writes an input, by the input's name."""
        return {str(node.inputs[0]): node for node in self.nodes if node.op == "Update"}

    def type_of(self, operand: Operand) -> TensorType | None:
        """The type of a value, None for a number."""
        return self.by_name[operand].type if isinstance(operand, str) else None

    @property
    def input_names(self) -> tuple[str, ...]:
        return tuple(value.name for value in self.inputs)


@dataclass(frozen=True)
class Bindings:
    """What a program is planned, generated and run for.

    `extents` by dimension; `ranks` of one group, `groups` of them one after the other; `parts` are the sizes of the
    tensors that make up a dimension, where it stands for several (they sum up to its extent).
    """

    extents: Mapping[str, int]
    ranks: int
    groups: int = 1
    parts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def values(self) -> dict[str, int]:
        """Extents of all dimensions, among them how many tensors each stands for."""
        return {**self.extents, **{f"{name}.parts": len(self.parts.get(name, (0,))) for name in self.extents}}
