"""A server as a part of a job: planned for its ranks, executed next to rank 0, compared with plain training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import GOLDEN
from treadle.capture.costs import with_roofline
from treadle.check.plan import check_against, check_plan
from treadle.cli.main import run
from treadle.job.kept import CostCache
from treadle.job.part import JobInputs
from treadle.passes import room
from treadle.passes.server.job import ServerPart, _parts_of
from treadle.passes.server.job_costs import measured_size
from treadle.planner.documents import store
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.job import Job
from treadle.planner.documents.server_parts import ServerParts
from treadle.planner.documents.trace import Trace
from treadle.planner.passes import require_pass
from treadle.planner.passes.interface import Inputs
from treadle.planner.passes.server.decisions import ServerDecisions
from treadle.planner.passes.server.extract import ServerSetup, problem_of
from treadle.planner.passes.server.job import ServerJob

JOB = """
kind: job
version: 1
name: tiny
model: served_model:step
hardware: host.yaml
memory: {budget: 4x}
"""
HOST = """
kind: hardware
version: 1
name: one host
nodes: 1
devices:
  - {model: any, kind: cpu, count: 2, peak_flops: {float32: 5.0e+10}, memory_bandwidth: 1.7e+10}
host: {cpu_cores: 2}
switches: [{name: memory, kind: memory, members: [0, 1], alpha_us: 10, beta_us_per_MB: 500}]
"""
MODEL = """
import torch
from torch import nn

def step():
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 1))
    return model, (torch.randn(8, 32),), lambda model, inputs: model(inputs).square().mean()
"""
PART = ServerPart(ServerJob())


def test_a_job_may_have_the_section_and_without_it_no_part() -> None:
    assert room("server").job_part(store.loads(f"{JOB}server: {{}}", "job.yaml", Job), "job.yaml") == PART
    other = store.loads(f"{JOB}collective: {{sketch: ring}}", "job.yaml", Job)
    assert room("server").job_part(other, "job.yaml") is None


def test_all_ranks_of_a_job_are_workers_of_a_server_on_the_first_ones_machine() -> None:
    hardware = store.loads(HOST, "host.yaml", Hardware)
    parts = _parts_of(hardware)
    trace = with_roofline(store.load(GOLDEN / "inputs" / "step.json", Trace), hardware)
    (item,) = PART.plans(JobInputs(trace, hardware, {"parts": parts}, None))
    plan = require_pass(item.plan(None, lambda progress: None), ServerDecisions, "server")
    decisions, problem = plan.decisions, plan.decisions.problem
    assert (problem.workers, problem.mode, problem.carrier, problem.optimizer) == (2, "cc", "shared", "mean")
    assert check_plan(plan) + check_against(plan, {"trace": trace, "hardware": hardware, "parts": parts}) == []
    assert PART.prediction({"server": plan}).exchange_ms == pytest.approx(decisions.time_ns / 1e6)
    bottleneck, exchange = PART.report({"server": plan}, None, None).details
    assert (bottleneck.label, bottleneck.value) == ("bottleneck of the exchange", "memory")  # not the computation
    assert exchange.note.startswith("predicted, by a server with 1 core")


@pytest.mark.slow
def test_costs_of_the_server_are_measured_here_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    hardware, said = store.loads(HOST, "host.yaml", Hardware), list[str]()
    trace = store.load(GOLDEN / "inputs" / "step.json", Trace)
    others: Inputs = {"parts": _parts_of(hardware)}
    first, second = (
        PART.with_measured(trace, hardware, others, said.append, CostCache(fresh=False))[1]["parts"] for _ in range(2)
    )
    assert first == second
    assert said == ["measure a server and a worker, once for this machine"]
    assert isinstance(first, ServerParts)
    costs = first.costs["shared"]
    assert min(costs.add_us_per_MB, costs.latency_us, first.optimize_us_per_MB["mean"]) > 0
    problem = problem_of(with_roofline(trace, hardware), first, setup=ServerSetup(2, "cc", optimizer="mean"))
    assert problem.latency_ns == round(1000 * costs.latency_us)
    named = ServerPart(ServerJob(parts="pbox"))
    assert named.with_measured(trace, hardware, others, said.append, CostCache(fresh=True))[1] == others


def test_a_size_is_measured_for_all_models_of_about_as_many_bytes() -> None:
    assert [measured_size(each) for each in (1, 3 << 20, 4 << 20, 1 << 40)] == [1 << 20, 4 << 20, 4 << 20, 1 << 26]


@pytest.mark.slow
def test_a_job_with_a_server_from_its_file_to_its_report(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "served_model.py").write_text(MODEL)
    (here / "host.yaml").write_text(HOST.replace("kind: cpu", "kind: gpu"))  # whose costs are not measured
    (here / "job.yaml").write_text(f"{JOB}server: {{}}\n")
    assert run(["plan", "job", "job.yaml", "-o", "out", "--json", "--time-limit", "10"]) == 0
    cards = json.loads(capsys.readouterr().out)["verdicts"]
    assert cards["same numbers"]["value"] == "yes, measured"
    assert "measured" in cards["exchange of gradients"]["value"]
    assert "server with 1 core" in cards["exchange of gradients"]["note"]
    assert "ended by SIGTERM" in (here / "out" / "server" / "server-0.log").read_text()
    assert run(["check", "--fresh", "out/server.plan.json"]) == 0
