"""From a problem of ranks to a checked order of hosts: the whole pass in one function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import permutations

import numpy as np

from treadle.planner.documents.plan import InputRef, Plan, Provenance
from treadle.planner.errors import InputError
from treadle.planner.passes.ranks.bound import first_bound, lower_bound, sentence
from treadle.planner.passes.ranks.check import check
from treadle.planner.passes.ranks.cost import OrderCosts
from treadle.planner.passes.ranks.decided import decided
from treadle.planner.passes.ranks.decisions import RanksDecisions
from treadle.planner.passes.ranks.exact import ExactLimits, exactly
from treadle.planner.passes.ranks.problem import RanksProblem
from treadle.planner.passes.ranks.samples import random_orders
from treadle.planner.passes.ranks.search import best_order, first_order, worst_order
from treadle.planner.search.bound import Argument, Bound
from treadle.planner.search.certified import certified
from treadle.planner.search.clock import Clock
from treadle.planner.search.incumbent import Incumbent
from treadle.planner.solver import Progress, relative_gap
from treadle.planner.version import TOOL


@dataclass(frozen=True)
class RanksOptions:
    seed: int = 0


DEFAULTS = RanksOptions()
GUESSED = 0.25
"""Share of the time that is left: the most that publishing a plan is taken to last before the first one."""
WORST_SHARE = 0.1
"""Share of the time that is left, for the dearest order."""
MOST_ENUMERATED = 8
"""Hosts up to which every order is priced."""
REPORT_S = 0.2
"""Seconds between two reports of progress."""


def plan_ranks(
    problem: RanksProblem,
    *,
    options: RanksOptions = DEFAULTS,
    clock: Clock | None = None,
    inputs: Mapping[str, InputRef] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_plan: Callable[[Plan[RanksDecisions]], None] | None = None,
) -> Plan[RanksDecisions]:
    """The cheapest order found, checked; never one that costs more than the hosts as they were handed out.

    `on_plan` is called with the best checked plan so far, marked as interrupted. Ctrl-C, SIGTERM and the limit of
    `clock` end the search with the best plan so far. Raises InputError for a problem that is not sound.
    """
    for path, found, expected in problem.problems():
        raise InputError(f"found {found}, expected {expected}", where="problem of ranks", path=path)
    with (clock or Clock()).listening() as clock:
        return _Planning(problem, options, clock, inputs or {}, on_progress, on_plan).plan()


class _Planning:
    """One call of `plan_ranks`: the best and the worst order so far, and what is proved."""

    def __init__(
        self,
        problem: RanksProblem,
        options: RanksOptions,
        clock: Clock,
        inputs: Mapping[str, InputRef],
        on_progress: Callable[[Progress], None] | None,
        on_plan: Callable[[Plan[RanksDecisions]], None] | None,
    ) -> None:
        self.problem, self.options, self.clock, self.inputs = problem, options, clock, inputs
        self.on_progress, self.reports_at = on_progress, 0.0
        self.costs = OrderCosts(problem)
        count = len(problem.hosts)
        samples = np.array(random_orders(count))
        self.best = self.worst = tuple(range(count))
        self.best_cost = self.worst_cost = self.costs.of(self.best)
        self.offer_worst(samples[int(self.costs.many(samples)[0].argmax())].tolist())
        self.bound = first_bound(self.costs, self.best_cost.cost_ns)
        self.parts: list[str] = []
        self.limit_fired = False
        publish = (lambda _: on_plan(self.made(True))) if on_plan is not None else lambda _: None
        guess_s = min(max(0.0, clock.elapsed_s), GUESSED * max(0.0, clock.left_s))
        self.incumbent = Incumbent[tuple[int, ...]](publish, ends=clock.ends, cost_s=guess_s, now=clock.now)

    def plan(self) -> Plan[RanksDecisions]:
        if not self.proved():
            first_order(self.costs, self.offer)
            self.incumbent.offer(self.best)
            for part in (self.enumerate_all,) if len(self.best) <= MOST_ENUMERATED else (self.search, self.prove):
                if not self.stopped():
                    part()
        return self.made(self.clock.stop.is_set())

    def enumerate_all(self) -> None:
        """Price every order."""
        orders = np.array(list(permutations(range(len(self.best)))))
        costs, ties = self.costs.many(orders)
        ranked = np.lexsort((ties, costs))
        self.offer(orders[ranked[0]].tolist())
        self.offer_worst(orders[ranked[-1]].tolist())
        self.bound = Bound(self.best_cost.cost_ns, Argument("exact"))
        self.parts.append("every order priced")

    def search(self) -> None:
        """Look for the dearest order, then for the cheapest, and bound that."""
        seed, clock = self.options.seed, self.clock
        ends = clock.now() + WORST_SHARE * max(0.0, clock.left_s)
        worst_order(self.costs, seed, self.offer_worst, lambda: self.stopped() or clock.now() > ends)
        best_order(self.costs, seed, self.offer, self.stopped)
        self.parts.append("local search")
        self.bound = lower_bound(self.costs, self.best_cost.cost_ns, expired=self.stopped)

    def prove(self) -> None:
        """Look for a cheaper order exactly, where that has a chance."""
        if self.proved() or self.stopped():
            return
        left_s = None if self.clock.limit_s is None else max(0.01, self.incumbent.search_ends - self.clock.now())
        found = exactly(self.costs, self.best, self.best_cost.cost_ns, self.bound.time_ns,
                        ExactLimits(self.options.seed, left_s, self.clock.stop))  # fmt: skip
        if found is None:
            return
        self.parts.append("CP-SAT")
        self.limit_fired = self.limit_fired or (found.cut and not self.clock.stop.is_set())
        if found.order is not None:
            self.offer(found.order)
        if found.bound_ns > self.bound.time_ns:
            self.bound = Bound(found.bound_ns, Argument("exact"))
        elif found.order is not None:
            self.bound = lower_bound(self.costs, self.best_cost.cost_ns, expired=self.stopped)

    def proved(self) -> bool:
        return self.bound.time_ns >= self.best_cost.cost_ns

    def stopped(self) -> bool:
        self.incumbent.poll()
        if self.on_progress is not None and self.clock.now() > self.reports_at:
            best, least = self.best_cost.cost_ns, self.bound.time_ns
            self.on_progress(Progress(best, least, relative_gap(best, least), self.clock.elapsed_s))
            self.reports_at = self.clock.now() + REPORT_S
        self.limit_fired = self.limit_fired or self.clock.now() > self.incumbent.search_ends
        return self.limit_fired or self.clock.stop.is_set()

    def offer(self, order: Sequence[int]) -> None:
        """Take an order that costs less than the best so far."""
        cost = self.costs.of(order)
        if cost < self.best_cost:
            self.best, self.best_cost = tuple(order), cost
            self.incumbent.offer(self.best)

    def offer_worst(self, order: Sequence[int]) -> None:
        """Take an order that costs more than the worst so far."""
        cost = self.costs.of(order)
        if cost > self.worst_cost:
            self.worst, self.worst_cost = tuple(order), cost

    def made(self, interrupted: bool) -> Plan[RanksDecisions]:
        """The plan of the best order so far. Raises CheckFailed if it fails its check."""
        decisions = decided(self.problem, self.best, self.worst)
        return certified(
            decisions,
            time_ns=decisions.cost_ns,
            bound=self.bound.of_plan(decisions.cost_ns),
            sentence=sentence,
            check=check,
            provenance=Provenance(
                tool=TOOL,
                method=self.parts[-1] if self.parts else "hosts as they were handed out",
                parts=tuple(self.parts),
                options=asdict(self.options),
                limit_fired=self.limit_fired,
                interrupted=interrupted,
            ),
            inputs=self.inputs,
            predicted_us=decisions.time_ns / 1000,
        )
