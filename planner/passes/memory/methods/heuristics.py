"""Chen's segments, the plans that others are compared with.

A plan follows from the set of nodes that the forward pass keeps: when a backward node reads an evicted output, its
ancestors are recomputed from what is live, and all that later backward nodes read directly is kept ("Training Deep Nets
with Sublinear Memory Cost", section 3, with segments between kept nodes).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cache

from treadle.planner.passes.memory.formulation.useful import made_for, unrepeatable
from treadle.planner.passes.memory.lower import RecomputeSchedule, prune, store_all
from treadle.planner.passes.memory.problem import MemoryProblem
from treadle.planner.passes.memory.program import RunForward
from treadle.planner.passes.memory.simulate import Simulation, simulated

EACH = 16
"""Every number of segments up to twice this is tried; above, numbers grow by 1/EACH."""


def chen(problem: MemoryProblem) -> list[frozenset[int]]:
    """Nodes to keep with 1, 2, .. about 2 sqrt(N) segments: those that end equal shares of all bytes."""
    return [frozenset(max(share) for share in shares) for shares in _segments(problem)]


def crossings(problem: MemoryProblem) -> list[frozenset[int]]:
    """The same for graphs: within each share, what crosses to later forward nodes where that is least.

    At a residual connection one tensor crosses, inside a block several do.
    """
    last = {j: i for i, node in enumerate(problem.fwd) for j in node.inputs}
    crossing = cache(lambda i: frozenset(j for j, t in last.items() if j <= i < t))
    width = crossing_bytes(problem)
    ends = [[min(share, key=lambda i: (width[i], -i)) for share in shares] for shares in _segments(problem)]
    return [frozenset[int]().union(*map(crossing, places)) for places in ends]


def crossing_bytes(problem: MemoryProblem) -> list[int]:
    """For each forward node the bytes that it and those before it make and later ones read."""
    last = {j: i for i, node in enumerate(problem.fwd) for j in node.inputs}
    change = [0] * len(problem.fwd)
    for j, i in last.items():
        change[j] += problem.fwd[j].out_bytes
        change[i] -= problem.fwd[j].out_bytes
    return list(itertools.accumulate(change))


def _segments(problem: MemoryProblem) -> list[list[list[int]]]:
    """Forward nodes cut into 1, 2, .. up to 2 sqrt(N) + 1 runs of about equal bytes."""
    made = [0, *itertools.accumulate(node.out_bytes for node in problem.fwd)]
    cuts = []
    count, most = 0, 2 * int(len(made) ** 0.5) + 1
    while (count := count + max(1, count // EACH)) <= most:
        shares = [before * count // max(1, made[-1]) for before in made[:-1]]
        cuts.append([list(run) for _, run in itertools.groupby(range(len(shares)), shares.__getitem__)])
    return cuts


@dataclass(frozen=True)
class Planner:
    """`base` is store-all, `fastest` the recomputation of each of its runs, `direct[t]` what backward nodes after stage
    t read, `once` the nodes that cannot be recomputed."""

    problem: MemoryProblem
    base: RecomputeSchedule
    fastest: dict[int, RunForward]
    direct: tuple[frozenset[int], ...]
    once: frozenset[int]

    @staticmethod
    def of(problem: MemoryProblem) -> Planner:
        base = store_all(problem)
        direct: list[frozenset[int]] = [frozenset()]
        for stage in range(len(problem.bwd), 0, -1):
            direct.append(direct[-1] | set(base.needs(problem, stage)))
        fastest = {run.node: RunForward(run.node, problem.fwd[run.node].fastest(True)) for run in base.runs[0]}
        return Planner(problem, base, fastest, tuple(reversed(direct)), unrepeatable(problem) & fastest.keys())

    def result(self, schedule: RecomputeSchedule) -> Simulation:
        return simulated(self.problem, schedule)

    def schedule(self, kept: frozenset[int]) -> RecomputeSchedule:
        """The pruned schedule in which the forward pass keeps `kept` and what cannot be recomputed."""
        problem = self.problem
        available = kept | self.once
        runs: list[tuple[RunForward, ...]] = [self.base.runs[0]]
        stores = [available]
        for stage in range(1, len(problem.bwd) + 1):
            again = made_for(problem, self.base.needs(problem, stage), available)
            runs.append(tuple(self.fastest[i] for i in sorted(again)))
            available |= again & self.direct[stage]
            stores.append(available)
        return prune(problem, RecomputeSchedule(tuple(runs), tuple(stores), self.base.backward))
