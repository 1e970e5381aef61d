"""Local search over balanced placements: sets of machines in which two machines change places.

A state is a list of as many sets as machines, each machine in as many as a set has machines; a machine of one set that
changes places with one of another keeps that. Simulated annealing makes few distinct sets, and few that are all in one
failure domain or in two; of the states that it passes the one that survives most is kept.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from treadle.planner.passes.checkpoint.survival import by_unions, kept_domains
from treadle.planner.search.clock import Expired

STEPS = 1500
"""For each machine."""
HOT, COLD = 1.0, 0.15
"""Temperatures, in distinct sets."""
MOST_COUNTED = 400
"""States whose survivals are counted."""

Kept = tuple[int, ...]
"""Sets that are not fatal: of failure domains, 1 and 2, and of machines, copies to copies + 2."""


def span_cost(span: Collection[int]) -> float:
    """What a set in these failure domains costs, in distinct sets: one domain, or two, are fatal."""
    return {1: 8.0, 2: 2.0}.get(len(span), 0.0)


@dataclass
class _State:
    """domains: of each machine, none if there are none. outside: what sets of other machines span."""

    sets: list[frozenset[int]]
    domains: Sequence[int]
    outside: Collection[frozenset[int]]
    equal: Counter[frozenset[int]] = field(default_factory=Counter)
    spanned: Counter[frozenset[int]] = field(default_factory=Counter)
    cost: float = 0.0

    def __post_init__(self) -> None:
        for chosen in self.sets:
            self._count(chosen, 1)

    def exchange(self, places: tuple[int, int], machines: tuple[int, int]) -> None:
        """The sets at `places` exchange `machines`, the first of which is in the first set only."""
        for place, given, taken in zip(places, machines, reversed(machines), strict=True):
            self._count(self.sets[place], -1)
            self.sets[place] = self.sets[place] - {given} | {taken}
            self._count(self.sets[place], 1)

    def _count(self, chosen: frozenset[int], change: int) -> None:
        before, self.equal[chosen] = self.equal[chosen], self.equal[chosen] + change
        if bool(before) == bool(self.equal[chosen]):
            return
        self.cost += change
        if self.domains:
            span = self._span(chosen)
            before, self.spanned[span] = self.spanned[span], self.spanned[span] + change
            if bool(before) != bool(self.spanned[span]) and span not in self.outside:
                self.cost += change * span_cost(span)

    def _span(self, chosen: frozenset[int]) -> frozenset[int]:
        return frozenset(self.domains[machine] for machine in chosen)

    def kept(self) -> Kept:
        """Larger is better; with as many sets fewer distinct ones are more that are kept."""
        distinct = {chosen for chosen, count in self.equal.items() if count}
        copies = len(self.sets[0])
        machines = by_unions(distinct, len(self.sets), min(copies + 2, len(self.sets)))
        machines = machines or [-len(distinct)] * (copies + 1)
        if not self.domains:
            return tuple(machines[copies:])
        spans = {*self.outside, *map(self._span, distinct)}
        return (*kept_domains(spans, len(set(self.domains)))[1:], *machines[copies:])


def annealed(
    sets: Sequence[frozenset[int]],
    domains: Sequence[int],
    outside: Collection[frozenset[int]],
    seed: int,
    expired: Expired,
) -> list[frozenset[int]]:
    """Sets that survive at least as much as `sets`. domains: as those of a _State, whose `outside` is the same."""
    chance = random.Random(seed)
    state = _State(list(sets), domains, outside)
    best, most, least, counted = list(sets), state.kept(), state.cost, 0
    steps = STEPS * len(sets)
    for step in range(steps):
        if expired():
            break
        places = chance.randrange(len(sets)), chance.randrange(len(sets))
        first, second = (state.sets[place] for place in places)
        if first == second:
            continue
        machines = chance.choice(sorted(first - second)), chance.choice(sorted(second - first))
        before = state.cost
        state.exchange(places, machines)
        worse = state.cost - before
        if worse > 0 and chance.random() >= math.exp(-worse / (HOT * (COLD / HOT) ** (step / steps))):
            state.exchange(places, machines[::-1])
        elif state.cost <= least and counted < MOST_COUNTED:
            counted += 1
            least = state.cost
            if (kept := state.kept()) > most:
                best, most = list(state.sets), kept
    return best
