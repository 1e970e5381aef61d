"""The chunk map: every chunk to a server, a domain, an interface and a core, level by level.

Key by interface: cores of an interface handle the chunks that travel over it, for all workers. Worker by interface:
each worker has an interface, and its chunks go to any core of any domain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from treadle.planner.passes.server.chunking import Ints, KeyChunks
from treadle.planner.passes.server.decisions import CoreSlot, Level, LevelLoad, Policy
from treadle.planner.passes.server.partition import loads_of, spread
from treadle.planner.passes.server.problem import ServerMachine, ServerProblem
from treadle.planner.search.clock import Clock

MOST_PARENTS = 64
"""Servers, domains and interfaces up to which what each of them divides is searched exactly."""


@dataclass(frozen=True)
class ChunkMap:
    """`places` [chunks] is the slot of each chunk. `cut`: wall clock ended an exact search."""

    slots: tuple[CoreSlot, ...]
    places: Ints
    levels: tuple[LevelLoad, ...]
    cut: bool = False


def slots_of(problem: ServerProblem, policy: Policy) -> tuple[CoreSlot, ...]:
    """As many cores for each interface as the machine says, of its domain; in the order of servers and interfaces."""
    machine, found = problem.machine, []
    for server in range(problem.servers):
        taken = [0] * len(machine.domains)
        for place, interface in enumerate(machine.interfaces):
            for _ in range(machine.cores_per_interface):
                own = place if policy == "key-by-interface" else None
                core = taken[interface.domain]
                found.append(CoreSlot(server=server, domain=interface.domain, core=core, interface=own))
                taken[interface.domain] += 1
    return tuple(found)


def interfaces_in_turn(machine: ServerMachine) -> list[int]:
    """All interfaces, from each domain in turn."""
    of_domain = [
        [place for place, each in enumerate(machine.interfaces) if each.domain == domain]
        for domain in range(len(machine.domains))
    ]
    return [place for turn in zip_longest(*of_domain) for place in turn if place is not None]


def worker_interfaces(machine: ServerMachine, workers: int, policy: Policy) -> tuple[int, ...]:
    """The interface of each worker, all of them in turn; none where chunks choose it."""
    if policy == "key-by-interface":
        return ()
    order = interfaces_in_turn(machine)
    return tuple(order[worker % len(order)] for worker in range(workers))


class _Bins(NamedTuple):
    """Children of one node of the tree of a server's slots, with their rates; leaves are slots."""

    level: Level
    rates: tuple[int, ...]
    children: tuple[_Bins | int, ...]


def _tree(problem: ServerProblem, policy: Policy) -> _Bins:
    machine, each = problem.machine, problem.machine.cores_per_interface
    servers, ones = [], (1,) * each
    for server in range(problem.servers):
        first, domains, rates = server * len(machine.interfaces) * each, [], []
        for domain in range(len(machine.domains)):
            own = [place for place, found in enumerate(machine.interfaces) if found.domain == domain]
            if not own:
                continue
            cores = [tuple(range(first + place * each, first + (place + 1) * each)) for place in own]
            speeds = tuple(machine.interfaces[place].rate for place in own)
            rates.append(sum(speeds))
            if policy == "key-by-interface":
                domains.append(_Bins("interface", speeds, tuple(_Bins("core", ones, slots) for slots in cores)))
            else:
                domains.append(
                    _Bins("core", (1,) * (len(own) * each), tuple(slot for slots in cores for slot in slots))
                )
        servers.append(_Bins("domain", tuple(rates), tuple(domains)))
    return _Bins("server", (1,) * problem.servers, tuple(servers))


def mapped(problem: ServerProblem, chunks: KeyChunks, policy: Policy, clock: Clock | None = None) -> ChunkMap:
    """All chunks on cores, evenly at every level; with a `clock` exactly so where there are few parents and chunks."""
    places, loads, cuts = np.zeros(len(chunks.bytes), dtype=np.int64), [], []

    parents = 1 + problem.servers * (1 + len(problem.machine.domains) + len(problem.machine.interfaces))
    exact = clock if parents <= MOST_PARENTS else None

    def divide(node: _Bins, members: Ints) -> None:
        found = spread(chunks.bytes[members], node.rates, exact)
        cuts.append(found.cut)
        loads.append(level_load(node.level, node.rates, chunks.bytes[members], found.bins, found.optimal))
        for place, child in enumerate(node.children):
            own = members[found.bins == place] if len(node.children) > 1 else members
            if isinstance(child, int):
                places[own] = child
            else:
                divide(child, own)

    divide(_tree(problem, policy), np.arange(len(chunks.bytes)))
    return ChunkMap(slots_of(problem, policy), places, tuple(_worst(loads)), any(cuts))


def levels_of(problem: ServerProblem, chunks: KeyChunks, policy: Policy, places: Ints) -> tuple[LevelLoad, ...]:
    """How evenly a given map spreads chunks; it is not known whether it is optimal."""
    loads = []

    def measure(node: _Bins, members: Ints) -> None:
        slots = [_slots_below(child) for child in node.children]
        bins = np.full(len(members), -1, dtype=np.int64)
        for place, own in enumerate(slots):
            bins[np.isin(places[members], own)] = place
        loads.append(level_load(node.level, node.rates, chunks.bytes[members], bins, optimal=False))
        for place, child in enumerate(node.children):
            if not isinstance(child, int):
                measure(child, members[bins == place])

    measure(_tree(problem, policy), np.arange(len(chunks.bytes)))
    return tuple(_worst(loads))


def _slots_below(node: _Bins | int) -> list[int]:
    return [node] if isinstance(node, int) else [slot for child in node.children for slot in _slots_below(child)]


def level_load(level: Level, rates: Sequence[int], sizes: Ints, bins: Ints, optimal: bool) -> LevelLoad:
    """How evenly chunks are spread over the bins of one parent. With unequal rates the load of the bin that takes
    longest counts as much as it would in a bin of mean rate."""
    loads, total = loads_of(sizes, bins, len(rates)).tolist(), sum(rates)
    most = max(-(-load * total // (rate * len(rates))) for load, rate in zip(loads, rates, strict=True))
    return LevelLoad(level=level, bins=len(rates), most_bytes=most, total_bytes=sum(loads), optimal=optimal)


def unevenness(load: LevelLoad) -> Fraction:
    """The fullest bin as a multiple of the mean."""
    return Fraction(load.most_bytes * load.bins, load.total_bytes) if load.total_bytes else Fraction(0)


def _worst(loads: Sequence[LevelLoad]) -> Iterator[LevelLoad]:
    """For each level the parent where it is worst, the first of equal ones."""
    for level in ("server", "domain", "interface", "core"):
        own = [load for load in loads if load.level == level and load.total_bytes]
        if own:
            yield max(own, key=unevenness)
