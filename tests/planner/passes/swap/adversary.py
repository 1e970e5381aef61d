"""A machine that runs a swap plan as badly as it may: an oracle for the checker.

A node starts once all in its `after` have ended. Which one starts or ends next is up to the adversary: each start and
each end has a random rank, and of those that may happen the one of the highest rank does, so that single steps are put
off as long as can be. Any number run at the same time. Memory holds words (tensor, version);
an operator or copy reads its sources when it starts and again when it ends, and writes garbage to its places when it
starts and the right words when it ends.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from treadle.planner.passes.swap.decisions import SwapDecisions
from treadle.planner.passes.swap.problem import ON_HOST, PERSISTENT

Word = tuple[int, int]


class Wrong(Exception):
    """What went wrong, in one line."""


def run(decisions: SwapDecisions, rng: random.Random, iterations: int = 2) -> None:
    """Run some iterations; raises Wrong where a reader finds something else than the newest value of its tensor, and
    where two tensors are in one place."""
    _Machine(decisions, rng).run(iterations)


def survives(decisions: SwapDecisions, rng: random.Random, runs: int) -> bool:
    """Whether nothing goes wrong in this many runs."""
    try:
        for _ in range(runs):
            run(decisions, rng)
    except Wrong:
        return False
    return True


class _Machine:
    def __init__(self, decisions: SwapDecisions, rng: random.Random) -> None:
        self.decisions, self.problem, self.rng = decisions, decisions.problem, rng
        self.tensors = self.problem.tensors
        self.newest = [0] * len(self.tensors)
        self.host: dict[int, Word] = {t: (t, 0) for t, found in enumerate(self.tensors) if found.role in ON_HOST}
        self.device: dict[int, Word] = {}  # of every byte; with allocator bytes a place of its own for each stay
        self.place: dict[int, int] = {}
        self.fresh = 0
        self.level = 0

    def size(self, tensor: int) -> int:
        return self.tensors[tensor].bytes

    def run(self, iterations: int) -> None:
        for resident in self.decisions.initial:
            self.settle(resident.tensor, resident.at)
            self.fill(resident.tensor, (resident.tensor, 0))
        for _ in range(iterations):
            self.iteration()
            self.between()

    def settle(self, tensor: int, at: int) -> None:
        """Give a tensor a place."""
        if self.decisions.allocator == "bytes":
            at, self.fresh = self.fresh, self.fresh + self.size(tensor)
            self.level += self.size(tensor)
            if self.level > self.problem.arena_bytes:
                raise Wrong(f"{self.level} bytes in use")
        for other, there in self.place.items():
            if self.size(tensor) and at < there + self.size(other) and there < at + self.size(tensor):
                raise Wrong(f"{self.tensors[tensor].id} takes the place of {self.tensors[other].id}")
        self.place[tensor] = at

    def leave(self, tensor: int) -> None:
        if self.place.pop(tensor, None) is None:
            raise Wrong(f"{self.tensors[tensor].id} leaves and is not there")
        if self.decisions.allocator == "bytes":
            self.level -= self.size(tensor)

    def fill(self, tensor: int, word: Word) -> None:
        at = self.place[tensor]
        for byte in range(at, at + self.size(tensor)):
            self.device[byte] = word

    def require(self, tensor: int) -> None:
        """All bytes of the tensor's place hold its newest value."""
        if not self.size(tensor):
            return
        if tensor not in self.place:
            raise Wrong(f"{self.tensors[tensor].id} is not there")
        at = self.place[tensor]
        if {self.device.get(byte) for byte in range(at, at + self.size(tensor))} != {(tensor, self.newest[tensor])}:
            raise Wrong(f"{self.tensors[tensor].id} is overwritten or stale")

    def iteration(self) -> None:
        nodes = self.decisions.nodes
        waiting = [len(set(node.after)) for node in nodes]
        followers: list[list[int]] = [[] for _ in nodes]
        for at, node in enumerate(nodes):
            for before in set(node.after):
                followers[before].append(at)
        uses = [0] * len(self.tensors)
        for op in self.problem.ops:
            for tensor in op.inputs:
                uses[tensor] += 1
        starts = [self.rng.random() for _ in nodes]
        ends = [self.rng.random() for _ in nodes]
        ready = {at for at, count in enumerate(waiting) if not count}
        running: dict[int, Callable[[], None]] = {}
        while ready or running:
            first = max(ready, key=lambda at: starts[at], default=None)
            last = max(running, key=lambda at: ends[at], default=None)
            if last is None or (first is not None and starts[first] > ends[last]):
                assert first is not None
                ready.remove(first)
                running[first] = self.start(first, uses)
                continue
            running.pop(last)()
            for follower in followers[last]:
                waiting[follower] -= 1
                if not waiting[follower]:
                    ready.add(follower)

    def start(self, at: int, uses: list[int]) -> Callable[[], None]:
        node = self.decisions.nodes[at]
        if node.kind == "compute":
            return self.compute(at, uses)
        if not self.size(node.item):
            return lambda: None
        return {"in": self.copy_in, "out": self.copy_out, "drop": self.drop}[node.kind](at)

    def compute(self, at: int, uses: list[int]) -> Callable[[], None]:
        node = self.decisions.nodes[at]
        op = self.problem.ops[node.item]
        for tensor in op.inputs:
            self.require(tensor)
        for tensor, address in zip(op.outputs, node.at or (0,) * len(op.outputs), strict=True):
            self.newest[tensor] += 1
            self.settle(tensor, address)
            self.fill(tensor, (tensor, -1))
        places = {tensor: self.place.get(tensor) for tensor in op.inputs}

        def end() -> None:
            for tensor in op.inputs:
                if self.place.get(tensor) != places[tensor]:
                    raise Wrong(f"{self.tensors[tensor].id} moves while it is used")
                self.require(tensor)
                uses[tensor] -= 1
                if tensor in op.writes and self.size(tensor):
                    self.newest[tensor] += 1
                    self.fill(tensor, (tensor, self.newest[tensor]))
            for tensor in op.outputs:
                if self.place.get(tensor) is None or any(
                    self.device[byte] != (tensor, -1)
                    for byte in range(self.place[tensor], self.place[tensor] + self.size(tensor))
                ):
                    raise Wrong(f"{self.tensors[tensor].id} is overwritten while it is made")
                self.fill(tensor, (tensor, self.newest[tensor]))
            for tensor in (*op.inputs, *op.outputs):
                if not uses[tensor] and not self.tensors[tensor].kept and tensor in self.place:
                    self.leave(tensor)

        return end

    def copy_in(self, at: int) -> Callable[[], None]:
        node = self.decisions.nodes[at]
        tensor = node.item
        if tensor in self.place:
            raise Wrong(f"{self.tensors[tensor].id} comes in twice")
        if self.host.get(tensor) != (tensor, self.newest[tensor]):
            raise Wrong(f"the host copy of {self.tensors[tensor].id} is stale")
        self.settle(tensor, (*node.at, 0)[0])
        self.fill(tensor, (tensor, -1))

        def end() -> None:
            if self.host.get(tensor) != (tensor, self.newest[tensor]) or tensor not in self.place:
                raise Wrong(f"{self.tensors[tensor].id} changes while it is copied in")
            at = self.place[tensor]
            if any(self.device[byte] != (tensor, -1) for byte in range(at, at + self.size(tensor))):
                raise Wrong(f"{self.tensors[tensor].id} is overwritten while it is copied in")
            self.fill(tensor, (tensor, self.newest[tensor]))

        return end

    def copy_out(self, at: int) -> Callable[[], None]:
        node = self.decisions.nodes[at]
        tensor = node.item
        self.require(tensor)
        self.host[tensor] = (tensor, -1)
        version, place = self.newest[tensor], self.place.get(tensor)

        def end() -> None:
            self.require(tensor)
            if self.newest[tensor] != version or self.place[tensor] != place:
                raise Wrong(f"{self.tensors[tensor].id} changes while it is copied out")
            self.host[tensor] = (tensor, version)
            if not node.early:
                self.leave(tensor)

        return end

    def drop(self, at: int) -> Callable[[], None]:
        self.leave(self.decisions.nodes[at].item)
        return lambda: None

    def between(self) -> None:
        """What an iteration must leave behind; then the final residents take the places of the initial ones."""
        for tensor, found in enumerate(self.tensors):
            here = tensor in self.place
            if found.kept and found.bytes:
                if here:
                    self.require(tensor)
                elif self.host.get(tensor) != (tensor, self.newest[tensor]):
                    raise Wrong(f"{found.id} is lost")
        final = {resident.tensor: resident.at for resident in self.decisions.final if self.size(resident.tensor)}
        for tensor in [t for t in self.place if self.tensors[t].role not in PERSISTENT]:
            self.leave(tensor)
        if set(self.place) != set(final):
            raise Wrong("the iteration does not end with the final residents")
        for tensor in sorted(final):
            if self.decisions.allocator != "bytes" and self.place[tensor] != final[tensor]:
                raise Wrong(f"{self.tensors[tensor].id} ends elsewhere")
        for tensor in sorted(final):
            self.leave(tensor)
        for resident in self.decisions.initial:
            if self.size(resident.tensor):
                self.settle(resident.tensor, resident.at)
                self.fill(resident.tensor, (resident.tensor, self.newest[resident.tensor]))
