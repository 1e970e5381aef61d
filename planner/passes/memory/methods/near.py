"""Recomputations near to what reads them: few enough for one 0-1 program of all stages, and most of those that pay off.

The distance of a run of node i in stage t is the least time to make, from i on, something that the backward node of the
stage may read. Far runs start long chains; a plan that keeps something nearer is mostly faster. Distances depend on no
plan, so a program of near runs may change a whole plan at once.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from treadle.planner.passes.memory.formulation.useful import makers
from treadle.planner.passes.memory.methods.restricted import Choices
from treadle.planner.passes.memory.problem import MemoryProblem


def nearest_runs(problem: MemoryProblem, choices: Choices, count: int) -> list[frozenset[int]]:
    """The nodes that each stage t = 0..K recomputes among the `count` nearest runs of all stages; none in stage 0.

    choices: implementations that each backward node may have.
    """
    fwd = problem.fwd
    again = [node.impls[node.fastest(again=True)].time(True) for node in fwd]
    near: list[set[int]] = [set() for _ in range(len(problem.bwd) + 1)]
    found = [
        (again[i], t, i)
        for t, (back, some) in enumerate(zip(problem.bwd, choices, strict=True), 1)
        for i in {i for way in some for i in back.impls[way].needs}
    ]
    heapify(found)
    while found and count:
        far, t, i = heappop(found)
        if i in near[t] or not fwd[i].recomputable:
            continue
        near[t].add(i)
        count -= 1
        for j in makers(fwd[i]):
            heappush(found, (far + again[j], t, j))
    return [frozenset(nodes) for nodes in near]
