"""The methods of the search in turn: planted individuals, the genetic search, local search, the exact search."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from itertools import takewhile
from typing import NamedTuple

import numpy as np

from treadle.planner.documents.plan import Generation
from treadle.planner.documents.scalars import format_bytes
from treadle.planner.errors import LimitError
from treadle.planner.passes.swap.arrays import Arrays, Ints, Nodes
from treadle.planner.passes.swap.check import check
from treadle.planner.passes.swap.evaluate import decisions, time_ns
from treadle.planner.passes.swap.evicting import evict_all
from treadle.planner.passes.swap.exact import MOST_SIZES, WORK, solve_exact
from treadle.planner.passes.swap.improve import Improved, improve
from treadle.planner.passes.swap.layout import Pool
from treadle.planner.passes.swap.problem import SwapProblem
from treadle.planner.passes.swap.search.climbing import climbed
from treadle.planner.passes.swap.search.executors import Evaluate, executor
from treadle.planner.passes.swap.search.fitness import planned, pool_of, simulated
from treadle.planner.passes.swap.search.generations import evolve
from treadle.planner.passes.swap.search.individual import Individual, Scored
from treadle.planner.passes.swap.search.options import SwapOptions
from treadle.planner.passes.swap.search.planting import THRESHOLDS, best_settings, planted, pool_space
from treadle.planner.passes.swap.search.tasks import EvaluationTask
from treadle.planner.passes.swap.spans import SPANS, Packed, pack_spans
from treadle.planner.passes.swap.two_pass import FAITHFUL, REFINED, Settings
from treadle.planner.search.bound import Argument, Bound

FEW = 4
"""Planted individuals of one order, so that other orders have room."""

LEADERS = 4
"""Orders for which the search begins with a climb."""
PACK = 0.01
"""Relative gain from which on a plan is packed at once (allocator offset)."""
UNPACKED = 4
"""Others that are packed after the genetic search and after local search, the best ones."""
RESERVED = 0.1
"""Share of the time limit for packing them."""
ROUNDS = 15
"""Rounds of one climb over pools."""
SMALL = 15
"""Operators up to which auto also looks for the exact optimum."""
BRIEF = 5.0
"""Deterministic seconds of that search."""
SHARE = 0.4
"""Share of the time limit for the genetic search; local search has the rest."""
REFUSED = "exact (refused by the check)"
"""Recorded where an exact plan fails its check, an error of treadle; the best other plan is returned."""


class FoundPlan(NamedTuple):
    """A plan, and how it was found. `bound` is set if the search proved a better one than was known."""

    time_ns: int
    order: tuple[int, ...]
    pool: Pool | None
    nodes: Nodes
    method: str
    parts: tuple[str, ...] = ()
    log: tuple[Generation, ...] = ()
    bound: Bound | None = None
    cut: bool = False
    """Whether a time limit ended a part of the search."""


class UnpackedPlan(NamedTuple):
    """A plan whose residencies have no addresses yet (allocator offset)."""

    time_ns: int
    order: Ints
    bias: Ints | None
    method: str


class Hooks(NamedTuple):
    """`offer` is called with each better plan, `tick` with each generation; `stopped` returns whether to end, `left_s`
    the seconds until then."""

    offer: Callable[[FoundPlan], None]
    tick: Callable[[Generation], None]
    stopped: Callable[[], bool]
    left_s: Callable[[], float]
    stop: threading.Event


def search(
    problem: SwapProblem, arrays: Arrays, options: SwapOptions, bound: Callable[[], Bound], hooks: Hooks
) -> FoundPlan:
    """The best plan that the methods of `options` find. `bound` is called once there is a first plan.

    Raises LimitError if none is found within the limits.
    """
    run = _Search(problem, arrays, options, hooks)
    if not options.faithful:
        run.begin()
    if not run.enough():
        run.bound_ns = bound().time_ns
    if options.method != "exact" and not run.enough():
        run.genetic()
    if not options.faithful and not run.enough():
        run.vary_settings()
        run.improve()
    if options.method == "exact" or (options.method == "auto" and not options.faithful and run.small):
        run.exact()
    run.fall_back()
    if run.best is None:
        text = "no plan was found within the limits; raise --generations, --population or --time-limit"
        if arrays.host_bytes >= 0:
            text += f", or --host-memory, which is {format_bytes(arrays.host_bytes)}"
        raise LimitError(text)
    return run.completed(run.best)


class _Search:
    """The best so far, and the steps that improve it."""

    def __init__(self, problem: SwapProblem, arrays: Arrays, options: SwapOptions, hooks: Hooks) -> None:
        self.problem, self.arrays, self.options, self.hooks = problem, arrays, options, hooks
        self.limit_s = hooks.left_s()
        memory, allocator = problem.arena_bytes, options.allocator
        settings = SPANS if allocator != "pool" else FAITHFUL if options.faithful else REFINED
        if options.threshold is not None:
            settings = settings._replace(threshold=options.threshold)
        self.first: Packed | None = None
        """The plan of the trace's order (allocator offset). If it is faster packed, plans are compared by bytes, with
        as many as pack."""
        ranked, count = allocator, memory
        if allocator == "offset" and not options.faithful:
            self.first = pack_spans(arrays, np.arange(len(arrays.time)), memory, settings, stop=hooks.stopped)
            if self.first is not None and self.first.room is not None:
                ranked, count = "bytes", self.first.room
        space = pool_space(arrays, count, settings, ranked, hooks.stopped)
        if not options.faithful and options.threshold is None and not hooks.stopped():
            settings = best_settings(arrays, count, ranked, space.start, settings, hooks.stopped)
            space = pool_space(arrays, count, settings, ranked, hooks.stopped)
        self.ranked = ranked
        self.count = self.best_count = count
        """Bytes with which plans are compared, and those with which the best plan was packed."""
        self.settings = self.best_settings = settings
        self.space = space._replace(
            mutation=space.mutation if options.mutation is None else options.mutation,
            vary_order=not options.keep_order,
            vary_pool=space.vary_pool and not options.keep_pool,
            free_classes=options.free_classes,
            fill=not options.faithful,
            gentle=not options.faithful,
        )
        self.bound_ns = problem.ideal_ns
        self.bound: Bound | None = None
        self.best: FoundPlan | None = None
        self.unpacked: list[UnpackedPlan] = []
        """The best plans that are not packed yet, the best first (allocator offset)."""
        self.packed_ns: int | None = None
        """Time of the last one that was packed at once, before packing."""
        self.cut = False
        """Whether the genetic search or local search used up its share of the time."""
        self.parts: list[str] = []
        self.log: list[Generation] = []

    @property
    def small(self) -> bool:
        return len(self.problem.ops) <= SMALL and len(self.arrays.sizes) <= MOST_SIZES

    def enough(self) -> bool:
        """Whether there is an optimal plan, or a plan and no time left."""
        return self.best is not None and (self.best.time_ns <= self.bound_ns or self.hooks.stopped())

    def completed(self, found: FoundPlan) -> FoundPlan:
        return found._replace(parts=tuple(self.parts), log=tuple(self.log), bound=self.bound, cut=self.cut)

    def take(self, individual: Individual, method: str, settings: Settings | None = None) -> None:
        """Take the plan of an individual, if it is the best so far."""
        if self.options.allocator == "offset":
            self.pack(UnpackedPlan(0, individual.order, None, method), settings or self.settings)
            return
        memory, allocator = self.space.memory, self.options.allocator
        nodes = planned(self.arrays, memory, allocator, settings or self.settings, individual)
        pool = pool_of(individual) if allocator == "pool" else None
        self.use(individual.order, pool, nodes, method, settings or self.settings)

    def pack(self, plan: UnpackedPlan, settings: Settings) -> None:
        """Take the packed plan, if it is the best so far."""
        memory, stopped = self.problem.arena_bytes, self.hooks.stopped
        found = pack_spans(self.arrays, plan.order, memory, settings, plan.bias, self.count, stopped)
        if found is not None and self.use(plan.order, None, found.nodes, plan.method, settings):
            self.best_count = found.room or self.count

    def use(self, order: Ints, pool: Pool | None, nodes: Nodes | None, method: str, settings: Settings) -> bool:
        """Offer the plan if it is the best so far; return whether it is."""
        time = None if nodes is None else time_ns(self.arrays, nodes)
        if nodes is None or time is None or (self.best is not None and time >= self.best.time_ns):
            return False
        self.best_settings = settings
        self.offer(FoundPlan(time, tuple(order.tolist()), pool, nodes, method))
        return True

    def rank(self, scored: Scored, method: str) -> None:
        """`take` for successive results of a search, which are packed at once only if they gain much."""
        if self.options.allocator != "offset" or scored.time is None:
            self.take(scored.individual, method)
        else:
            self.pack_or_keep(UnpackedPlan(scored.time, scored.individual.order, None, method), self.settings)

    def pack_or_keep(self, plan: UnpackedPlan, settings: Settings) -> None:
        """Pack a plan that gains much; keep others for later if they are among the best."""
        if self.packed_ns is None or plan.time_ns < (1 - PACK) * self.packed_ns:
            self.packed_ns = plan.time_ns
            self.pack(plan, settings)
        else:
            self.unpacked = sorted([*self.unpacked, plan], key=lambda one: one.time_ns)[:UNPACKED]

    def pack_kept(self, settings: Settings) -> None:
        plans, self.unpacked = self.unpacked, []
        for plan in plans:
            if not self.enough():
                self.pack(plan, settings)

    def offer(self, found: FoundPlan) -> None:
        if self.best is None or found.time_ns < self.best.time_ns:
            self.best = found
            self.hooks.offer(self.completed(found))

    def begin(self) -> None:
        """The order of the trace with the best planted pool."""
        self.parts.append("planted")
        if self.first is not None:
            self.use(self.space.start.order, None, self.first.nodes, "planted", self.settings)
        else:
            self.take(self.space.start, "planted")
        self.fall_back()

    def fall_back(self) -> None:
        """Without a plan so far, take the one that evicts everything: with allocator `offset` there may be no other
        close to the least memory."""
        if self.best is None and self.options.allocator == "offset":
            order = self.space.start.order
            nodes = evict_all(self.arrays, order)
            time = time_ns(self.arrays, nodes)
            if time is not None:
                self.offer(FoundPlan(time, tuple(order.tolist()), None, nodes, "nothing stays"))

    def genetic(self) -> None:
        options, space = self.options, self.space
        effort = options.effort
        reserved = 0.0 if options.faithful else (1 - SHARE) * self.hooks.left_s()

        def stopped() -> bool:
            self.cut = self.cut or self.hooks.left_s() < reserved
            return self.cut or self.hooks.stopped()

        with executor(space, options.workers, options.executor, stopped) as evaluate:
            seeds: list[Individual] = []
            if not options.faithful:
                seeds = self._seeds(evaluate, effort.population // 2)
                if space.vary_pool and not self.enough():
                    leaders: dict[bytes, Individual] = {}
                    for one in seeds:
                        leaders.setdefault(one.order.tobytes(), one)
                    climb = self._climber(evaluate, ROUNDS)
                    for one in [*leaders.values()][:LEADERS]:
                        seeds.append(climb(Scored(one, space.time_of(one))).individual)
            if self.enough():
                return
            self.parts.append("genetic")

            def note(generation: Generation) -> None:
                self.log.append(generation)
                self.hooks.tick(generation)

            evolve(
                space,
                effort,
                evaluate,
                seeds,
                self.bound_ns,
                None if options.faithful or not space.vary_pool else self._climber(evaluate, ROUNDS),
                lambda scored: self.rank(scored, "genetic"),
                note,
            )
        self.pack_kept(self.settings)

    def _climber(self, evaluate: Evaluate, rounds: int) -> Callable[[Scored], Scored]:
        """A function that finds better pools for an individual."""

        def climb(start: Scored) -> Scored:
            found = climbed(self.space, start, evaluate, rounds)
            self.take(found.individual, "climbing")
            return found

        return climb

    def _seeds(self, evaluate: Evaluate, count: int) -> list[Individual]:
        """The best of the planted individuals, at most FEW of an order."""
        individuals = list(takewhile(lambda _: not self.enough(), planted(self.space)))
        families = evaluate([EvaluationTask((individual,)) for individual in individuals])
        timed = [(one.time, at, one.individual) for at, family in enumerate(families) for one in family or ()]
        ranked = sorted((time, at, individual) for time, at, individual in timed if time is not None)
        seeds: list[Individual] = []
        of_order: dict[bytes, int] = {}
        for _, _, individual in ranked:
            key = individual.order.tobytes()
            of_order[key] = of_order.get(key, 0) + 1
            if of_order[key] <= FEW and len(seeds) < count:
                seeds.append(individual)
        for individual in seeds[:1]:
            self.take(individual, "planted")
        return seeds

    def vary_settings(self) -> None:
        """The best order and pool with other thresholds, and with initial residents that need not stay."""
        if self.best is None:
            return
        genes = (np.array(self.best.pool.classes), np.array(self.best.pool.counts)) if self.best.pool else ()
        individual = Individual(np.array(self.best.order), *genes)
        thresholds = THRESHOLDS if self.options.threshold is None else (self.options.threshold,)
        every = [self.settings._replace(threshold=threshold, keep_initial=True) for threshold in thresholds]
        if self.options.allocator == "offset":  # packing takes long: only the best one is packed
            times = [simulated(self.arrays, self.count, self.ranked, one, individual) for one in every]
            every = [one for _, _, one in sorted((t, at, every[at]) for at, t in enumerate(times) if t is not None)[:1]]
        for settings in every:
            self.take(individual, "other settings", settings)

    def improve(self) -> None:
        """Local search from the best plan; until the time limit if that ended the genetic search."""
        if self.best is None or self.enough():
            return
        options, effort = self.options, self.options.effort
        self.parts.append("local search")

        packs, settings = options.allocator == "offset", self.best_settings
        if self.ranked != options.allocator:
            self.count = self.best_count
        self.packed_ns = None
        reserved = RESERVED * self.limit_s if packs else 0.0

        def stopped() -> bool:
            self.cut = self.cut or self.hooks.left_s() < reserved
            return self.hooks.left_s() < reserved or self.hooks.stopped()

        def offer(found: Improved) -> None:
            if packs:
                self.pack_or_keep(UnpackedPlan(found.time_ns, found.order, found.bias, "local search"), settings)
            else:
                self.use(found.order, found.pool, found.nodes, "local search", settings)

        improve(
            self.arrays,
            self.count,
            self.ranked,
            np.array(self.best.order),
            self.best.pool,
            settings,
            evaluations=sys.maxsize if self.cut else effort.population * effort.generations,
            patience=None if self.cut or effort.patience is None else effort.population * effort.patience // 2,
            seed=options.seed,
            least_ns=self.bound_ns,
            vary_order=self.space.vary_order,
            vary_pool=self.space.vary_pool,
            stop=stopped,
            on_better=offer,
        )
        self.pack_kept(settings)

    def exact(self) -> None:
        """Look for a faster plan than the best, or a proof that there is none."""
        if self.enough() or self.hooks.stopped():
            return
        options, start = self.options, self.space.start
        self.parts.append("exact")
        result = solve_exact(
            self.problem,
            options.allocator,
            order=start.order.tolist() if options.keep_order else None,
            pool=pool_of(start) if options.keep_pool and options.allocator == "pool" else None,
            below_ns=None if self.best is None else self.best.time_ns,
            work=WORK if options.method == "exact" else BRIEF,
            seed=options.seed,
            time_limit_s=self.hooks.left_s(),
            stop=self.hooks.stop,
        )
        if result.bound_ns > self.bound_ns and not options.keep_pool:
            self.bound_ns, self.bound = result.bound_ns, Bound(result.bound_ns, Argument("exact"), result.scope)
        if result.nodes is None or result.time_ns is None:
            return
        found = FoundPlan(result.time_ns, result.order, result.pool, result.nodes, "exact")
        decided = decisions(self.problem, self.arrays, found.order, found.nodes, found.pool, options.allocator)
        if self.best is None or not check(decided):
            self.offer(found)
        else:
            self.parts[-1] = REFUSED
