"""Plans from what the forward pass keeps, and a first plan from the relaxation.

The relaxation of one window (`treadle.planner.passes.memory.relaxation`) chooses what to keep at the end of the forward
pass, counting only the kept bytes. A plan also takes bytes for what it recomputes and keeps for later backward nodes,
so several shares of the bytes that may be kept, and of the stages for which recomputed tensors are kept, are tried.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from treadle.planner.errors import LimitError
from treadle.planner.passes.memory.formulation.useful import made_for, unrepeatable
from treadle.planner.passes.memory.lower import RecomputeSchedule, lower, prune
from treadle.planner.passes.memory.methods.limits import Account
from treadle.planner.passes.memory.problem import MemoryProblem
from treadle.planner.passes.memory.program import Drop, EnterStage, RunBackward, RunForward
from treadle.planner.passes.memory.relaxation import choices_of, kept_of, relax, restrain
from treadle.planner.passes.memory.simulate import moments, simulated

SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
HORIZONS = (64, 32, 16, 8, 4, 2, 1)
"""Stages for which a recomputed tensor is kept for later backward nodes."""


def first_plan(problem: MemoryProblem, account: Account) -> RecomputeSchedule | None:
    """The fastest plan from the relaxation within the budget, pruned; None if none fits."""
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
            result = simulated(problem, plan)
            if result.peak_bytes <= problem.budget_bytes:
                fitting.append((result.time_ns, plan))
    return min(fitting, key=lambda plan: plan[0])[1] if fitting else None


def unfold(problem: MemoryProblem, kept: frozenset[int], backward: tuple[int, ...], horizon: int) -> RecomputeSchedule:
    """The pruned schedule in which the forward pass keeps `kept`, each stage recomputes what its backward node lacks,
    and what the next `horizon` backward nodes read is kept; with the fastest implementations that fit."""
    needs = [frozenset(back.impls[way].needs) for back, way in zip(problem.bwd, backward, strict=True)]
    runs = [tuple(RunForward(i) for i in range(len(problem.fwd)))]
    available = always = kept | unrepeatable(problem)
    stores = [available]
    for k, reads in enumerate(needs):
        again = made_for(problem, reads, available)
        runs.append(tuple(RunForward(i) for i in sorted(again)))
        soon = frozenset[int]().union(*needs[k + 1 : k + 1 + horizon])
        available = ((available | again) & soon) | (available & always)
        stores.append(available)
    schedule = prune(problem, RecomputeSchedule(tuple(runs), tuple(stores), backward))
    return fastest_within(problem, _in_place(problem, schedule))


def _in_place(problem: MemoryProblem, schedule: RecomputeSchedule) -> RecomputeSchedule:
    """The schedule with every run in place whose overwritten input is not read again."""
    runs = []
    for stage, stage_runs in enumerate(schedule.runs):
        read = {None, *schedule.kept[stage], *schedule.needs(problem, stage)}
        marked = [RunForward(run.node, run.impl, problem.fwd[run.node].inplace_of not in read) for run in stage_runs]
        runs.append(tuple(marked))
    return replace(schedule, runs=tuple(runs))


def fastest_within(problem: MemoryProblem, schedule: RecomputeSchedule) -> RecomputeSchedule:
    """The schedule with the fastest implementations that fit where they run, or else those of least workspace."""
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
