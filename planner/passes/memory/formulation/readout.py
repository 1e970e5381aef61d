"""From a solution of the 0-1 program to a schedule, and from a schedule to a hint for the solver."""

from __future__ import annotations

from treadle.planner.passes.memory.formulation.tables import Formulation, MaybeVar
from treadle.planner.passes.memory.formulation.useful import Cost, as_good, backward_costs, forward_costs
from treadle.planner.passes.memory.lower import RecomputeSchedule
from treadle.planner.passes.memory.program import RunForward
from treadle.planner.solver import Solution, Var


def schedule_of(f: Formulation, solution: Solution) -> RecomputeSchedule:
    """The decisions that a solution stands for."""

    def on(var: MaybeVar) -> bool:
        return var is not None and solution.values[var] > 0.5

    stages = range(f.stages + 1, 0, -1)
    runs = tuple(
        tuple(
            RunForward(i, next(way for way, var in f.delta[k][i].items() if on(var)), on(f.q[k][i]))
            for i in range(len(f.problem.fwd))
            if on(f.r[k][i])
        )
        for k in stages
    )
    kept = tuple(frozenset(i for i, var in enumerate(f.s[k - 1]) if on(var)) for k in stages)
    backward = tuple(next(way for way, var in f.dhat[k].items() if on(var)) for k in stages if f.again(k))
    return RecomputeSchedule(runs, kept, backward)


def hint(f: Formulation, schedule: RecomputeSchedule) -> None:
    """Start the solver from `schedule`. Every integer variable gets a value, the others follow from them."""
    values: dict[Var, int] = {}

    def set_to(var: MaybeVar, value: bool) -> None:
        if var is not None and var != f.one:
            values[var] = int(value)

    for stage, k in enumerate(range(f.stages + 1, 0, -1)):
        ran = {run.node: run for run in schedule.runs[stage]}
        needs = schedule.needs(f.problem, stage)
        overwritten = {f.problem.fwd[run.node].inplace_of for run in schedule.runs[stage] if run.inplace}
        for i in range(len(f.problem.fwd)):
            run = ran.get(i)
            kept = i in schedule.kept[stage]
            if stage and len(f.u[k][i]) == 1:
                set_to(f.u[k][i][0][0], i in needs or kept)
            set_to(f.s[k - 1][i], kept)
            set_to(f.p[k][i], run is not None and i not in overwritten)
            set_to(f.r[k][i], run is not None)
            set_to(f.q[k][i], run is not None and run.inplace)
            if run is not None and f.delta[k][i]:
                chosen = _offered(run.impl, f.delta[k][i], *forward_costs(f.problem.fwd[i], f.again(k)))
                for way, var in f.delta[k][i].items():
                    set_to(var, way == chosen)
            else:
                for var in f.delta[k][i].values():
                    set_to(var, False)
        if stage:
            chosen = _offered(schedule.backward[stage - 1], f.dhat[k], *backward_costs(f.problem.bwd[stage - 1]))
            for way, var in f.dhat[k].items():
                set_to(var, way == chosen)
    for var, value in values.items():
        f.model.hint(var, value)


def _offered(impl: int, offered: dict[int, Var], costs: list[Cost], needs: list[frozenset[int]]) -> int:
    """`impl`, or one that is as good where the program left it out."""
    return impl if impl in offered else next(other for other in offered if as_good(other, impl, costs, needs))
