"""Aggregation as a part of a job: its section, its plan, and what does not go with the hosts of the job."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import GOLDEN
from tests.planner.passes.aggregation.aggregation_plans import Groups
from tests.treadle.passes.aggregation.test_command import MIXED, matrix_on
from treadle.cli.main import run
from treadle.job.part import JobInputs
from treadle.passes import room
from treadle.passes.aggregation.job import AggregationPart
from treadle.planner.documents import store
from treadle.planner.documents.hardware import Hardware, Network
from treadle.planner.documents.job import Job
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import InputError
from treadle.planner.passes.aggregation.decisions import AggregationDecisions
from treadle.planner.passes.aggregation.job import AggregationJob
from treadle.probe.resolve import load_hardware

JOB = """
kind: job
version: 1
name: tiny
model: tiny_model:step
hardware: hosts.yaml
memory: {budget: 4x}
aggregation: {costs: costs.json}
"""
MODEL = """
import torch
from torch import nn

def step():
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 1))
    return model, (torch.randn(8, 16),), lambda model, given: model(given).square().mean()
"""
PART = AggregationPart(AggregationJob(costs="costs.json"), "job.yaml")


def hosts(count: int) -> Hardware:
    from msgspec.structs import replace

    whole = load_hardware("cpu-2x2")
    network = Network(kind="ethernet", alpha_us=30, beta_us_per_MB=839)
    return replace(whole, nodes=count, devices=(replace(whole.devices[0], count=1),), links=(), network=network)


def given(groups: Groups, count: int) -> JobInputs:
    trace = store.load(GOLDEN / "inputs" / "step.json", Trace)
    return JobInputs(trace, hosts(count), {"host-costs": matrix_on(groups)}, None)


def test_a_job_may_have_the_section_and_without_it_no_part() -> None:
    job = store.loads(JOB, "job.yaml", Job)
    assert room("aggregation").job_part(job, "job.yaml") == PART
    other = store.loads(JOB.replace("aggregation: {costs: costs.json}", "collective: {sketch: ring}"), "job.yaml", Job)
    assert room("aggregation").job_part(other, "job.yaml") is None
    with pytest.raises(InputError, match="expected one exchange of gradients"):
        store.loads(f"{JOB}collective: {{sketch: ring}}", "job.yaml", Job)


def test_all_gradients_are_planned_as_one_sum() -> None:
    inputs = given(MIXED, 4)
    (item,) = PART.plans(inputs)
    plan: Plan[AggregationDecisions] = item.plan(None, lambda progress: None)
    tensors = {tensor.id: tensor for tensor in inputs.trace.tensors}
    trained = {tensors[name].gradient_of for name in inputs.trace.gradient_order}
    assert plan.decisions.problem.size_bytes == sum(tensors[name].bytes or 0 for name in trained if name)
    assert PART.prediction({"aggregation": plan}).exchange_ms == plan.decisions.time_ns / 1e6
    report = PART.report({"aggregation": plan}, None, None)
    assert "predicted between the hosts of the cost matrix" in report.details[0].note


def test_other_hosts_than_the_nodes_of_the_job_are_refused() -> None:
    with pytest.raises(
        InputError, match=r"found 4 hosts of 1 in costs.json, expected 3 of 1 rank, the nodes of the job"
    ):
        PART.plans(given(MIXED, 3))


@pytest.mark.slow
def test_a_job_makes_plan_program_and_report(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "tiny_model.py").write_text(MODEL)
    (here / "job.yaml").write_text(JOB)
    store.save(hosts(2), here / "hosts.yaml")
    store.save(matrix_on(((0, 1),)), here / "costs.json")
    assert run(["plan", "job", "job.yaml", "--no-run", "-o", "out"]) == 0, capsys.readouterr().err
    assert "masters of " in "".join(capsys.readouterr())
    assert (here / "out" / "aggregation" / "allreduce.xml").is_file()
    assert run(["check", "out/aggregation.plan.json", "--fresh"]) == 0
    assert "exchange of gradients" in (here / "out" / "report.html").read_text()
