"""What a job's report says of predictions, and of the quality of each plan, whatever pass made it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.planner import samples
from tests.planner.passes.memory.extract.test_problem import perceptron
from treadle.job.part import (
    JobInputs,
    JobPart,
    JobPlan,
    MeasuredRank,
    MeasuredTraining,
    PartPrediction,
    PredictedRow,
    StepClock,
    StepTimes,
)
from treadle.job.pipeline import Planned, PlannedPart
from treadle.job.report import (
    JobSummary,
    busy_share,
    outcome,
    predicted_peaks,
    proved,
    resident_bytes,
    times_rows,
    verdict,
)
from treadle.passes.memory.job import MemoryPart
from treadle.planner.documents.plan import Plan


def planned() -> Planned:
    given = JobInputs(samples.TRACE, samples.HARDWARE, {"sketch": samples.SKETCH}, None)
    return Planned(samples.JOB, given, (), Path("job"))


@pytest.mark.parametrize("kind", ["memory plan", "swap plan", "fusion plan"])
def test_plans_of_every_pass_have_a_quality(kind: str) -> None:
    plan = samples.DOCUMENTS[kind]
    assert isinstance(plan, Plan)
    assert proved(planned(), plan).startswith(("optimal", "gap"))


def test_the_peak_is_in_the_passes_or_in_the_exchange_next_to_all_gradients() -> None:
    trace = perceptron()
    kept = sum(tensor.bytes or 0 for tensor in trace.tensors if tensor.role in ("parameter", "buffer", "input"))
    assert resident_bytes(trace) > kept
    resident, passes = resident_bytes(trace), PartPrediction(compute_bytes=1000)
    assert predicted_peaks(trace, [passes]) == (1000, resident)
    assert predicted_peaks(trace, [passes, PartPrediction(exchange_bytes=200)]) == (1000, resident + 200)
    assert predicted_peaks(trace, [PartPrediction(exchange_bytes=200)]) == (None, resident + 200)


class Exchange(JobPart):
    """Messages of that many bytes."""

    def __init__(self, size: int) -> None:
        self.size = size

    def plans(self, given: JobInputs) -> Sequence[JobPlan]:
        return ()

    def prediction(self, plans: Mapping[str, Plan]) -> PartPrediction:
        return PartPrediction(exchange_bytes=self.size)


def test_a_job_that_does_not_run_counts_the_exchange_too() -> None:
    plan, given = samples.MEMORY_PLAN, JobInputs(samples.TRACE, samples.HARDWARE, {}, None)
    left = plan.decisions.problem.budget_bytes - resident_bytes(samples.TRACE)
    memory = PlannedPart(MemoryPart(plan.decisions.problem.budget_bytes, "all"), {"memory": plan})

    def without_run(message: int) -> JobSummary:
        return outcome(Planned(samples.JOB, given, (memory, PlannedPart(Exchange(message), {})), Path("job")), None)

    assert without_run(left).failures == ()
    assert without_run(left).cards[0].good
    larger = without_run(left + 1)
    assert larger.cards[0].value == "does not fit"
    assert larger.failures[0].startswith("predicted peak ")
    assert "more buckets" in larger.failures[1]


MEASURED = StepTimes(0.3, 0.02, 0.001)


def test_predictions_within_a_third_have_one_line() -> None:
    rows = [PredictedRow("forward and backward", 100.0, 133.0), PredictedRow("peak", 36.0, 36.0, "MiB")]
    assert verdict(rows, 0.0) == ("predictions: all within 33% of measured, the farthest is forward and backward")


@pytest.mark.parametrize("measured", [134.0, 66.0])
def test_the_first_line_names_each_term_that_is_off_by_more_than_a_third(measured: float) -> None:
    rows = [
        PredictedRow("forward and backward", 100.0, measured),
        PredictedRow("optimizer", 1.0, 1.1),
        PredictedRow("peak", 36.0, 72.0, "MiB"),
    ]
    assert verdict(rows, 0.0) == (
        f"predictions: off by more than a third: forward and backward (predicted 100.0 ms, measured {measured}), "
        "peak (predicted 36.0 MiB, measured 72.0)"
    )


def test_the_first_line_says_when_other_work_had_the_cores() -> None:
    rows = [PredictedRow("forward and backward", 100.0, 200.0)]
    assert verdict(rows, 0.52).endswith("; other work had the cores for 52% of the time")
    assert "other work" not in verdict(rows, 0.05)


def test_the_first_line_names_the_remedy_for_costs_of_an_earlier_run() -> None:
    off, near = PredictedRow("forward and backward", 100.0, 200.0), PredictedRow("forward and backward", 100.0, 110.0)
    assert verdict([off], 0.0, reused=True).endswith("; costs are those of an earlier run, --fresh-costs measures anew")
    assert "--fresh-costs" not in verdict([off], 0.0)
    assert "--fresh-costs" not in verdict([near], 0.0, reused=True)


def test_what_was_predicted_to_take_no_time_and_does_is_off() -> None:
    assert "more than a third" in verdict([PredictedRow("exchange", 0.0, 1.0)], 0.0)
    assert "within 0%" in verdict([PredictedRow("exchange", 0.0, 0.0)], 0.0)


def test_the_step_is_the_sum_of_its_parts() -> None:
    unplanned = StepTimes(0.25, 0.002, 0.001)
    rows = times_rows([PartPrediction(compute_ms=270.0), PartPrediction(exchange_ms=8.0)], unplanned, MEASURED)
    assert [(row.label, row.predicted, row.measured) for row in rows] == [
        ("forward and backward", 270.0, pytest.approx(300.0)),
        ("exchange of gradients", pytest.approx(10.0), pytest.approx(20.0)),
        ("optimizer", pytest.approx(1.0), pytest.approx(1.0)),
        ("step with its exchange", pytest.approx(281.0), pytest.approx(321.0)),
    ]


def test_what_no_plan_decides_takes_as_long_as_without_plans() -> None:
    rows = times_rows([PartPrediction(exchange_ms=8.0)], StepTimes(0.25, 0.0, 0.001), MEASURED)
    assert rows[0].predicted == pytest.approx(250.0)


def test_modelled_times_are_those_of_plans_only() -> None:
    rows = times_rows([PartPrediction(exchange_ms=8.0)], None, MEASURED)
    assert [row.label for row in rows] == ["exchange of gradients", "step with its exchange"]


def test_other_work_is_what_the_ranks_did_not_have_of_the_cores() -> None:
    clock = StepClock(0.0, 0.4, 0.4, 0.4)
    half = MeasuredTraining((MeasuredRank((clock,), 0.2), MeasuredRank((clock,), 0.2)))
    assert busy_share(half, 2) == pytest.approx(0.5)
    assert busy_share(half, 1) == 0.0
