"""Hosts of a job in order: a section of the job file, a plan, the files for launchers, the predicted gain."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.conftest import GOLDEN
from tests.treadle.passes.ranks.test_ranks_command import matrix
from treadle.check.plan import check_against, check_plan
from treadle.cli.main import run
from treadle.job.part import JobInputs
from treadle.passes import room
from treadle.passes.ranks.job import COSTS, RanksPart
from treadle.planner.documents import store
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.job import Job
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import InputError
from treadle.planner.passes.ranks.job import RanksJob
from treadle.planner.search.clock import Clock

JOB = """
kind: job
version: 1
name: tiny
model: linear_model:step
hardware: cpu-2x2
memory: {budget: 4x}
collective: {sketch: ring}
"""
MODEL = """
import torch
from torch import nn

def step():
    return nn.Linear(4, 4), (torch.randn(2, 4),), lambda model, inputs: model(inputs).square().mean()
"""
PART = RanksPart(RanksJob(costs="costs.json"), "job.yaml")


def given(count: int, slots: int) -> JobInputs:
    hardware = store.load(Path("profiles/hosts-2x2.yaml"), Hardware)
    trace = store.load(GOLDEN / "inputs" / "step.json", Trace)
    return JobInputs(trace, replace(hardware, nodes=4), {COSTS: matrix(count, slots)}, None)


def test_a_job_has_no_order_of_hosts_unless_it_asks_for_one() -> None:
    assert room("ranks").job_part(store.loads(JOB, "job.yaml", Job), "job.yaml") is None
    job = store.loads(f"{JOB}ranks: {{costs: costs.json}}", "job.yaml", Job)
    assert room("ranks").job_part(job, "job.yaml") == PART
    with pytest.raises(InputError, match=r"\$\.ranks\.collective: found 'mesh' \(text\), expected"):
        store.loads(f"{JOB}ranks: {{costs: c.json, collective: mesh}}", "job.yaml", Job)


def test_the_plan_is_for_the_gradients_of_the_job_and_its_gain_is_reported() -> None:
    inputs = given(4, 2)
    (item,) = PART.plans(inputs)
    plan = item.plan(Clock.of(5), lambda progress: None)
    tensors = {tensor.id: tensor.bytes for tensor in inputs.trace.tensors}
    assert plan.decisions.problem.size_bytes == sum(tensors[each] or 0 for each in inputs.trace.gradient_order)
    assert check_plan(plan) + check_against(plan, inputs.others) == []
    other = {COSTS: matrix(4, 1)}
    assert check_against(plan, other) == ["$.decisions.problem.hosts: not what the inputs say now; plan again"]
    cost, random, order = PART.report({"ranks": plan}, None, None).details
    assert cost.label == "ring over the hosts in order"
    assert order.value == "checked, not run"
    assert "median of random orders" in random.note


def test_costs_of_other_hosts_than_the_nodes_of_the_job_are_refused() -> None:
    for count, slots, found in ((3, 2, "3 hosts of 2 ranks"), (4, 1, "4 hosts of 1 rank")):
        with pytest.raises(InputError, match=f"{found} in costs.json, expected 4 of 2, the nodes of the job"):
            PART.plans(given(count, slots))


@pytest.mark.slow
def test_a_job_with_an_order_of_hosts_from_its_file_to_its_artefacts(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "linear_model.py").write_text(MODEL)
    (here / "job.yaml").write_text(f"{JOB}ranks: {{costs: costs.json, collective: halving-doubling}}\n")
    store.save(matrix(2, 2), here / "costs.json")
    assert run(["plan", "job", "job.yaml", "-o", "out", "--no-run", "--time-limit", "3"]) == 0
    assert "halving-doubling over the hosts in order" in (here / "out" / "report.html").read_text()
    assert store.load("out/ranks.plan.json", Plan).inputs["costs"].file == "host-costs.json"
    assert (here / "out" / "ranks" / "hostfile").read_text().startswith("node-")
    capsys.readouterr()
    assert run(["check", "--fresh", "out/ranks.plan.json"]) == 0
    assert "inputs costs checked" in capsys.readouterr().out
