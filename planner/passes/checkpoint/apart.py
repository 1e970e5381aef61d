"""Machines change places with others until no holder set is in fewer failure domains than it must."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence

from treadle.planner.passes.checkpoint.annealing import span_cost
from treadle.planner.search.clock import Expired

TRIES = 40_000
PARTNERS = 64
"""Machines that each machine of a bad set may change places with, at random."""


def put_apart(sets: Sequence[frozenset[int]], domains: Sequence[int], seed: int, expired: Expired) -> dict[int, int]:
    """Which machine takes the place of each in `sets`, so that fewer are all in one domain or in two."""
    return _Places(sets, domains).improved(random.Random(seed), expired)


class _Places:
    """sets: distinct. at[place]: the machine there; sets name places."""

    def __init__(self, sets: Iterable[frozenset[int]], domains: Sequence[int]) -> None:
        self.sets = sorted(set(sets), key=sorted)
        self.domains = domains
        self.at = list(range(len(domains)))
        self.sets_of: list[list[int]] = [[] for _ in domains]
        for number, places in enumerate(self.sets):
            for place in places:
                self.sets_of[place].append(number)
        self.widest = min(3, len(self.sets[0]), len(set(domains)))  # more domains than two cost nothing
        self.spans = [self._span(places) for places in self.sets]
        self.spanned = Counter(self.spans)

    def improved(self, chance: random.Random, expired: Expired) -> dict[int, int]:
        tries, found = 0, True
        while found:
            found = False
            for number, places in enumerate(self.sets):
                for place in sorted(places):
                    for _ in range(PARTNERS):
                        if len(self.spans[number]) >= self.widest:
                            break
                        if tries == TRIES or expired():
                            return dict(enumerate(self.at))
                        tries += 1
                        found |= self._helps(place, chance.randrange(len(self.at)))
        return dict(enumerate(self.at))

    def _helps(self, left: int, right: int) -> bool:
        """Exchange the machines of two places if that costs less."""
        if self.domains[self.at[left]] == self.domains[self.at[right]]:
            return False
        if self._exchange(left, right) < 0:
            return True
        self._exchange(left, right)
        return False

    def _exchange(self, left: int, right: int) -> float:
        """The change of what spans cost."""
        self.at[left], self.at[right] = self.at[right], self.at[left]
        change = 0.0
        for number in sorted({*self.sets_of[left], *self.sets_of[right]}):
            old, new = self.spans[number], self._span(self.sets[number])
            for span, step in ((old, -1), (new, 1)):
                before, self.spanned[span] = self.spanned[span], self.spanned[span] + step
                change += step * span_cost(span) * (bool(before) != bool(self.spanned[span]))
            self.spans[number] = new
        return change

    def _span(self, places: Iterable[int]) -> frozenset[int]:
        return frozenset(self.domains[self.at[place]] for place in places)
