"""The checker's walk over a plan: where each tensor is and when, and whether data is ever lost.

The nodes are walked in the plan's order. This covers every order in which a runtime may run them because each event of
a tensor must happen before the next: arrival, uses, departure, next arrival.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from treadle.planner.passes.swap.decisions import SwapDecisions
from treadle.planner.passes.swap.happens_before import HappensBefore
from treadle.planner.passes.swap.problem import PERSISTENT
from treadle.planner.passes.swap.timeline_of import label

START = -1
"""The node at which an initial resident arrives."""


@dataclass
class Residency:
    """A tensor at an address. It begins with node `begin`; `last` is the last node so far that uses it, `written` the
    last that writes it, `copied` the last early copy of it; `end` is the node with which it leaves, if any."""

    tensor: int
    at: int
    begin: int
    last: int
    written: int
    copied: int | None = None
    end: int | None = None
    stays: bool = False
    """The tensor stays on the device when the iteration has ended."""

    @property
    def leaves(self) -> int | None:
        """The node whose end frees its place; None for one that stays."""
        return None if self.stays else self.last if self.end is None else self.end


class Walk:
    """`findings` are complete when `run` has ended. A tensor of no bytes is always there."""

    def __init__(self, decisions: SwapDecisions, order: HappensBefore) -> None:
        self.decisions = decisions
        self.problem = decisions.problem
        self.order = order
        self.findings: list[str] = []
        self.residencies: list[Residency] = []
        self.here: dict[int, Residency] = {}
        self.departed: dict[int, Residency] = {}
        """The last residency of each tensor that is not on the device."""
        self.uses = [0] * len(self.problem.tensors)
        """Remaining reads of each tensor."""
        for op in self.problem.ops:
            for tensor in op.inputs:
                self.uses[tensor] += 1
        self.valid = self._valid_at_start()

    def run(self) -> None:
        for place, resident in enumerate(self.decisions.initial):
            self._start(f"initial[{place}]", resident.tensor, resident.at)
        for place, node in enumerate(self.decisions.nodes):
            if node.kind == "compute":
                self._compute(place, node.item, node.at)
            elif self.problem.tensors[node.item].bytes:
                leave = self._copy_early if node.early else self._leave
                {"in": self._in, "out": leave, "drop": leave}[node.kind](place, node.item)
        self.findings += self._end()

    def _valid_at_start(self) -> list[bool]:
        """Whether the host has each tensor's value when an iteration starts. It has that of an initial resident if the
        iteration before did not write it, or copied it out after the last write."""
        roles = [tensor.role for tensor in self.problem.tensors]
        valid = [role in PERSISTENT or role == "input" for role in roles]
        held = {resident.tensor for resident in self.decisions.initial}
        for node in self.decisions.nodes:
            if node.kind == "compute":
                for tensor in held.intersection(self.problem.ops[node.item].writes):
                    valid[tensor] = False
            elif node.kind == "out" and node.item in held:
                valid[node.item] = True
        return valid

    def _start(self, path: str, tensor: int, at: int) -> None:
        found = self.problem.tensors[tensor]
        if found.role not in PERSISTENT:
            self.findings.append(f"{path}: {found.role} {found.id} is no parameter and no state")
        elif tensor in self.here:
            self.findings.append(f"{path}: {found.id} a second time")
        elif found.bytes:
            self._arrive(tensor, at, START)

    def _arrive(self, tensor: int, at: int, node: int) -> None:
        residency = Residency(tensor, at, node, node, node)
        self.here[tensor] = residency
        self.residencies.append(residency)

    def _compute(self, place: int, item: int, at: tuple[int, ...]) -> None:
        op = self.problem.ops[item]
        for tensor in op.inputs:
            self.uses[tensor] -= 1
            if not self.problem.tensors[tensor].bytes:
                continue
            residency = self.here.get(tensor)
            if residency is None:
                self.findings.append(f"{self.node(place)} uses {self.name(tensor)}, which {self._whereabouts(tensor)}")
                continue
            self._require(residency.begin, place, f"uses {self.name(tensor)}, but does not wait for")
            residency.last = place
            if tensor in op.writes:
                self.valid[tensor] = False
                residency.written = place
                self._require_copied(place, residency, "writes")
        for tensor, address in zip(op.outputs, at or [0] * len(op.outputs), strict=True):
            if self.problem.tensors[tensor].bytes:
                self._arrive(tensor, address, place)

    def _in(self, place: int, tensor: int) -> None:
        if tensor in self.here:
            self.findings.append(f"{self.node(place)}, but {self.name(tensor)} is on the device already")
            return
        if not self.valid[tensor]:
            self.findings.append(f"{self.node(place)} reads the host, which {self._stale(tensor)}")
        before = self.departed.get(tensor)
        if before is not None:
            self._require(before.end, place, "does not wait for", f", by which {self.name(tensor)} left")
        self._arrive(tensor, (*self.decisions.nodes[place].at, 0)[0], place)

    def _copy_early(self, place: int, tensor: int) -> None:
        """Operators may still read the tensor, but not write it, during the copy."""
        residency = self.here.get(tensor)
        if residency is None:
            self.findings.append(f"{self.node(place)}, but {self.name(tensor)} {self._whereabouts(tensor)}")
            return
        self._require(residency.written, place, "does not wait for", f", which writes {self.name(tensor)}")
        self._require_copied(place, residency, "copies")
        residency.copied = place
        self.valid[tensor] = True

    def _require_copied(self, place: int, residency: Residency, does: str) -> None:
        """The early copy of the tensor has ended before `place`."""
        self._require(residency.copied, place, f"{does} {self.name(residency.tensor)}, but does not wait for")

    def _require(self, before: int | None, place: int, lacks: str, why: str = "") -> None:
        """Node `before`, if any, has ended before `place`; `lacks` and `why` state the finding around its name."""
        if before is not None and before != START and not self.order.before(before, place):
            self.findings.append(f"{self.node(place)} {lacks} {self.node(before)}{why}")

    def _leave(self, place: int, tensor: int) -> None:
        residency = self.here.pop(tensor, None)
        if residency is None:
            self.findings.append(f"{self.node(place)}, but {self.name(tensor)} {self._whereabouts(tensor)}")
            return
        residency.end = place
        self.departed[tensor] = residency
        self._require(residency.last, place, "does not wait for", f", the last to use {self.name(tensor)}")
        self._require_copied(place, residency, "gives up")
        if self.decisions.nodes[place].kind == "out":
            self.valid[tensor] = True
        elif not self.valid[tensor] and (self.uses[tensor] or self.problem.tensors[tensor].kept):
            self.findings.append(f"{self.node(place)} loses {self.name(tensor)}: the host {self._stale(tensor)}")

    def _end(self) -> Iterator[str]:
        final = {resident.tensor: resident.at for resident in self.decisions.final}
        initial = {resident.tensor for resident in self.decisions.initial}
        if len(final) < len(self.decisions.final):
            yield "final: a tensor twice"
        for tensor in sorted(final.keys() ^ initial):
            one, other = ("final", "initial") if tensor in final else ("initial", "final")
            yield f"{one}: {self.name(tensor)} is not in {other}, so the plan cannot run again"
        for tensor, found in enumerate(self.problem.tensors):
            residency = self.here.get(tensor)
            if residency is not None and (found.kept or tensor in final):
                residency.stays = True
            if not found.bytes:
                continue
            if residency is not None and residency.copied is not None and not residency.stays:
                yield f"{self.node(residency.copied)}, but no drop gives up the place of {found.id}"
            if tensor in final and residency is None:
                yield f"final: {found.id} {self._whereabouts(tensor)} when the iteration ends"
            elif tensor in final and residency is not None and residency.at != final[tensor]:
                yield f"final: {found.id} is at {residency.at} when the iteration ends, not at {final[tensor]}"
            elif found.role in PERSISTENT and tensor not in final and residency is not None:
                lost = "" if self.valid[tensor] else ", so that what was written to it is lost"
                yield f"final: {found.id} is on the device when the iteration ends and is not listed{lost}"

    def _stale(self, tensor: int) -> str:
        on_host = self.problem.tensors[tensor].role in (*PERSISTENT, "input")
        return f"has an old value of {self.name(tensor)}" if on_host else f"has no copy of {self.name(tensor)}"

    def _whereabouts(self, tensor: int) -> str:
        before = self.departed.get(tensor)
        if before is None or before.end is None:
            return "is not on the device"
        return f"is not on the device since {self.node(before.end)}"

    def node(self, place: int) -> str:
        return f"node {place} ({label(self.problem, self.decisions.nodes[place])})"

    def name(self, tensor: int) -> str:
        return self.problem.tensors[tensor].id
