"""Programs of arrays on processes: NumPy's results, with the collectives of the text and no others."""

from __future__ import annotations

import msgspec
import pytest

import treadle.array as ta
from treadle.codegen.tiling.dtensor_array import program_text
from treadle.planner.documents.plan import Plan
from treadle.planner.passes.tiling.planning import TilingOptions, plan_tiling
from treadle.planner.passes.tiling.problem import MeshAxis, TilingProblem
from treadle.runtime.tiling.dtensor import run_arrays
from treadle.runtime.tiling.measured import fitted
from treadle.runtime.tiling.reference import by_numpy


def program() -> object:
    x = ta.full((8, 8), 3.0)
    y = x @ ta.full((8, 4), 0.5)
    z = (y - y.mean(axis=0)) * 2.0 + y
    return z.T, (x * x).sum(axis=1), z.max(), (x > 2.0).all()


def on_four(**more: object) -> TilingProblem:
    problem = ta.capture(program, name="program")
    return msgspec.structs.replace(problem, mesh=(MeshAxis(name="workers", size=4),), **more)


@pytest.mark.slow
def test_a_program_with_second_copies_on_four_workers() -> None:
    problem = on_four(dup_bytes=10**6)
    plan: Plan = plan_tiling(problem, options=TilingOptions(method="worst"))
    found = run_arrays(plan, program_text(plan.decisions))
    assert found["findings"] == []
    assert found["collectives"]["counted"] == found["collectives"]["planned"] != {}


def test_whole_arrays_are_those_of_numpy() -> None:
    made = by_numpy(on_four(), {})
    assert made[on_four().outputs[1]].tolist() == [72.0] * 8


def test_costs_are_the_line_through_measured_times() -> None:
    points = {
        transfer: [(size, 2e-4 + size / 5e8) for size in (4096, 65536, 1048576)]
        for transfer in ("allgather", "reduce-scatter", "allreduce", "alltoall")
    }
    for cost in fitted(points):
        assert cost.alpha_ns == pytest.approx(200_000, rel=1e-6)
        assert cost.rate == pytest.approx(5e8, rel=1e-6)
    falling = {transfer: [(4096, 2e-3), (8192, 1e-3)] for transfer in points}
    assert all(cost.alpha_ns >= 0 and cost.rate > 0 for cost in fitted(falling))
