"""A first plan from the relaxation: what the forward pass keeps, and how backward nodes run, decided for fewer bytes.

The relaxation of one window (`treadle.planner.passes.memory.relaxation`) says what to keep at the end of the forward
pass when nothing but the kept bytes counts. A plan recomputes whatever a backward node lacks, keeps for a while what
later backward nodes read, and so needs room besides. Shares of the bytes that may be kept and times to keep what was
made again are tried.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from treadle.planner.errors import LimitError
from treadle.planner.passes.memory.lower import RecomputeSchedule, lower, prune
from treadle.planner.passes.memory.methods.limits import Account
from treadle.planner.passes.memory.problem import MemoryProblem
from treadle.planner.passes.memory.program import Drop, EnterStage, RunBackward, RunForward
from treadle.planner.passes.memory.relaxation import choices_of, kept_of, relax, restrain
from treadle.planner.passes.memory.simulate import moments, simulate

SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
HORIZONS = (64, 32, 16, 8, 4, 2, 1)
"""What is made again stays for a backward node at most so many stages later."""


def first_plan(problem: MemoryProblem, account: Account) -> RecomputeSchedule | None:
    """The fastest plan found this way within the budget, pruned; None when there is none."""
    fitting: list[tuple[int, RecomputeSchedule]] = []
    for share in SHARES:
        if account.spent():
            break
        relaxed = relax(problem, [range(1, len(problem.bwd) + 1)])
        restrain(relaxed, share)
        try:
            solution = account.solve(relaxed.model, 0.1)
        except LimitError:
            continue
        if not solution.found:
            continue
        kept, backward = kept_of(relaxed, solution), choices_of(relaxed, solution)
        for horizon in (len(problem.bwd), *HORIZONS):
            plan = unfold(problem, kept, backward, horizon)
            result = simulate(problem, lower(problem, plan))
            if result.peak_bytes <= problem.budget_bytes:
                fitting.append((result.time_ns, plan))
    return min(fitting, key=lambda plan: plan[0])[1] if fitting else None


def unfold(problem: MemoryProblem, kept: frozenset[int], backward: tuple[int, ...], horizon: int) -> RecomputeSchedule:
    """The pruned schedule in which the forward pass keeps `kept`, each stage recomputes what its backward node lacks
    and what the next `horizon` backward nodes read stays.

    Every op has the fastest implementation that the budget leaves workspace for.
    """
    needs = [frozenset(back.impls[way].needs) for back, way in zip(problem.bwd, backward, strict=True)]
    once = {i for i, node in enumerate(problem.fwd) if not node.recomputable}
    once |= {i for i, node in enumerate(problem.fwd) if node.creator in once}
    runs = [tuple(RunForward(i) for i in range(len(problem.fwd)))]
    available = kept | once
    stores = [available]
    for k, reads in enumerate(needs):
        again: set[int] = set()
        todo = sorted(reads)
        while todo:
            i = todo.pop()
            if i not in again and i not in available:
                node = problem.fwd[i]
                again.add(i)
                todo.extend(node.inputs)
                if node.creator is not None and node.creator not in again:
                    again.add(node.creator)
                    todo.extend(problem.fwd[node.creator].inputs)
        runs.append(tuple(RunForward(i) for i in sorted(again)))
        soon = frozenset[int]().union(*needs[k + 1 : k + 1 + horizon])
        available = frozenset((available | again) & soon) | (available & (kept | once))
        stores.append(available)
    schedule = prune(problem, RecomputeSchedule(tuple(runs), tuple(stores), backward))
    return fastest_within(problem, _in_place(problem, schedule))


def _in_place(problem: MemoryProblem, schedule: RecomputeSchedule) -> RecomputeSchedule:
    """Every tensor that nothing reads after its overwriter is overwritten."""
    runs = []
    for stage, stage_runs in enumerate(schedule.runs):
        read = {None, *schedule.kept[stage], *schedule.needs(problem, stage)}
        marked = [RunForward(run.node, run.impl, problem.fwd[run.node].inplace_of not in read) for run in stage_runs]
        runs.append(tuple(marked))
    return replace(schedule, runs=tuple(runs))


def fastest_within(problem: MemoryProblem, schedule: RecomputeSchedule) -> RecomputeSchedule:
    """The same with implementations by the room that is left where they run; the least workspace where none fits."""
    program = lower(problem, schedule)
    room = problem.budget_bytes - problem.base_bytes
    stage = -1
    runs: list[list[RunForward]] = [[] for _ in schedule.runs]
    backward = list(schedule.backward)
    for instruction, moment in zip(program, moments(problem, program), strict=True):
        left = room - moment.activations - moment.gradients
        match instruction:
            case RunForward(i, _, inplace):
                impls = problem.fwd[i].impls
                fits = [w for w, impl in enumerate(impls) if impl.workspace(stage > 0) <= left]
                least = min(range(len(impls)), key=lambda w: impls[w].workspace(stage > 0))
                best = min(fits, key=lambda w: impls[w].time(stage > 0)) if fits else least
                runs[stage].append(RunForward(i, best, inplace))
            case RunBackward(k, way):
                alike = [
                    w
                    for w, impl in enumerate(problem.bwd[k].impls)
                    if set(impl.needs) == set(problem.bwd[k].impls[way].needs)
                    and impl.grad_inplace == problem.bwd[k].impls[way].grad_inplace
                ]
                fits = [w for w in alike if problem.bwd[k].impls[w].workspace_bytes <= left]
                least = min(alike, key=lambda w: problem.bwd[k].impls[w].workspace_bytes)
                backward[k] = min(fits, key=lambda w: problem.bwd[k].impls[w].time_ns) if fits else least
            case EnterStage():
                stage += 1
            case Drop():
                pass
            case _:
                assert_never(instruction)
    return RecomputeSchedule(tuple(map(tuple, runs)), schedule.kept, tuple(backward))
