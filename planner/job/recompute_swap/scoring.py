"""What a program is worth: the time of its best quick swap plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from treadle.planner.documents.trace import OpRun, Trace
from treadle.planner.errors import InputError
from treadle.planner.graph.unrolling import unrolled
from treadle.planner.passes.swap.arrays import Arrays, Nodes, arrays_of
from treadle.planner.passes.swap.decisions import Allocator
from treadle.planner.passes.swap.extract import problem_from_trace
from treadle.planner.passes.swap.layout import Pool
from treadle.planner.passes.swap.problem import SwapMachine, SwapProblem
from treadle.planner.passes.swap.search.fitness import planned, pool_of
from treadle.planner.passes.swap.search.planting import pool_space
from treadle.planner.passes.swap.spans import SPANS
from treadle.planner.passes.swap.two_pass import REFINED


class QuickPlan(NamedTuple):
    """A program with the nodes of a quick plan in its own order. Its i-th run is operator i of `problem`."""

    time_ns: int
    name: str
    runs: tuple[OpRun, ...]
    problem: SwapProblem
    arrays: Arrays
    nodes: Nodes
    pool: Pool | None


@dataclass
class Scorer:
    """Scores programs of one trace on one machine, each once, and keeps the `best`; `names` are what was tried."""

    trace: Trace
    machine: SwapMachine
    reserve_bytes: int = 0
    allocator: Allocator = "pool"
    best: QuickPlan | None = None
    names: dict[str, None] = field(default_factory=dict)
    seen: set[tuple[OpRun, ...]] = field(default_factory=set)

    def score(self, runs: Sequence[OpRun], name: str) -> QuickPlan | None:
        """None for a program that cannot run, that has no plan, or that was scored before."""
        runs = tuple(runs)
        if runs in self.seen:
            return None
        self.seen.add(runs)
        try:
            other = unrolled(self.trace, runs)
        except InputError:
            return None
        problem = problem_from_trace(other, self.machine, self.reserve_bytes)
        found = quick_plan(problem, runs, name, self.allocator)
        if found is not None:
            self.names[name] = None
            if self.best is None or found.time_ns < self.best.time_ns:
                self.best = found
        return found


def quick_plan(
    problem: SwapProblem, runs: tuple[OpRun, ...], name: str, allocator: Allocator = "pool"
) -> QuickPlan | None:
    """The two-pass planner's plan of the problem's own order, with allocator `pool` in the best planted pool; None
    where that has none."""
    room = problem.arena_bytes
    if room <= 0:
        return None
    arrays = arrays_of(problem)
    settings = REFINED if allocator == "pool" else SPANS
    space = pool_space(arrays, room, settings, allocator)
    time_ns = space.time_of(space.start)
    if time_ns is None:
        return None
    nodes = planned(arrays, room, allocator, settings, space.start)
    assert nodes is not None, "it has a time"
    pool = pool_of(space.start) if allocator == "pool" else None
    return QuickPlan(time_ns, name, runs, problem, arrays, nodes, pool)
