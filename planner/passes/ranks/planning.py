"""From a problem of ranks to a checked order of hosts: the whole pass in one function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from treadle.planner.documents.plan import InputRef, Plan, Provenance
from treadle.planner.errors import InputError
from treadle.planner.passes.ranks.bound import first_bound, lower_bound, sentence
from treadle.planner.passes.ranks.check import check
from treadle.planner.passes.ranks.cost import OrderCosts
from treadle.planner.passes.ranks.decisions import RanksDecisions
from treadle.planner.passes.ranks.problem import RanksProblem
from treadle.planner.passes.ranks.samples import random_orders
from treadle.planner.passes.ranks.search import best_order, worst_order
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
        self.on_progress = on_progress
        self.costs = OrderCosts(problem)
        count = len(problem.hosts)
        samples = np.array(random_orders(count))
        sampled = self.costs.many(samples)[0]
        self.median_ns = int(np.sort(sampled)[len(sampled) // 2])
        self.original = self.best = self.worst = tuple(range(count))
        self.original_cost = self.best_cost = self.worst_cost = self.costs.of(self.best)
        self.offer_worst(samples[int(sampled.argmax())].tolist())
        self.bound = first_bound(self.costs, self.best_cost.cost_ns)
        self.limit_fired = False
        publish = (lambda _: on_plan(self.made(True))) if on_plan is not None else lambda _: None
        guess_s = min(max(0.0, clock.elapsed_s), GUESSED * max(0.0, clock.left_s))
        self.incumbent = Incumbent[tuple[int, ...]](publish, ends=clock.ends, cost_s=guess_s, now=clock.now)

    def plan(self) -> Plan[RanksDecisions]:
        self.incumbent.offer(self.best)
        if not self.proved():
            seed, clock = self.options.seed, self.clock
            worst_ends = clock.now() + WORST_SHARE * max(0.0, clock.left_s)
            worst_order(self.costs, seed, self.offer_worst, lambda: self.stopped() or clock.now() > worst_ends)
            best_order(self.costs, seed, self.offer, self.stopped)
            self.bound = lower_bound(self.costs, self.best_cost.cost_ns, expired=self.stopped)
        return self.made(self.clock.stop.is_set())

    def proved(self) -> bool:
        return self.bound.time_ns >= self.best_cost.cost_ns

    def stopped(self) -> bool:
        self.incumbent.poll()
        if self.on_progress is not None:
            best, least = self.best_cost.cost_ns, self.bound.time_ns
            self.on_progress(Progress(best, least, relative_gap(best, least), self.clock.elapsed_s))
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
        cost, time_ns = self.best_cost, self.costs.time_ns(self.best)
        decisions = RanksDecisions(
            problem=self.problem,
            order=self.best,
            cost_ns=cost.cost_ns,
            tie_ns=cost.tie_ns,
            original_ns=self.original_cost.cost_ns,
            median_ns=self.median_ns,
            worst=self.worst,
            worst_ns=self.worst_cost.cost_ns,
            time_ns=time_ns,
        )
        return certified(
            decisions,
            time_ns=cost.cost_ns,
            bound=self.bound.of_plan(cost.cost_ns),
            sentence=sentence,
            check=check,
            provenance=Provenance(
                tool=TOOL,
                method="local search",
                options=asdict(self.options),
                limit_fired=self.limit_fired,
                interrupted=interrupted,
            ),
            inputs=self.inputs,
            predicted_us=time_ns / 1000,
        )
