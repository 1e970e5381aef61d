"""What prices are made of: bytes and chunks of each core, and who sends to whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from treadle.planner.passes.server.chunking import Ints, KeyChunks
from treadle.planner.passes.server.decisions import CoreSlot, Policy
from treadle.planner.passes.server.mapping import slots_of, worker_interfaces
from treadle.planner.passes.server.problem import Aggregator, ServerProblem


@dataclass(frozen=True)
class CoreLoad:
    """One core: bytes and chunks that it handles, and of those the float32 bytes of its own (`owned`) and of the chunks
    that the same core of another rack's server owns (`peers`). `updated`: bytes as they travel that it optimizes."""

    bytes: int
    chunks: int
    updated: int
    owned: int
    peers: int


@dataclass(frozen=True)
class ServerLayout:
    """A chunk map as its loads. `loads[s][p]` is core p of server s, in the order of slots."""

    problem: ServerProblem
    policy: Policy
    aggregator: Aggregator
    two_level: bool
    slots: tuple[CoreSlot, ...]
    loads: tuple[tuple[CoreLoad, ...], ...]
    longest: int
    """Bytes of the longest chunk."""
    workers: int
    """As in the problem, or another number that is asked about."""

    @property
    def cores(self) -> int:
        """Cores of one server."""
        return len(self.loads[0])

    @property
    def local(self) -> int:
        """Workers whose gradients a server adds up."""
        return self.workers // self.problem.racks if self.two_level else self.workers

    @property
    def remote(self) -> int:
        """Those of them that reach it through its interfaces."""
        return self.local - (self.problem.mode in ("cc", "cs"))

    @cached_property
    def model_bytes(self) -> int:
        """The whole model as it travels."""
        return self.problem.bytes

    @cached_property
    def bytes_of(self) -> tuple[int, ...]:
        """What each server handles."""
        return tuple(sum(load.bytes for load in loads) for loads in self.loads)

    @cached_property
    def worker_interfaces(self) -> tuple[int, ...]:
        return worker_interfaces(self.problem.machine, self.workers, self.policy)

    @cached_property
    def _calls(self) -> tuple[tuple[int, ...], ...]:
        """Workers of each group that shares its servers, by interface."""
        count, interfaces = len(self.problem.machine.interfaces), self.worker_interfaces
        groups = (interfaces[start : start + self.local] for start in range(0, self.workers, self.local))
        return tuple(tuple(np.bincount(group, minlength=count).tolist()) for group in groups)

    def callers(self, server: int) -> list[int]:
        """Remote workers of a server on each interface, where workers have one."""
        found = [*self._calls[server if self.two_level else 0]]
        at_home = {"cc": 0, "cs": server}.get(self.problem.mode, self.workers)
        if at_home < self.workers:
            found[self.worker_interfaces[at_home]] -= 1
        return found

    def crossing(self, server: int) -> int:
        """Bytes of a server that enter and leave by an interface of another domain than that of their core."""
        if self.policy == "key-by-interface":
            return 0
        machine, total = self.problem.machine, 0
        here = [0] * len(machine.domains)
        for slot, load in zip(self.slots, self.loads[server], strict=False):
            here[slot.domain] += load.bytes
        for interface, callers in zip(machine.interfaces, self.callers(server), strict=True):
            total += 2 * callers * (self.bytes_of[server] - here[interface.domain])
        return total

    def between_racks(self, server: int) -> int:
        """float32 bytes that a server sends to those of other racks, and receives from them: sums of chunks that they
        own, and new values of its own."""
        return sum(load.peers + (self.problem.racks - 1) * load.owned for load in self.loads[server])


def layout_of(
    problem: ServerProblem, chunks: KeyChunks, places: Ints, policy: Policy, aggregator: Aggregator, two_level: bool
) -> ServerLayout:
    """The loads of a chunk map `places` [chunks]."""
    slots = slots_of(problem, policy)
    each = len(slots) // problem.servers

    def summed(values: Ints) -> Sequence[Sequence[int]]:
        found = np.zeros(len(slots), dtype=np.int64)
        np.add.at(found, places, values)
        rows: list[list[int]] = found.reshape(problem.servers, each).tolist()
        return rows

    sent, sums, counts = summed(chunks.bytes), summed(chunks.sums), summed(np.ones_like(chunks.bytes))
    loads = []
    for server in range(problem.servers):
        row = []
        for core in range(each):
            all_sums = sum(other[core] for other in sums)
            row.append(CoreLoad(
                bytes=sum(other[core] for other in sent) if two_level else sent[server][core],
                chunks=sum(other[core] for other in counts) if two_level else counts[server][core],
                updated=sent[server][core],
                owned=sums[server][core] if two_level else 0,
                peers=all_sums - sums[server][core] if two_level else 0,
            ))  # fmt: skip
        loads.append(tuple(row))
    longest = int(chunks.bytes.max())
    return ServerLayout(problem, policy, aggregator, two_level, slots, tuple(loads), longest, problem.workers)
