"""The best choice of a large tiling graph, with a bound: reduced, then messages, then the states of a frontier."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from treadle.planner.passes.tiling.dual import descended, flat, flat_cost, loops, passed, plain
from treadle.planner.passes.tiling.frontier import explored, frontier_order
from treadle.planner.passes.tiling.graph import Costs
from treadle.planner.passes.tiling.reduced import Core, reduced
from treadle.planner.search.clock import Expired

PASSES = 400
PATIENCE = 12
"""Passes without a better bound or choice after which the search goes on elsewhere."""
GAIN = 1000
"""A better bound closes at least this part of the gap."""
Tables = Sequence[tuple[int, int, Costs]]
Offer = Callable[[tuple[int, ...], int, int], None]
"""Called with each better choice, its cost, and the bound so far."""


@dataclass(frozen=True)
class Ascended:
    """The best choice found, what it costs, and what no choice costs less than."""

    choice: tuple[int, ...]
    cost: int
    bound: int


def first_choice(own: Sequence[Costs], edges: Tables) -> tuple[tuple[int, ...], int]:
    """A choice and its cost before any loop is compiled: group by group, then single changes."""
    graph = flat(own, edges)
    choice = np.zeros(len(own), dtype=np.int64)
    plain(passed)(graph, choice, True)
    for _ in range(3):
        plain(descended)(graph, choice)
    return tuple(choice.tolist()), plain(flat_cost)(graph, choice)


def ascended(
    own: Sequence[Costs],
    edges: Tables,
    unit: int,
    known: Ascended,
    expired: Expired,
    offer: Offer | None = None,
    near: int | None = None,
) -> Ascended:
    """The best choice of a graph. Costs of choices are multiples of `unit`; `known` is a choice to beat. With `near`
    the search ends a `near`th part of the cost from the best, or where messages gain no more."""
    core = reduced(own, edges, known.cost + 1)
    search = _Search(core, unit, known, expired, offer, near)
    search.passes(core.own, core.edges, range(len(core.own)))
    if near is None and not search.ended():
        order = frontier_order(core.edges, len(core.own))
        place = {group: at for at, group in enumerate(order)}
        turned = [
            (place[one], place[other], table) if place[one] < place[other] else (place[other], place[one], table.T)
            for one, other, table in core.edges
        ]
        search.passes([core.own[group] for group in order], turned, order, to_end=True)
    return search.best


class _Search:
    def __init__(
        self, core: Core, unit: int, known: Ascended, expired: Expired, offer: Offer | None, near: int | None
    ) -> None:
        self.core, self.unit, self.best, self.expired, self.offer = core, unit, known, expired, offer
        self.near = near

    def ended(self) -> bool:
        gap = self.best.cost - self.best.bound
        return gap <= (0 if self.near is None else self.best.cost // self.near) or self.expired()

    def passes(self, own: Sequence[Costs], edges: Tables, order: Sequence[int], *, to_end: bool = False) -> None:
        """Passes over groups in `order`; `to_end`: then states of the frontier."""
        graph = flat(own, edges)
        passed, descended, flat_cost = loops(graph)
        choice = np.zeros(len(own), dtype=np.int64)
        gained, bound = 0, 0
        for turn in range(PASSES):
            before = self.best
            for forward in (True, False):
                bound = int(passed(graph, choice, forward))
                while descended(graph, choice):
                    pass
                self._found(choice, int(flat_cost(graph, choice)), order)
            self._proved(bound)
            gap = before.cost - before.bound
            if self.best.cost < before.cost or (self.best.bound - before.bound) * GAIN > gap:
                gained = turn
            if self.ended() or turn - gained >= PATIENCE:
                break
        if to_end and not self.ended():
            exact = explored(graph, self.best.cost - 1 - bound, self.expired)
            if exact.choice is not None:
                self._found(exact.choice, int(flat_cost(graph, exact.choice)), order)
            self._proved(bound + exact.least)

    def _found(self, choice: Costs, cost: int, order: Sequence[int]) -> None:
        if cost < self.best.cost:
            labels = np.zeros(len(order), dtype=np.int64)
            labels[list(order)] = choice
            self.best = Ascended(self.core.whole(labels.tolist()), cost, min(self.best.bound, cost))
            if self.offer is not None:
                self.offer(self.best.choice, self.best.cost, self.best.bound)

    def _proved(self, bound: int) -> None:
        whole = -(-bound // self.unit) * self.unit
        if whole > self.best.bound:
            self.best = Ascended(self.best.choice, self.best.cost, min(whole, self.best.cost))
