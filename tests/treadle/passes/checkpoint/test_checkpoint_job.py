"""Checkpoints in memory as a part of a job: off by default, in what its own plans leave of the links."""

from __future__ import annotations

import pytest

from tests.conftest import GOLDEN
from treadle.capture.costs import with_roofline
from treadle.check.plan import check_against, check_plan
from treadle.job.part import JobInputs, PartPrediction, StepTimes
from treadle.passes import room
from treadle.passes.checkpoint.job import CheckpointPart, iteration_of
from treadle.planner.documents import store
from treadle.planner.documents.job import Job
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import InputError
from treadle.planner.graph.ready_times import ready_times
from treadle.planner.passes import require_pass
from treadle.planner.passes.checkpoint.decisions import CheckpointDecisions
from treadle.planner.passes.checkpoint.job import CheckpointJob
from treadle.probe.resolve import load_hardware

JOB = """
kind: job
version: 1
name: tiny
model: model:step
hardware: cpu-2x2
memory: {budget: 4x}
collective: {sketch: cpu-2x2-relay}
"""
MS = 10**6


@pytest.fixture
def given() -> JobInputs:
    hardware = load_hardware("cpu-2x2")
    trace = with_roofline(store.load(GOLDEN / "inputs" / "step.json", Trace), hardware)
    return JobInputs(
        trace, hardware, {}, None, predictions=(PartPrediction(compute_ms=40), PartPrediction(exchange_ms=9))
    )


def planned(job: CheckpointJob, given: JobInputs) -> CheckpointDecisions:
    (item,) = CheckpointPart(job).plans(given)
    plan = require_pass(item.plan(None, lambda progress: None), CheckpointDecisions, "checkpoint")
    assert check_plan(plan) + check_against(plan, {"trace": given.trace, "hardware": given.hardware}) == []
    return plan.decisions


def test_a_job_may_have_the_section_and_without_it_no_part() -> None:
    assert room("checkpoint").job_part(store.loads(JOB, "job.yaml", Job), "job.yaml") is None
    job = store.loads(f"{JOB}checkpoint: {{copies: 1}}", "job.yaml", Job)
    assert room("checkpoint").job_part(job, "job.yaml") == CheckpointPart(CheckpointJob(copies=1))


def test_pieces_go_where_the_plans_of_the_job_send_nothing(given: JobInputs) -> None:
    decisions = planned(CheckpointJob(), given)
    first, last = decisions.problem.spans
    assert (first.length_ns, last.length_ns) == (40 * MS, 0)
    assert [(each.start_ns, each.end_ns) for each in decisions.problem.messages] == [(40 * MS, 49 * MS)]
    assert {piece.span for piece in decisions.pieces} == {0}
    assert decisions.overflow_ns == 0


def test_what_does_not_fit_before_the_exchange_makes_the_iteration_longer(given: JobInputs) -> None:
    decisions = planned(CheckpointJob(state_bytes=1 << 30, failures_per_day=1), given)
    assert {piece.span for piece in decisions.pieces} == {0, 1}
    assert decisions.overflow_ns > 0
    assert decisions.every > 1


def test_what_no_plan_decides_is_as_measured_or_as_the_trace_states_it(given: JobInputs) -> None:
    times = ready_times(given.trace)
    stated = iteration_of(given._replace(predictions=()))
    assert (stated.update_ns, stated.end_ns) == (times.compute_ns, times.compute_ns + times.optimizer_ns)
    measured = iteration_of(given._replace(unplanned=StepTimes(0.030, 0.002, 0.005)))
    assert measured.messages[0].start_ns == 40 * MS  # the memory plan's
    assert (measured.update_ns, measured.end_ns) == (51 * MS, 56 * MS)


def test_the_report_says_how_often_how_much_and_what_survives(given: JobInputs) -> None:
    part = CheckpointPart(CheckpointJob())
    (item,) = part.plans(given)
    report = part.report({"checkpoint": item.plan(None, lambda progress: None)}, None, None)
    (card,) = report.details
    assert card.value == "every iteration"
    assert "no longer" in card.note
    assert "1 machine may be lost at once" in card.note


def test_a_job_on_one_node_has_nowhere_to_send_its_state(given: JobInputs) -> None:
    alone = given._replace(hardware=load_hardware("cpu-2x2", 1))
    with pytest.raises(InputError):
        planned(CheckpointJob(), alone)
