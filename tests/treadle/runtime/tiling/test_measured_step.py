"""Costs of a step by measurement: what is work, what a call takes besides, and how problems take them."""

from __future__ import annotations

import pytest

from tests.treadle.runtime.tiling.models_to_cut import mlp, planned
from treadle.codegen.tiling.dtensor_model import step_text
from treadle.planner.passes.tiling.problem import MeshAxis
from treadle.runtime.tiling.measured_step import MeasuredStep, measured_step, split


@pytest.mark.parametrize("step_s", [0.5, 1.0, 3.0])
def test_work_and_calls_add_up_to_the_step(step_s: float) -> None:
    """Also where the engine's step takes less than its calls did one by one."""
    ops = {"small": 0.1, "large": 0.9}
    work, call_s = split(ops, 0.1, step_s, 5)
    assert sum(work.values()) + 5 * call_s == pytest.approx(step_s)
    assert work["small"] == 0
    assert work["large"] > 0


def test_a_problem_takes_measured_costs_and_leaves_sources_without_work() -> None:
    plan, _ = planned(mlp, (2,), {})
    problem = plan.decisions.problem
    op = next(node.id for node in problem.nodes if node.operator == "rule")
    axes = (MeshAxis(name="x0", size=2),)
    found = MeasuredStep(axes, {op: 7}, call_ns=5, step_ns=20, alone_ns=10).priced(problem)
    assert found.call_ns == 5
    assert found.mesh == axes
    assert {node.id: node.work_ns for node in found.nodes if node.work_ns} == {op: 7}


@pytest.mark.slow
def test_processes_measure_a_step_that_is_not_cut() -> None:
    plan, trace = planned(mlp, (2,), {})
    assert not plan.decisions.edges
    found = measured_step(trace, (2,), step_text(plan.decisions, trace), 40)
    ops = [node for node in plan.decisions.problem.nodes if node.operator == "rule"]
    assert set(found.work_ns) == {op.id for op in ops}
    assert sum(found.work_ns.values()) + 40 * found.call_ns == pytest.approx(found.step_ns, rel=0.01)
    assert "on 2 processes at once" in found.contention
