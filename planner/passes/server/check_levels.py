"""How evenly bytes are spread, counted again for the checker: at every level and within every parent.

A parent's fullest bin may have no more than it has when its chunks are given out longest first, each to the bin that
is then fullest least (Graham, "Bounds on Multiprocessing Timing Anomalies").
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm

from treadle.planner.passes.server.check_map import Finding
from treadle.planner.passes.server.decisions import CoreSlot, ServerDecisions

TRIED = 20_000
"""Steps of the search for a better spread of one parent."""
SEARCHED = 200
"""The most chunks of a parent that it begins with."""


@dataclass(frozen=True)
class Parent:
    """The bins of one parent: rates as weights, bytes of each, and how many chunks of which size they hold."""

    name: str
    weights: tuple[int, ...]
    loads: tuple[int, ...]
    sizes: Counter[int]

    @property
    def fullest(self) -> int:
        return self._scaled(self.loads)

    @property
    def uneven(self) -> Fraction:
        total = sum(self.loads)
        return Fraction(self.fullest * len(self.loads), total) if total else Fraction(0)

    def longest_first(self) -> int:
        """The fullest bin of the greedy division."""
        return self._scaled(_greedy(self.sizes, self.weights))

    def better(self) -> bool:
        """Whether a search of few steps finds a spread whose fullest bin has less."""
        most = (self.fullest - 1) * len(self.weights)
        room = [most * weight // sum(self.weights) for weight in self.weights]
        sizes = sorted(self.sizes.elements(), reverse=True)
        return len(sizes) <= SEARCHED and sum(room) >= sum(sizes) and _fits(sizes, room, [TRIED])

    def _scaled(self, loads: Sequence[int]) -> int:
        """The fullest bin, scaled to an even weight."""
        total, bins = sum(self.weights), len(self.weights)
        return max(-(-load * total // (weight * bins)) for load, weight in zip(loads, self.weights, strict=True))


def level_findings(decisions: ServerDecisions) -> Iterator[Finding]:
    """Levels that are missing or have other figures than their worst parent."""
    levels = _levels(decisions)
    if [each.level for each in decisions.levels] != [*levels]:
        seen = ", ".join(each.level for each in decisions.levels)
        yield "$.decisions.levels", seen or "none", ", ".join(levels)
        return
    for place, (stated, parents) in enumerate(zip(decisions.levels, levels.values(), strict=True)):
        path, worst = f"$.decisions.levels[{place}]", max(parents, key=lambda parent: parent.uneven)
        figures = {"bins": len(worst.loads), "most_bytes": worst.fullest, "total_bytes": sum(worst.loads)}
        wrong = {name: right for name, right in figures.items() if getattr(stated, name) != right}
        for name, right in wrong.items():
            yield f"{path}.{name}", getattr(stated, name), f"{right}, of {worst.name}"
        if stated.optimal and not wrong and worst.better():
            yield f"{path}.optimal", "true", f"false, since {worst.name} can be spread with less in its fullest bin"


def greedy_findings(decisions: ServerDecisions) -> Iterator[Finding]:
    """Parents whose fullest bin has more than that of the greedy division."""
    for place, (level, parents) in enumerate(_levels(decisions).items()):
        for parent in parents:
            if parent.fullest > (greedy := parent.longest_first()):
                yield (
                    f"$.decisions.levels[{place}]",
                    f"{parent.fullest} bytes in the fullest {level} of {parent.name}",
                    f"at most {greedy}, as with the longest first",
                )


def _levels(decisions: ServerDecisions) -> dict[str, list[Parent]]:
    """The parents of each level. Chunks count at the server that owns them."""
    held, slots, machine = _held(decisions), decisions.slots, decisions.problem.machine
    rates = [interface.rate for interface in machine.interfaces]
    domains = sorted({interface.domain for interface in machine.interfaces})
    of_domain = {
        domain: [number for number, each in enumerate(machine.interfaces) if each.domain == domain]
        for domain in domains
    }

    def weights(name: str, parent: tuple[int, ...], group: Sequence[int]) -> dict[int, int]:
        if name == "server":
            return dict.fromkeys(range(decisions.problem.servers), 1)
        if name == "domain":
            return {domain: sum(rates[each] for each in of_domain[domain]) for domain in domains}
        if name == "interface":
            return {each: rates[each] for each in of_domain[parent[1]]}
        return {slots[each].core: 1 for each in group}

    names = ["server", "domain", "interface", "core"]
    if decisions.policy == "worker-by-interface":
        names.remove("interface")
    found: dict[str, list[Parent]] = {}
    for depth, name in enumerate(names):
        groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for number, slot in enumerate(slots):
            groups[_path(slot)[:depth]].append(number)
        found[name] = [
            _parent(parent, weights(name, parent, group), [(_path(slots[each])[depth], held[each]) for each in group])
            for parent, group in sorted(groups.items())
        ]
    return found


def _path(slot: CoreSlot) -> tuple[int, ...]:
    """The bins that a slot lies in, level by level."""
    interface = () if slot.interface is None else (slot.interface,)
    return (slot.server, slot.domain, *interface, slot.core)


def _parent(path: tuple[int, ...], weights: dict[int, int], cores: list[tuple[int, Counter[int]]]) -> Parent:
    """weights: of the bins, by their numbers; cores: the bin of each core, and the sizes of its chunks."""
    loads, sizes = dict.fromkeys(weights, 0), Counter[int]()
    for place, held in cores:
        sizes.update(held)
        loads[place] += sum(size * count for size, count in held.items())
    words = [f"{word} {number}" for word, number in zip(("server", "domain", "interface"), path, strict=False)]
    return Parent(", ".join(words) or "the model", tuple(weights.values()), tuple(loads.values()), sizes)


def _held(decisions: ServerDecisions) -> list[Counter[int]]:
    """How many chunks of which size are placed on each slot."""
    held = [Counter[int]() for _ in decisions.slots]
    for key, places in zip(decisions.problem.keys, decisions.places, strict=True):
        for slot, count in Counter(places[:-1]).items():
            held[slot][decisions.chunk_bytes] += count
        held[places[-1]][key.bytes - decisions.chunk_bytes * (len(places) - 1)] += 1
    return held


def _greedy(sizes: Counter[int], weights: Sequence[int]) -> list[int]:
    """The bytes of each bin, the longest chunks first, each to the bin with the least load for its weight then."""
    ordered = sorted(sizes.items(), reverse=True)
    if len(set(weights)) == 1:
        bins = [0] * len(weights)
        for size, count in ordered:
            for _ in range(count):
                heapq.heapreplace(bins, bins[0] + size)
        return bins
    shared = lcm(*weights)
    costs, loads = [shared // weight for weight in weights], [0] * len(weights)
    for size, count in ordered:
        for _ in range(count):
            after = [(load + size) * cost for load, cost in zip(loads, costs, strict=True)]
            loads[after.index(min(after))] += size
    return loads


def _fits(sizes: Sequence[int], room: list[int], steps: list[int]) -> bool:
    """Whether a search of limited steps finds a place for all sizes, largest first, in bins with this room."""
    if not sizes:
        return True
    tried = set[int]()
    for place, left in enumerate(room):
        if left < sizes[0] or left in tried:
            continue
        if not steps[0]:
            return False
        steps[0] -= 1
        tried.add(left)
        room[place] -= sizes[0]
        if _fits(sizes[1:], room, steps):
            return True
        room[place] += sizes[0]
    return False
