"""Faster convolutions for a memory plan that could not choose them, as MONeT gives its baselines (section 4.5)."""

from __future__ import annotations

from typing import assert_never

from treadle.planner.passes.memory.lower import RecomputeSchedule, lower, prune
from treadle.planner.passes.memory.problem import BackwardNode, ForwardNode, MemoryProblem
from treadle.planner.passes.memory.program import Drop, EnterStage, RunBackward, RunForward
from treadle.planner.passes.memory.simulate import moments


def post_optimise(problem: MemoryProblem, schedule: RecomputeSchedule) -> RecomputeSchedule:
    """`schedule` with the fastest algorithm for each convolution whose workspace fits the room left at its call.

    MONeT does this for the variants without `conv` (section 4.5). `problem` is that of the schedule with the
    algorithms on: `restrict(whole, families | {"conv"})` where the plan was made for `restrict(whole, families)`. No
    memory is taken that the schedule does not leave, so what it stores and recomputes stays as it is.
    """
    schedule = prune(problem, schedule)
    program = lower(problem, schedule)
    room = problem.budget_bytes - problem.base_bytes
    forward: list[list[RunForward]] = [[] for _ in schedule.runs]
    backward = list(schedule.backward)
    stage = 0
    for instruction, moment in zip(program, moments(problem, program), strict=True):
        left = room - moment.activations - moment.gradients
        match instruction:
            case EnterStage(k):
                stage = len(problem.bwd) + 1 - k
            case RunForward(i, way, inplace):
                forward[stage].append(RunForward(i, _faster(problem.fwd[i], way, stage > 0, left), inplace))
            case RunBackward(k, way):
                backward[k] = _faster_back(problem.bwd[k], way, left)
            case Drop():
                pass
            case _:
                assert_never(instruction)
    return RecomputeSchedule(tuple(map(tuple, forward)), schedule.kept, tuple(backward))


def _faster(node: ForwardNode, way: int, again: bool, left: int) -> int:
    fitting = [
        other for other, impl in enumerate(node.impls) if impl.family == "conv" and impl.workspace(again) <= left
    ]
    return min([way, *fitting], key=lambda other: node.impls[other].time(again))


def _faster_back(node: BackwardNode, way: int, left: int) -> int:
    now = node.impls[way]
    fitting = [
        other
        for other, impl in enumerate(node.impls)
        if impl.family == "conv"
        and impl.workspace_bytes <= left
        and (set(impl.needs), impl.grad_inplace) == (set(now.needs), now.grad_inplace)
    ]
    return min([way, *fitting], key=lambda other: node.impls[other].time_ns)
