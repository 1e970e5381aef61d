"""A program and the transformations that were applied to it, one after the other (CoCoNet, section 3)."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.planner.errors import InputError
from treadle.planner.passes.fusion.decisions import TransformCall
from treadle.planner.passes.fusion.layouts import FLAT
from treadle.planner.passes.fusion.program import Program
from treadle.planner.passes.fusion.transform_calls import apply
from treadle.planner.passes.fusion.transforms.editing import Rewrite


class ScheduleBuilder:
    """A schedule under construction. Each method applies one transformation, or raises InvalidTransform and changes
    nothing; operations and tensors are given by name. `calls` can be replayed."""

    def __init__(self, program: Program) -> None:
        self.start = self.program = program
        self.calls: tuple[TransformCall, ...] = ()

    def find(self, op: str) -> str:
        """The name of the only operation `op`. Raises InputError."""
        found = [node.name for node in self.program.nodes if node.op == op]
        if len(found) != 1:
            raise InputError(f"{self.program.name}: found {len(found)} operations {op}, expected one")
        return found[0]

    def split(
        self, ar: str, policy: str, dim: int = FLAT, map: str = "block", root: int | None = None
    ) -> tuple[str, str]:
        """An AllReduce as ReduceScatter and AllGather (ARSplitRSAG) or Reduce and Broadcast (ARSplitReduceBcast)."""
        where: dict[str, object] = {"root": root} if root is not None else {"dim": dim, "map": map}
        first, second = self._apply("split", ar=ar, policy=policy, **where).made
        return first, second

    def merge(self, first: str, second: str) -> str:
        """The AllReduce that two collectives are together."""
        return self._apply("merge", first=first, second=second).made[0]

    def reorder(self, gather: str, region: Sequence[str]) -> tuple[tuple[str, ...], dict[str, str]]:
        """The region before a collective: its stages in the order given, and the collectives behind it by the value, or
        the updated tensor, that each completes."""
        targets = {node.name: target for target, node in self.program.updates.items()}
        made = self._apply("reorder", gather=gather, region=list(region))
        tensors = {targets[name]: gather for name, gather in made.gathers.items() if name in targets}
        return made.made, {**tensors, **made.gathers}

    def slice_intro(self, x: str, dim: int = FLAT, map: str = "block", readers: Sequence[str] | None = None) -> str:
        """The AllGather of slices of a Replicated value, for a reorder; for all its readers, or for `readers`."""
        chosen = {} if readers is None else {"readers": list(readers)}
        return self._apply("slice_intro", x=x, dim=dim, map=map, **chosen).made[1]

    def as_slice(self, t: str) -> None:
        """The caller keeps slices of an input instead of all of it."""
        self._apply("as_slice", t=t)

    def dead(self, ag: str) -> None:
        """Remove a gather that no op reads."""
        self._apply("dead", ag=ag)

    def fuse(self, members: Sequence[str], policy: str, name: str | None = None) -> str:
        """Several stages as one kernel."""
        return self._apply("fuse", members=list(members), policy=policy, **({"name": name} if name else {})).made[0]

    def overlap(self, members: Sequence[str], name: str | None = None) -> str:
        """A chain of stages, each of which starts on what the one before has finished."""
        return self._apply("overlap", members=list(members), **({"name": name} if name else {})).made[0]

    def _apply(self, transform: str, **arguments: object) -> Rewrite:
        call = TransformCall(transform=transform, arguments=arguments)
        made = apply(self.program, call)
        self.program, self.calls = made.program, (*self.calls, call)
        return made
