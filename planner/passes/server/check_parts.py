"""What each part carries in an exchange, counted again for the checker.

Rates are bytes per second, so a load takes ceil(load * 10^9 / rate) ns; work of cores is in ns per MiB.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from treadle.planner.passes.server.check_map import CoreShare, Finding, core_shares
from treadle.planner.passes.server.decisions import PartLoad, ServerDecisions
from treadle.planner.passes.server.problem import STATES

MEBIBYTE, SECOND, MILLION = 1 << 20, 10**9, 10**6


@dataclass(frozen=True)
class Crowd:
    """The workers of all servers; with policy worker-by-interface the interface of each."""

    workers: int
    interfaces: tuple[int, ...] = ()


class CountedParts:
    """The parts of a plan whose map is free of findings, for the workers of the plan or another crowd of them."""

    def __init__(self, decisions: ServerDecisions, crowd: Crowd | None = None) -> None:
        self.decisions, self.problem = decisions, decisions.problem
        self.crowd = crowd or Crowd(self.problem.workers, decisions.worker_interfaces)
        self.model = self.problem.bytes
        self.servers = range(self.problem.servers)
        self.in_rack = self.crowd.workers // self.problem.racks
        self.local = self.in_rack if decisions.two_level else self.crowd.workers
        """Workers that send their gradients to one server."""
        self.hosted = int(self.problem.mode in ("cc", "cs"))
        """Those of them that run on its machine."""

    @cached_property
    def shares(self) -> list[list[CoreShare]]:
        return core_shares(self.decisions)

    @cached_property
    def handled(self) -> list[int]:
        """Bytes of each server."""
        return [sum(share.bytes for share in server) for server in self.shares]

    def of_server(self, server: int, across: bool = True) -> list[PartLoad]:
        """Interfaces, slots, bridge, memory and cores of one server; `across`: with what passes between racks in the
        second level."""
        machine, parts = self.problem.machine, [*self._cards(server, across)]
        if machine.memory_rate is not None:
            parts.append(carried("memory", self._memory(server), machine.memory_rate))
        for slot, share in zip(self.decisions.slots, self.shares[server], strict=False):
            parts.append(PartLoad(part=f"core {slot.domain}.{slot.core}", time_ns=self._core(share)))
        return parts

    def of_workers(self) -> list[PartLoad]:
        """The link and the core of a worker."""
        problem, parts = self.problem, []
        if problem.worker_rate is not None and problem.mode != "cs":
            parts.append(carried("worker link", self.model, problem.worker_rate))
        if self._worker_core():
            parts.append(PartLoad(part="worker core", time_ns=self._worker_core()))
        return parts

    def shared_cores(self) -> list[PartLoad]:
        """Cores of the one machine on which all of them run."""
        problem = self.problem
        if problem.shared_cores is None:
            return []
        work = sum(self._core(share) for server in self.shares for share in server)
        work += self.crowd.workers * self._worker_core()
        return [PartLoad(part="shared cores", time_ns=-(-work // problem.shared_cores))]

    def rack_link(self) -> list[PartLoad]:
        """The link of the rack that sends most: gradients of its workers, and values to those of other racks."""
        problem, model = self.problem, self.model
        if problem.racks == 1 or problem.core_rate is None:
            return []
        if self.decisions.two_level:
            return [carried("rack link", self.most_across(), problem.core_rate)]
        others = self.crowd.workers - self.in_rack
        sent = [self.in_rack * (model - own) + others * own for own in self.handled]
        return [carried("rack link", max(sent), problem.core_rate)]

    def computation(self) -> list[PartLoad]:
        return [PartLoad(part="computation", time_ns=self.problem.compute_ns)] if self.problem.compute_ns else []

    def listed(self) -> list[PartLoad]:
        """All that a plan states: the parts of the busiest server first."""
        slowest = [longest(self.of_server(server)) for server in self.servers]
        return [
            *self.of_server(slowest.index(max(slowest))),
            *self.of_workers(),
            *self.shared_cores(),
            *self.rack_link(),
            *self.computation(),
        ]

    def across(self, server: int) -> int:
        """What a server sends to those of other racks in the second level, in bytes: sums to the owners of chunks, and
        values of its own. As much arrives."""
        if not self.decisions.two_level:
            return 0
        owned = sum(share.owned_sums for share in self.shares[server])
        return sum(share.sums for share in self.shares[server]) - owned + (self.problem.racks - 1) * owned

    def most_across(self) -> int:
        return max(map(self.across, self.servers))

    def chunk_ns(self, chunk: int) -> int:
        """A core's time for one chunk of `chunk` bytes, without peers."""
        work, whole = self.problem.machine.work, chunk * self.local
        whole *= work.receive_ns_per_MB + work.add_ns_per_MB + work.send_ns_per_MB
        return -(-(whole + chunk * work.optimize_ns_per_MB) // MEBIBYTE) + self.local * work.message_ns

    def _cards(self, server: int, across: bool) -> Iterator[PartLoad]:
        machine, loads, crossing = self.problem.machine, *self._traffic(server)
        rest = 0
        if self.problem.mode == "cs":
            rest = -(-(self.model - self.handled[server]) // len(loads))
        if across and self.decisions.two_level:
            rest = -(-self.across(server) // len(loads))
        loads = [load + rest for load in loads]
        if self.problem.carrier != "shared":
            for interface, load in zip(machine.interfaces, loads, strict=True):
                yield carried(f"interface {interface.name}", load, interface.rate)
            for interface, load in zip(machine.interfaces, loads, strict=True):
                if interface.slot_rate is not None:
                    yield carried(f"slot {interface.name}", load, interface.slot_rate)
            if machine.bridge_rate is not None:
                yield carried("bridge", 2 * sum(loads) + crossing, machine.bridge_rate)
        if machine.between_rate is not None and crossing:
            yield carried("between domains", crossing, machine.between_rate)

    def _traffic(self, server: int) -> tuple[list[int], int]:
        """Bytes of remote workers on each interface in one direction; and those of both directions between domains,
        where the domains of a worker's interface and of a chunk's core differ."""
        interfaces = self.problem.machine.interfaces
        loads, here = [0] * len(interfaces), [0] * len(self.problem.machine.domains)
        for slot, share in zip(self.decisions.slots, self.shares[server], strict=False):
            here[slot.domain] += share.bytes
            if slot.interface is not None:
                loads[slot.interface] += (self.local - self.hosted) * share.bytes
        if self.decisions.policy == "key-by-interface":
            return loads, 0
        counts, own = self._remote_by_interface(server), self.handled[server]
        crossing = [
            2 * count * (own - here[interface.domain]) for interface, count in zip(interfaces, counts, strict=True)
        ]
        return [count * own for count in counts], sum(crossing)

    def _remote_by_interface(self, server: int) -> list[int]:
        first = server * self.in_rack if self.decisions.two_level else 0
        counts, host = [0] * len(self.problem.machine.interfaces), {"cc": 0, "cs": server}.get(self.problem.mode)
        for worker in range(first, first + self.local):
            counts[self.crowd.interfaces[worker]] += worker != host
        return counts

    def _memory(self, server: int) -> int:
        """Bytes that are read and written."""
        own, states = self.handled[server], STATES[self.problem.optimizer]
        gradients, bypass = self.local * own, self.decisions.aggregator == "bypass"
        if self.problem.carrier == "shared":
            return (5 if bypass else 3) * gradients + (2 + 2 * states) * own
        if bypass:
            return 5 * gradients + (3 + 2 * states) * own
        return -(-gradients * (2 * MILLION + self.problem.machine.cached_extra_ppm) // MILLION)

    def _core(self, share: CoreShare) -> int:
        """Receives, adds, optimizes what it owns, sends; with two levels it exchanges sums with its peers as well."""
        work = self.problem.machine.work
        passed, add = work.receive_ns_per_MB + work.send_ns_per_MB, work.add_ns_per_MB
        whole = share.bytes * self.local * (passed + add) + share.owned_bytes * work.optimize_ns_per_MB
        if self.decisions.two_level:
            whole += (share.sums - share.owned_sums) * passed
            whole += (self.problem.racks - 1) * share.owned_sums * (passed + add)
        return -(-whole // MEBIBYTE) + self.local * share.chunks * work.message_ns

    def _worker_core(self) -> int:
        return -(-self.model * self.problem.machine.work.worker_ns_per_MB // MEBIBYTE)


def carried(part: str, load: int, rate: int) -> PartLoad:
    """A part of which load and rate are known."""
    return PartLoad(part=part, time_ns=time_of(load, rate), load=load, rate=rate)


def time_of(load: int, rate: int) -> int:
    return -(-load * SECOND // rate)


def longest(parts: list[PartLoad]) -> int:
    """The longest time, in ns."""
    return max((part.time_ns for part in parts), default=0)


def part_findings(decisions: ServerDecisions, counted: CountedParts) -> Iterator[Finding]:
    """Parts that are missing, out of order, or carry something else."""
    expected = counted.listed()
    if [part.part for part in decisions.parts] != [part.part for part in expected]:
        seen = ", ".join(part.part for part in decisions.parts) or "none"
        yield "$.decisions.parts", seen, ", ".join(part.part for part in expected)
        return
    for place, (part, wanted) in enumerate(zip(decisions.parts, expected, strict=True)):
        for field in ("load", "rate", "time_ns"):
            seen, right = getattr(part, field), getattr(wanted, field)
            if seen != right:
                yield f"$.decisions.parts[{place}].{field}", shown(seen), f"{shown(right)} of {part.part}"


def shown(value: object) -> object:
    return "none" if value is None else value
