"""The device as a peer's runtime fills it, operator by operator, and the nodes of that plan."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from msgspec import structs

from benchmarks.swap.peers.memory import Buddy, Bytes, Room
from treadle.planner.passes.swap.decisions import Allocator, Resident, SwapDecisions, SwapNode
from treadle.planner.passes.swap.problem import PERSISTENT, SwapProblem
from treadle.planner.passes.swap.timeline_of import MEMORY, start_bytes, tasks_of
from treadle.planner.timeline.simulator import simulate


@dataclass
class Stay:
    """A tensor on the device: its range of memory, the nodes that its eviction depends on, and its last use."""

    room: Room
    nodes: set[int] = field(default_factory=set)
    touched: int = -1


class Device:
    """Operators run in the problem's order. A tensor of 0 bytes is always resident. `touched` counts operators."""

    def __init__(self, problem: SwapProblem, memory: Bytes | Buddy) -> None:
        self.problem = problem
        self.memory = memory
        self.here: dict[int, Stay] = {}
        self.initial: dict[int, int] = {}
        self.nodes: list[SwapNode] = []
        self.computes: list[int] = []
        """Nodes of the operators that have run."""
        self.uses = [0] * len(problem.tensors)
        """Remaining reads of each tensor."""
        for op in problem.ops:
            for tensor in op.inputs:
                self.uses[tensor] += 1
        self.valid = [tensor.role in (*PERSISTENT, "input") for tensor in problem.tensors]
        self.left: dict[int, int] = {}
        """The node of each tensor's last eviction."""
        self.level = self.peak = 0

    def start(self, tensors: Iterable[int]) -> bool:
        """Persistent tensors on the device when the iteration begins; False without room for all."""
        written = {tensor for op in self.problem.ops for tensor in op.writes}
        for tensor in tensors:
            if self.problem.tensors[tensor].bytes:
                stay = self._take(tensor)
                if stay is None:
                    return False
                self.here[tensor] = stay
                self.initial[tensor] = stay.room.address
                self.valid[tensor] = tensor not in written
        return True

    def bring(self, tensor: int, serves: int, after: Iterable[int] = ()) -> bool:
        """Copies a tensor in, unless it is resident; False without room for it."""
        if tensor in self.here or not self.problem.tensors[tensor].bytes:
            return True
        stay = self._take(tensor)
        if stay is None:
            return False
        before = {self.left[tensor]} if tensor in self.left else set()
        stay.nodes = {self._node("in", tensor, serves, {*after, *stay.room.after, *before}, (stay.room.address,))}
        stay.touched = len(self.computes)
        self.here[tensor] = stay
        return True

    def leave(self, tensor: int, serves: int, after: Iterable[int] = ()) -> int:
        """Evicts a tensor, with a copy out if the host needs its value. Returns the node."""
        stay = self.here.pop(tensor)
        record = self.problem.tensors[tensor]
        copied = not self.valid[tensor] and bool(self.uses[tensor] or record.kept)
        node = self._node("out" if copied else "drop", tensor, serves, {*after, *stay.nodes})
        self.valid[tensor] |= copied
        self.left[tensor] = node
        self._give(tensor, stay, node)
        return node

    def run(self, op: int, after: Iterable[int] = ()) -> bool:
        """Runs an operator, whose inputs are resident, and frees tensors without later readers; False without room for
        its results."""
        record = self.problem.ops[op]
        waits = {*after, *self.computes[-1:]}
        for tensor in record.outputs:
            if self.problem.tensors[tensor].bytes:
                stay = self._take(tensor)
                if stay is None:
                    return False
                self.here[tensor] = stay
                waits |= set(stay.room.after)
        used = [tensor for tensor in (*record.inputs, *record.outputs) if self.problem.tensors[tensor].bytes]
        for tensor in record.inputs:
            self.uses[tensor] -= 1
            if self.problem.tensors[tensor].bytes:
                waits |= self.here[tensor].nodes
        at = tuple(self.here[t].room.address if t in self.here else 0 for t in record.outputs)
        node = self._node("compute", op, len(self.computes), waits, at)
        for tensor in used:
            self.here[tensor].nodes = {node}
            self.here[tensor].touched = len(self.computes)
        for tensor in record.writes:
            self.valid[tensor] = False
        self.computes.append(node)
        for tensor in used:
            found = self.problem.tensors[tensor]
            if not self.uses[tensor] and not found.kept and found.role not in PERSISTENT:
                self._give(tensor, self.here.pop(tensor), node)
        return True

    def finish(self, allocator: Allocator) -> SwapDecisions:
        """The plan, after all operators. Persistent tensors that were not resident at the start are evicted; the
        initial ones are at their addresses again."""
        end = len(self.problem.ops)
        for tensor in sorted(self.here):
            if self.problem.tensors[tensor].role in PERSISTENT and tensor not in self.initial:
                self.leave(tensor, end)
        residents = tuple(Resident(tensor=tensor, at=at) for tensor, at in sorted(self.initial.items()))
        moved = {
            kind: sum(self.problem.tensors[node.item].bytes for node in self.nodes if node.kind == kind)
            for kind in ("in", "out")
        }
        bare = SwapDecisions(
            problem=self.problem,
            allocator=allocator,
            order=tuple(range(end)),
            initial=residents,
            final=residents,
            nodes=tuple(self.nodes),
            time_ns=0,
            idle_ns=0,
            in_bytes=moved["in"],
            out_bytes=moved["out"],
            peak_bytes=0,
        )
        schedule = simulate(*tasks_of(bare), start_bytes(bare))
        return structs.replace(
            bare,
            time_ns=schedule.makespan,
            idle_ns=schedule.makespan - self.problem.ideal_ns,
            peak_bytes=schedule.peak.get(MEMORY, 0),
        )

    def _take(self, tensor: int) -> Stay | None:
        count = self.problem.tensors[tensor].bytes
        room = self.memory.take(count)
        if room is None:
            return None
        self.level += count
        self.peak = max(self.peak, self.level)
        return Stay(room)

    def _give(self, tensor: int, stay: Stay, node: int) -> None:
        count = self.problem.tensors[tensor].bytes
        self.level -= count
        self.memory.give(stay.room, count, node)

    def _node(
        self,
        kind: Literal["compute", "in", "out", "drop"],
        item: int,
        serves: int,
        after: Iterable[int],
        at: tuple[int, ...] = (),
    ) -> int:
        node = SwapNode(kind=kind, item=item, serves=serves, after=tuple(sorted(set(after))), at=at)
        self.nodes.append(node)
        return len(self.nodes) - 1
