"""Tensors that a kernel both reads and overwrites: no thread may read what another one has written.

A kernel stores in its last phase, and its threads meet only where a reduction ends. So the old value of a tensor is
read by reductions, or else by the thread that overwrites the same element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from treadle.planner.passes.fusion.dims import Shape
from treadle.planner.passes.fusion.program import Node, Program
from treadle.planner.passes.fusion.stages import behind, kind, phases


@dataclass(frozen=True)
class Overwriting:
    """The operations of a kernel; `live` says which values leave it."""

    program: Program
    nodes: Sequence[Node]
    live: Callable[[Node], bool]

    def races(self) -> Iterator[tuple[Node, Node, str]]:
        """An Update, an operation that may read its target after it is overwritten, and why."""
        for update in self.nodes:
            if update.op == "Update":
                target = str(update.inputs[0])
                for end in self.nodes:
                    for reader in self.computed_for(end):
                        if target in self.sources(reader) and (why := self.race(update, reader, end)):
                            yield update, reader, why

    @cached_property
    def inside(self) -> Mapping[str, Node]:
        return {node.name: node for node in self.nodes}

    @cached_property
    def phase(self) -> Mapping[str, int]:
        return phases(self.program, self.nodes, lambda node: kind(node) == "reduction")

    def sources(self, node: Node) -> set[str]:
        return {behind(self.program, name) for name in node.reads}

    def computed_for(self, end: Node) -> list[Node]:
        """What is computed, anew where it was before, for an operation that reduces, stores or sends; none else."""
        if kind(end) == "pointwise" and end.op != "Update" and not self.live(end):
            return []
        found = {end.name: end}
        waiting = [end]
        while waiting:
            for name in sorted(self.sources(waiting.pop()) & self.inside.keys() - found.keys()):
                if kind(self.inside[name]) == "pointwise":
                    found[name] = self.inside[name]
                    waiting.append(found[name])
        return list(found.values())

    def over(self, end: Node) -> Shape:
        """The elements for which it is computed."""
        return end.type.shape if kind(end) == "pointwise" else self.program.by_name[end.reads[0]].type.shape

    def race(self, update: Node, reader: Node, end: Node) -> str:
        if kind(reader) not in ("pointwise", "reduction"):
            return "where other threads need it"
        if self.phase[reader.name] > self.phase[update.name]:
            return f"in a phase after {update.name}"
        if kind(end) != "reduction" and self.over(end) != update.type.shape:
            return f"for other elements than {update.name} overwrites"
        return ""
