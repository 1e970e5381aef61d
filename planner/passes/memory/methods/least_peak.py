"""Plans of little peak, whatever their time: only small tensors, and those that cannot be recomputed, are kept.

Every forward node takes its implementation of least workspace, every backward node the one that takes least bytes.
Keeping a tensor behind the worst moment of such a plan may lower its peak; such tensors are tried one after another.
"""

from __future__ import annotations

from typing import assert_never

from treadle.planner.passes.memory.bound import least_bytes
from treadle.planner.passes.memory.formulation.useful import leanest_backward, made_for, unrepeatable
from treadle.planner.passes.memory.lower import RecomputeSchedule, lower, prune, store_all
from treadle.planner.passes.memory.problem import MemoryProblem
from treadle.planner.passes.memory.program import Drop, EnterStage, RunBackward, RunForward
from treadle.planner.passes.memory.simulate import moments, simulated

THRESHOLDS = 12
"""Number of sizes tried as the largest that is kept."""
TRIES, ROUNDS = 4, 12
"""Tensors tried behind the worst moment, and how often."""


def least_peak_schedule(problem: MemoryProblem) -> RecomputeSchedule:
    """The plan of least peak found, pruned."""
    floor = least_bytes(problem)
    sizes = sorted({node.out_bytes for node in problem.fwd})
    step = -(-len(sizes) // THRESHOLDS)
    best, kept = store_all(problem), frozenset(range(len(problem.fwd)))
    peak = simulated(problem, best).peak_bytes
    shallow = False
    for threshold in [-1, *sizes[::step]]:
        small = frozenset(i for i, node in enumerate(problem.fwd) if node.out_bytes <= threshold)
        for earliest in (False, True):
            tried = schedule_keeping(problem, small, shallow=earliest)
            if (found := simulated(problem, tried).peak_bytes) < peak:
                best, peak, kept, shallow = tried, found, small, earliest
            if peak <= floor:
                return best
    for _ in range(ROUNDS):
        for i in _behind_the_peak(problem, best, kept)[:TRIES]:
            tried = schedule_keeping(problem, kept | {i}, shallow=shallow)
            if (found := simulated(problem, tried).peak_bytes) < peak:
                best, peak, kept = tried, found, kept | {i}
                break
        else:
            return best
    return best


def schedule_keeping(problem: MemoryProblem, kept: frozenset[int], shallow: bool = False) -> RecomputeSchedule:
    """The pruned plan in which only `kept`, and what cannot be recomputed, is kept beyond the stage that makes it.
    shallow: as in `leanest_backward`."""
    fwd = problem.fwd
    stays = kept | unrepeatable(problem)
    backward = leanest_backward(problem, stays, shallow)
    needs = [back.impls[way].needs for back, way in zip(problem.bwd, backward, strict=True)]
    wanted = {i for needed in needs for i in needed}
    runs = [_runs(problem, {i for i, node in enumerate(fwd) if node.kind == "op"} | wanted, again=False)]
    there = frozenset(run.node for run in runs[0]) & stays
    stores = [there]
    for needed in needs:
        again = made_for(problem, needed, there)
        runs.append(_runs(problem, again, again=True))
        there |= again & stays
        stores.append(there)
    return prune(problem, RecomputeSchedule(tuple(runs), tuple(stores), backward))


def _runs(problem: MemoryProblem, nodes: set[int], again: bool) -> tuple[RunForward, ...]:
    def leanest_way(i: int) -> int:
        impls = problem.fwd[i].impls
        return min(range(len(impls)), key=lambda way: (impls[way].workspace(again), impls[way].time(again)))

    return tuple(RunForward(i, leanest_way(i)) for i in sorted(nodes))


def _behind_the_peak(problem: MemoryProblem, schedule: RecomputeSchedule, kept: frozenset[int]) -> list[int]:
    """Nodes that the stage of the largest moment runs from that moment on, smallest first."""
    program = lower(problem, schedule)
    used = [sum(moment[1:]) for moment in moments(problem, program)]
    worst = used.index(max(used))
    stage, reached = 0, -1
    for step in program[: worst + 1]:
        match step:
            case EnterStage(k):
                stage, reached = len(problem.bwd) + 1 - k, -1
            case RunForward(node):
                reached = node
            case RunBackward() | Drop():
                pass
            case _:
                assert_never(step)
    runs = schedule.runs[stage] if stage else ()
    behind = [run.node for run in runs if run.node not in kept and run.node >= reached]
    return sorted(behind, key=lambda i: (problem.fwd[i].out_bytes, -i))
