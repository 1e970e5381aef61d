"""The methods in their turn: what is planted, the genetic search, and what improves on its best."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from planner.errors import LimitError
from planner.plan import Generation
from planner.swap.arrays import Arrays, Nodes
from planner.swap.bound import Bound
from planner.swap.layout import Pool
from planner.swap.problem import SwapProblem
from planner.swap.replay import replay
from planner.swap.search.executors import Evaluate, executor
from planner.swap.search.fitness import pool_of
from planner.swap.search.generations import evolve
from planner.swap.search.individual import Individual, Space
from planner.swap.search.options import SwapOptions
from planner.swap.search.planting import best_settings, planted, pool_space
from planner.swap.search.tasks import Task
from planner.swap.two_pass import Settings, plan_pool

FEW = 4
"""Individuals of one order that are planted: more would crowd out other orders."""


class Found(NamedTuple):
    """A plan, and how the search came to it."""

    time_ns: int
    order: tuple[int, ...]
    pool: Pool | None
    nodes: Nodes
    method: str
    parts: tuple[str, ...] = ()
    log: tuple[Generation, ...] = ()


class Hooks(NamedTuple):
    """`offer` hears of better and better plans, `tick` of every generation, `stop` says when to end."""

    offer: Callable[[Found], None]
    tick: Callable[[Generation], None]
    stop: Callable[[], bool]


def search(
    problem: SwapProblem, arrays: Arrays, options: SwapOptions, bound: Callable[[], Bound], hooks: Hooks
) -> Found:
    """The best plan that the methods of `options` find. `bound` is asked for once there is a first plan.

    Raises LimitError where there is none within the limits.
    """
    settings = Settings() if options.threshold is None else Settings(options.threshold)
    space = pool_space(arrays, problem.arena_bytes, settings)
    if not options.faithful and options.threshold is None:
        settings = best_settings(arrays, problem.arena_bytes, space.start, settings)
        space = pool_space(arrays, problem.arena_bytes, settings)
    space = space._replace(
        mutation=space.mutation if options.mutation is None else options.mutation,
        vary_order=not options.keep_order,
        vary_pool=not options.keep_pool,
        free_classes=options.free_classes,
        fill=not options.faithful,
        gentle=not options.faithful,
    )
    run = _Search(space, settings, options, problem.ideal_ns, hooks)
    if not options.faithful:
        run.begin()
    if not run.enough():
        run.bound_ns = bound().time_ns
    if not run.enough():
        run.genetic()
    if run.best is None:
        raise LimitError("no plan was found within the limits; raise --generations, --population or --time-limit")
    return run.best._replace(parts=tuple(run.parts), log=run.log)


class _Search:
    """The best so far, and the steps that better it."""

    def __init__(self, space: Space, settings: Settings, options: SwapOptions, bound_ns: int, hooks: Hooks) -> None:
        self.space = space
        self.settings = settings
        self.options = options
        self.bound_ns = bound_ns
        self.hooks = hooks
        self.best: Found | None = None
        self.parts: list[str] = []
        self.log: tuple[Generation, ...] = ()

    def enough(self) -> bool:
        return self.best is not None and self.best.time_ns <= self.bound_ns

    def take(self, individual: Individual, method: str, settings: Settings | None = None) -> None:
        """The plan of an individual, if it is the best so far."""
        pool = pool_of(individual)
        nodes = plan_pool(self.space.arrays, individual.order, pool, settings or self.settings)
        if nodes is None:
            return
        found = Found(
            replay(self.space.arrays, nodes).makespan_ns, tuple(individual.order.tolist()), pool, nodes, method
        )
        if self.best is None or found.time_ns < self.best.time_ns:
            self.best = found
            self.hooks.offer(found._replace(parts=tuple(self.parts), log=self.log))

    def begin(self) -> None:
        """The order of the trace with the best planted pool."""
        self.parts.append("planted")
        if self.space.time_of(self.space.start) is not None:
            self.take(self.space.start, "planted")

    def genetic(self) -> None:
        options, space = self.options, self.space
        effort = options.effort
        with executor(space, options.workers, options.executor, self.hooks.stop) as evaluate:
            seeds: list[Individual] = []
            if not options.faithful:
                seeds = self._seeds(evaluate, effort.population // 2)
            if self.enough():
                return
            self.parts.append("genetic")
            log: list[Generation] = []

            def note(generation: Generation) -> None:
                log.append(generation)
                self.log = tuple(log)
                self.hooks.tick(generation)

            evolve(
                space,
                effort,
                evaluate,
                seeds,
                self.bound_ns,
                lambda scored: self.take(scored.individual, "genetic"),
                note,
            )

    def _seeds(self, evaluate: Evaluate, count: int) -> list[Individual]:
        """The best of the planted individuals, at most FEW of an order."""
        individuals = list(planted(self.space))
        families = evaluate([Task((individual,)) for individual in individuals])
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
