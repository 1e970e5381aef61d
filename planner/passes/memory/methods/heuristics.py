"""Chen's segments, the plans that others are compared with.

A plan follows from the set of nodes that the forward pass keeps: when a backward node reads something that is gone,
its ancestors are recomputed from what is there, and everything recomputed that later backward nodes read directly
stays ("Training Deep Nets with Sublinear Memory Cost", section 3, with segments between kept nodes).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cache

from treadle.planner.passes.memory.lower import RecomputeSchedule, lower, prune, store_all
from treadle.planner.passes.memory.problem import MemoryProblem
from treadle.planner.passes.memory.program import RunForward
from treadle.planner.passes.memory.simulate import Simulation, simulate

EACH = 16
"""Every number of segments is tried up to twice this; above, it grows by such a share."""


def chen(problem: MemoryProblem) -> list[frozenset[int]]:
    """What to keep with 1, 2, .. about 2 sqrt(N) segments: the nodes that end equal shares of all bytes."""
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
    """Forward nodes cut into 1, 2, .. then by a sixteenth more at a time up to 2 sqrt(N) + 1 runs of about equal
    bytes."""
    made = [0, *itertools.accumulate(node.out_bytes for node in problem.fwd)]
    cuts = []
    count, most = 0, 2 * int(len(made) ** 0.5) + 1
    while (count := count + max(1, count // EACH)) <= most:
        shares = [before * count // max(1, made[-1]) for before in made[:-1]]
        cuts.append([list(run) for _, run in itertools.groupby(range(len(shares)), shares.__getitem__)])
    return cuts


@dataclass(frozen=True)
class Planner:
    """`base` is store-all, `fastest` how each of its runs is done again, `direct[t]` what backward nodes after stage t
    read, `once` the nodes that cannot be made again, by themselves or because their creator cannot run again."""

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
        fixed = {i for i, node in enumerate(problem.fwd) if not node.recomputable}
        once = fixed | {i for i, node in enumerate(problem.fwd) if node.creator in fixed}
        fastest = {run.node: RunForward(run.node, problem.fwd[run.node].fastest(True)) for run in base.runs[0]}
        return Planner(problem, base, fastest, tuple(reversed(direct)), frozenset(once & fastest.keys()))

    def result(self, schedule: RecomputeSchedule) -> Simulation:
        return simulate(self.problem, lower(self.problem, schedule))

    def schedule(self, kept: frozenset[int]) -> RecomputeSchedule:
        """The pruned schedule in which the forward pass keeps `kept` (and what cannot be made again)."""
        problem = self.problem
        available = kept | self.once
        runs: list[tuple[RunForward, ...]] = [self.base.runs[0]]
        stores = [available]
        for stage in range(1, len(problem.bwd) + 1):
            again: set[int] = set()
            todo = list(self.base.needs(problem, stage))
            while todo:
                i = todo.pop()
                if i not in available and i not in again:
                    again.add(i)
                    creator = problem.fwd[i].creator
                    todo.extend(problem.fwd[i].inputs)
                    if creator is not None:
                        again.add(creator)
                        todo.extend(problem.fwd[creator].inputs)
            runs.append(tuple(self.fastest[i] for i in sorted(again)))
            available |= again & self.direct[stage]
            stores.append(available)
        return prune(problem, RecomputeSchedule(tuple(runs), tuple(stores), self.base.backward))
