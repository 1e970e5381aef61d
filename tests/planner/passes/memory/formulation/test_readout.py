"""A schedule starts the solver as a whole solution, whatever implementations the program leaves out."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace
from scipy.optimize import Bounds, LinearConstraint, milp

from tests.planner.passes.memory.instances import instance
from treadle.planner.passes.memory.formulation.checkpoint import formulate
from treadle.planner.passes.memory.formulation.memory_rows import row_peak
from treadle.planner.passes.memory.formulation.readout import hint
from treadle.planner.passes.memory.formulation.switches import Switches
from treadle.planner.passes.memory.lower import RecomputeSchedule, lower, store_all
from treadle.planner.passes.memory.methods.least_peak import schedule_keeping
from treadle.planner.passes.memory.problem import MemoryProblem
from treadle.planner.passes.memory.simulate import simulate


def scaled(problem: MemoryProblem, factor: int) -> MemoryProblem:
    """The problem with sizes that no unit divides."""
    replace_ = msgspec.structs.replace
    fwd = tuple(
        replace_(
            node,
            out_bytes=node.out_bytes * factor + i % 3 if node.out_bytes else 0,
            impls=tuple(replace_(impl, workspace_bytes=impl.workspace_bytes * factor) for impl in node.impls),
        )
        for i, node in enumerate(problem.fwd)
    )
    bwd = tuple(
        replace_(back, live_grad_bytes=back.live_grad_bytes * factor, out_grad_bytes=back.out_grad_bytes * factor + 1)
        for back in problem.bwd
    )
    return replace_(problem, budget_bytes=(problem.budget_bytes + 1) * factor, fwd=fwd, bwd=bwd)


def completed(problem: MemoryProblem, schedule: RecomputeSchedule, switches: Switches) -> float | None:
    """Objective of the best solution with all integers as hinted."""
    program = formulate(problem, switches=switches)
    hint(program, schedule)
    form = program.model.matrix_form()
    lower_, upper = form.lower.copy(), form.upper.copy()
    for var in np.flatnonzero(form.integer):
        if var != program.one:
            lower_[var] = upper[var] = program.model.hints[int(var)]
    rows = LinearConstraint(form.matrix, form.row_lower, form.row_upper)
    result = milp(form.cost, bounds=Bounds(lower_, upper), constraints=rows)
    return None if result.fun is None else result.fun + form.offset


def test_a_plan_that_fills_the_budget_is_a_solution():
    for seed in range(40):
        problem = scaled(instance(seed), 2**30 + 7)
        schedule = store_all(problem)
        full = replace(problem, budget_bytes=row_peak(problem, schedule))
        assert completed(full, schedule, Switches()) is not None, seed


@pytest.mark.parametrize("switches", [Switches(), Switches(no_dominated=False), Switches(local="long")])
def test_hinted_schedules_are_solutions(switches):
    for seed in range(40):
        problem = replace(instance(seed), budget_bytes=1000)
        for schedule in (store_all(problem), schedule_keeping(problem, frozenset())):
            time = simulate(problem, lower(problem, schedule)).time_ns
            found = completed(problem, schedule, switches)
            assert found is not None, seed
            assert found == pytest.approx(time) if not switches.no_dominated else found <= time + 1e-6
