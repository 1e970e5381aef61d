"""Compression as a part of a job: planned for an exchange after the backward pass, executed, compared honestly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.planner.passes.compression.plans import cost
from tests.planner.passes.compression.test_extract import COSTS, STEP, hardware
from treadle.check.plan import check_against, check_plan
from treadle.cli.main import run
from treadle.job.part import JobInputs
from treadle.job.train import TrainingTask, work
from treadle.passes import room
from treadle.passes.compression.job import CompressionPart
from treadle.passes.compression.job_costs import sizes_up_to
from treadle.planner.documents import store
from treadle.planner.documents.compression_costs import CompressionCosts
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.job import Job
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import InputError
from treadle.planner.passes.compression.decisions import CompressionDecisions
from treadle.planner.passes.compression.extract import problem_of
from treadle.planner.passes.compression.job import CompressionJob
from treadle.planner.search.top import Outcome
from treadle.runtime.compression import trials
from treadle.runtime.launch import launch

Found = list[dict[int, Outcome]]
JOB = """
kind: job
version: 1
name: tiny
model: model:step
hardware: cpu-2x2
nodes: 1
memory: {budget: 2x}
"""
RUN = "run: {steps: 3, learning_rate: 10}\n"
COMPRESSION = "compression: {compressors: [dgc:0.01]}"

MODEL = """
import torch

def step():
    layers = [torch.nn.Linear(64, 64) if n % 2 == 0 else torch.nn.GELU() for n in range(6)]
    return torch.nn.Sequential(*layers), (torch.randn(32, 64),), lambda model, inputs: model(inputs).square().mean()
"""
FREE = CompressionCosts(version=1, name="free", compressors=(cost("dgc:0.01", "device", 4),))
DEAR = CompressionCosts(version=1, name="dear", compressors=(cost("dgc:0.01", "device", 10**9),))
PART = CompressionPart(CompressionJob(compressors=("dgc:0.01",)), "job.yaml")


def planned(costs: CompressionCosts, trace: Trace = STEP, machine: Hardware | None = None) -> tuple[Plan, JobInputs]:
    given = JobInputs(trace, machine or hardware("hosts-2x2"), {"costs": costs}, None)
    (item,) = PART.plans(given)
    return item.plan(None, lambda progress: None), given


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("", "$: found no exchange of gradients, expected one of the sections aggregation, collective"),
        (f"{COMPRESSION}\ncollective: {{sketch: ring}}", "$.compression: found it next to collective, expected one"),
        ("compression: {compressors: []}", "$.compression.compressors: found none, expected at least one, such as"),
        ("compression: {compressors: [fp16, gzip]}", "$.compression.compressors[1]: found 'gzip', expected one of"),
        ("compression: {compressors: ['dgc:7']}", "$.compression.compressors[0]: found 'dgc:7', expected a ratio"),
        ("compression: {compressors: [fp16], cost: a}", "$.compression.cost: found an unknown field, did you mean"),
        ("compression: {}", "$.compression.compressors: found nothing, expected this required field"),
    ],
)
def test_sections_that_cannot_be_are_refused_by_place(section: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        store.loads(JOB + section, "job.yaml", Job)
    assert f"job.yaml: {message}" in str(error.value)


def test_a_job_without_the_section_has_no_part() -> None:
    job = store.loads(f"{JOB}collective: {{sketch: ring}}", "job.yaml", Job)
    assert room("compression").job_part(job, "job.yaml") is None
    compressed = store.loads(JOB + COMPRESSION, "job.yaml", Job)
    assert room("compression").job_part(compressed, "job.yaml") == PART
    assert room("collective").job_part(compressed, "job.yaml") is None


def test_the_plan_is_for_gradients_that_are_ready_at_once() -> None:
    plan, given = planned(FREE)
    problem, overlapped = plan.decisions.problem, problem_of(STEP, given.hardware, FREE, ["dgc"])
    assert overlapped.backward_ns > 0
    assert (problem.backward_ns, problem.forward_ns) == (0, overlapped.forward_ns + overlapped.backward_ns)
    assert check_plan(plan) + check_against(plan, {"trace": STEP, "hardware": given.hardware, "costs": FREE}) == []
    slower = replace(STEP, ops=tuple(replace(each, time_ns=50 * (each.time_ns or 0)) for each in STEP.ops))
    (found,) = check_against(plan, {"trace": slower, "hardware": given.hardware, "costs": FREE})
    assert found.startswith("$.decisions.problem.forward_ns: not what the inputs say now")
    exchange = PART.prediction({"compression": plan}).exchange_ms
    assert exchange == pytest.approx((plan.decisions.time_ns - problem.forward_ns) / 1e6)


def test_a_job_that_measures_takes_the_fastest_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    def times(ask: object, clock: object, show: object, rows: list[list[CompressionDecisions]]) -> Found:
        assert [plan.problem.backward_ns for plan in rows[0]] == [0, 0]
        return [{0: Outcome(2.0), 1: Outcome(1.0)}]

    monkeypatch.setattr(trials, "_times", times)
    given = JobInputs(STEP, hardware("hosts-2x2"), {"costs": FREE}, None, measure_top=2)
    (item,) = PART.plans(given)
    plan = item.plan(None, lambda progress: None)
    [tuned] = plan.provenance.tuned
    assert (tuned.place, tuned.model) == (2, "timeline of an iteration on hosts-2x2")
    assert check_plan(plan) == []


def test_the_report_says_what_is_compressed_or_why_nothing_is() -> None:
    for costs, value, note in ((FREE, "2 of 2 gradients", "dgc:0.01 for "), (DEAR, "nothing", "links cost less than ")):
        plans = {"compression": planned(costs)[0]}
        compressed, exchange = PART.report(plans, None, None).details
        assert (compressed.label, compressed.value) == ("compressed", value)
        assert compressed.note.startswith(note)
        assert exchange.note.startswith("predicted, with every gradient as it is and alone ")
        assert bool(PART.loses(plans)) == (costs is FREE)


def test_compressors_without_costs_are_refused_where_the_job_names_them() -> None:
    part = CompressionPart(CompressionJob(compressors=("dgc:0.02",)), "job.yaml")
    (item,) = part.plans(JobInputs(STEP, hardware("hosts-2x2"), {"costs": COSTS}, None))
    with pytest.raises(
        InputError, match=r"job\.yaml: \$\.compression\.compressors: found dgc:0\.02, expected one with"
    ):
        item.plan(None, lambda progress: None)


@pytest.mark.parametrize(("largest", "sizes"), [(1, (1024,)), (1024, (1024,)), (5000, (1024, 4096, 16384))])
def test_costs_are_measured_up_to_the_size_of_all_gradients(largest: int, sizes: tuple[int, ...]) -> None:
    assert sizes_up_to(largest) == sizes


def training(folder: Path, costs: CompressionCosts, *, lossy: bool) -> list[Any]:
    """Two ranks that train three steps, plainly and under a plan for the model."""
    from treadle.capture.costs import with_roofline
    from treadle.capture.graph import capture
    from treadle.capture.load import load_function

    (folder / "model.py").write_text(MODEL)
    machine = hardware("cpu-2x2", 1)
    trace = with_roofline(capture(load_function("model:step", folder), "model:step"), machine)
    plan, given = planned(costs, trace, machine)
    store.save(plan, folder / "compression.plan.json")
    part = PART.training(given, folder)
    return launch(2, work, (TrainingTask("model:step", str(folder), (part,), 3, 0.1, 0, lossy=lossy),))


@pytest.mark.slow
def test_gradients_that_stay_as_they_are_train_like_plain_ones(tmp_path: Path) -> None:
    for rank in training(tmp_path, DEAR, lossy=False):
        assert rank.parameter_difference <= 1e-6 * rank.parameter_scale
        assert rank.planned.losses == rank.exact_losses == pytest.approx(rank.plain.losses, rel=1e-6)
        assert rank.parameters_agree


@pytest.mark.slow
def test_a_compressed_job_is_compared_with_plain_training(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its losses are others, those without compression are the plain ones, and its peak is as predicted."""
    (here / "model.py").write_text(MODEL)
    store.save(FREE, here / "costs.yaml")
    (here / "job.yaml").write_text(f"{JOB}compression: {{compressors: [dgc:0.01], costs: costs.yaml}}\n{RUN}")
    assert run(["plan", "job", "job.yaml", "-o", "out", "--json", "--time-limit", "10"]) == 0
    captured = capsys.readouterr()
    summary, cards = json.loads(captured.out), json.loads(captured.out)["verdicts"]
    assert "are kept between steps" in captured.err
    assert "measure compressors" not in captured.err
    assert cards["same numbers"]["value"] == "yes, measured"
    assert cards["same numbers"]["note"].startswith("with nothing lost, ")
    assert cards["loss under the plans"]["note"].endswith("the same parameters on all ranks")
    assert cards["compressed"]["value"] == "6 of 6 gradients"
    assert "measured" in cards["exchange of gradients"]["value"]
    losses = {row[0]: row[1:] for row in summary["tables"][2]["rows"]}
    assert losses["3"][0] == losses["3"][3] != losses["3"][1]
    predicted = store.load(here / "out" / "memory.plan.json", Plan).decisions.exact_peak_bytes
    assert summary["measured_peaks"]["measured peak"] == pytest.approx(predicted, rel=0.05)
    assert run(["check", "--fresh", "out/compression.plan.json", "out/memory.plan.json"]) == 0
