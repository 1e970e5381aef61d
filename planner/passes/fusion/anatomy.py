"""The parts of a launch that communicates: what reduces, what hands out, what is computed in between."""

from __future__ import annotations

from dataclasses import dataclass

from treadle.planner.passes.fusion.operations import operation
from treadle.planner.passes.fusion.program import Node
from treadle.planner.passes.fusion.refusal import TypeRefusal
from treadle.planner.passes.fusion.stages import Stage

PROGRAMS = {
    "AllReduce": "allreduce",
    "ReduceScatter": "reducescatter",
    "Reduce": "reduce",
    "AllGather": "allgather",
    "Broadcast": "broadcast",
    "AllToAll": "alltoall",
    "Send": "send",
}
"""The collective program of each operation."""


@dataclass(frozen=True)
class Anatomy:
    """A stage taken apart: `first` reduces, `last` hands out, `members` are computed in between."""

    first: Node | None
    last: Node | None
    members: tuple[Node, ...]

    @property
    def permutes(self) -> bool:
        """Whether rows are read in the order of an index."""
        return any(node.op == "Permute" for node in self.members)

    @property
    def collective(self) -> str:
        if self.first is not None and self.last is not None:
            return "allreduce"
        return PROGRAMS[(self.first or self.last).op]  # type: ignore[union-attr]

    @property
    def sends(self) -> Node:
        """The node whose operand goes in."""
        return self.first or self.last  # type: ignore[return-value]


def anatomy_of(stage: Stage) -> Anatomy:
    """Raises TypeRefusal for collectives that no one kernel holds."""
    collectives = [node for node in stage.nodes if operation(node.op).kind in ("collective", "transfer")]
    members = tuple(node for node in stage.nodes if operation(node.op).kind == "pointwise" or node.op == "Permute")
    reducing = [node for node in collectives if node.op in ("AllReduce", "ReduceScatter", "Reduce")]
    ending = [node for node in collectives if node not in reducing]
    one = len(collectives) == 1 or [node.op for node in collectives] == ["ReduceScatter", "AllGather"]
    if not one or len(collectives) + len(members) < len(stage.nodes):
        names = ", ".join(node.op for node in stage.nodes)
        message = f"found {names} in one kernel, expected one collective, or RS and AG, and pointwise operations"
        raise TypeRefusal(stage.name, "5.3", message)
    return Anatomy(reducing[0] if reducing else None, ending[0] if ending else None, members)
