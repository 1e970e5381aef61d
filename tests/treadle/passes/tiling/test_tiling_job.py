"""Tilings in a job: a section of the job file, a plan, cards of the report; absent unless asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.treadle.passes.tiling.traced_layers import layers
from treadle.check.plan import check_plan
from treadle.job.part import JobInputs
from treadle.passes import room
from treadle.passes.tiling.job import TilingPart
from treadle.planner.documents import store
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.job import Job
from treadle.planner.documents.plan import Plan
from treadle.planner.errors import InputError
from treadle.planner.passes.tiling.job import TilingJob
from treadle.planner.passes.tiling.room import PASS

JOB = """
kind: job
version: 1
name: tiny
model: linear_model:step
hardware: cpu-2x2
memory: {budget: 4x}
collective: {sketch: ring}
"""


def given() -> JobInputs:
    return JobInputs(layers(2), store.load(Path("profiles/cpu-2x2.yaml"), Hardware), {}, None)


def test_a_job_has_no_tilings_unless_it_asks_for_them() -> None:
    assert room("tiling").job_part(store.loads(JOB, "job.yaml", Job), "job.yaml") is None
    job = store.loads(f"{JOB}tiling: {{mesh: [2, 2]}}", "job.yaml", Job)
    assert room("tiling").job_part(job, "job.yaml") == TilingPart(TilingJob(mesh=(2, 2)), "job.yaml")


def test_the_step_is_cut_over_the_ranks_of_the_job() -> None:
    part = TilingPart(TilingJob(mesh=(2, 2)), "job.yaml")
    inputs = given()
    (planned,) = part.plans(inputs)
    plan = planned.plan(None, lambda state: None)
    assert isinstance(plan, Plan)
    assert check_plan(plan) == []
    step, tilings = part.report({"tiling": plan}, None, None).details
    assert "between ranks" in step.note
    assert tilings.value == "checked, not run"
    assert PASS.check_inputs(plan, {"trace": inputs.trace, "hardware": inputs.hardware}) == []


def test_a_mesh_of_another_size_is_refused() -> None:
    with pytest.raises(InputError, match="found a mesh of 2 workers, expected 4, the ranks of the job"):
        TilingPart(TilingJob(mesh=(2,)), "job.yaml").plans(given())
