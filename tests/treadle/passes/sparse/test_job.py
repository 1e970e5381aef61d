"""Sparse gradients as a part of a job: recorded on its batches, planned, executed, compared with plain training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import GOLDEN
from treadle.check.plan import check_against, check_plan
from treadle.cli.main import run
from treadle.job.part import JobInputs
from treadle.job.train import TrainingTask, batch_of
from treadle.passes import room
from treadle.passes.sparse.job import SparsePart
from treadle.passes.sparse.job_recording import STEPS, recorded_sparsity
from treadle.planner.documents import store
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.job import Job
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.sparsity import Sparsity
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import InputError
from treadle.planner.passes.sparse.decisions import SparseDecisions
from treadle.planner.passes.sparse.job import OTHERS, SparseJob
from treadle.planner.search.top import Outcome
from treadle.runtime.sparse import trials

Found = list[dict[int, Outcome]]
JOB = """
kind: job
version: 1
name: tiny
model: embeddings_model:step
hardware: hosts.yaml
memory: {budget: 4x}
"""
HOSTS = """
kind: hardware
version: 1
name: two hosts with one device each
nodes: 2
devices:
  - {model: any, kind: gpu, count: 1, peak_flops: {float32: 1.0e+13}, memory_bandwidth: 1.0e+12}
nics: [{name: eth0, devices: [0], speed_gbps: 10}]
network: {kind: ethernet, alpha_us: 30, beta_us_per_MB: 838.861}
"""
MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.users = nn.Embedding(3000, 16)
        self.items = nn.EmbeddingBag(20, 16, mode="sum")
        self.layers = nn.Sequential(nn.Linear(32, 8), nn.GELU(), nn.Linear(8, 1))

    def forward(self, users, items):
        return self.layers(torch.cat([self.users(users), self.items(items)], 1))

def step():
    inputs = (torch.randint(0, 3000, (8,)), torch.randint(0, 20, (8, 4)))
    return Net(), inputs, lambda model, *inputs: model(*inputs).square().mean()

def dense():
    return nn.Linear(4, 4), (torch.randn(2, 4),), lambda model, inputs: model(inputs).square().mean()
"""
PART = SparsePart(SparseJob())


def task(folder: Path, function: str = "step", steps: int = 3) -> TrainingTask:
    (folder / "embeddings_model.py").write_text(MODEL)
    return TrainingTask(f"embeddings_model:{function}", str(folder), (), steps, 0.1, 0)


def planned(folder: Path, hardware: Hardware) -> tuple[Plan[SparseDecisions], JobInputs, Sparsity]:
    sparsity = recorded_sparsity(task(folder), hardware.ranks, lambda line: None)
    given = JobInputs(store.load(GOLDEN / "inputs" / "step.json", Trace), hardware, {"sparsity": sparsity}, None)
    (item,) = PART.plans(given)
    return item.plan(None, lambda progress: None), given, sparsity


def test_a_job_may_have_the_section_and_without_it_no_part() -> None:
    job = store.loads(f"{JOB}sparse: {{}}", "job.yaml", Job)
    assert room("sparse").job_part(job, "job.yaml") == PART
    assert room("compression").job_part(job, "job.yaml") is None
    other = store.loads(f"{JOB}collective: {{sketch: ring}}", "job.yaml", Job)
    assert room("sparse").job_part(other, "job.yaml") is None
    for section, message in (
        ("sparse: {}\ncollective: {sketch: ring}", r"\$\.sparse: found it next to collective, expected one exchange"),
        ("sparse: {cost: a}", r"\$\.sparse\.cost: found an unknown field, did you mean"),
    ):
        with pytest.raises(InputError, match=message):
            store.loads(JOB + section, "job.yaml", Job)


def test_a_job_that_measures_takes_the_fastest_schemes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def times(ask: object, clock: object, show: object, rows: list[list[SparseDecisions]]) -> Found:
        return [{place: Outcome(float(len(row) - place)) for place in range(len(row))} for row in rows]

    monkeypatch.setattr(trials, "_times", times)
    (tmp_path / "hosts.yaml").write_text(HOSTS)
    _, given, _ = planned(tmp_path, store.load(tmp_path / "hosts.yaml", Hardware))
    (item,) = PART.plans(given._replace(measure_top=2))
    plan = item.plan(None, lambda progress: None)
    assert {each.model for each in plan.provenance.tuned} == {
        "prices of sparse schemes on two hosts with one device each"
    }
    assert [each.place for each in plan.provenance.tuned[:3]] == [2, 2, 2]
    assert check_plan(plan) == []


def test_what_is_recorded_are_the_batches_that_the_ranks_train_on(tmp_path: Path) -> None:
    found = recorded_sparsity(task(tmp_path), 2, lambda line: None)
    users, items, others = found.tensors
    assert [each.name for each in found.tensors] == ["users.weight", "items.weight", OTHERS]
    assert (users.units, users.width, items.units, others.units) == (3000, 16, 20, 32 * 8 + 8 + 8 + 1)
    seen = [
        set(batch_of(task(tmp_path), rank, 2, step).inputs[0].tolist()) for step in range(STEPS) for rank in range(2)
    ]
    assert users.sets == len(seen)
    assert users.unions[0].most == max(map(len, seen))
    assert users.unions[1].most >= max(len(one | other) for one, other in zip(seen[::2], seen[1::2], strict=True))
    assert {union.mean for union in others.unions} == {others.units}
    with pytest.raises(InputError, match="embeddings_model:dense: found no embedding that takes a gradient"):
        recorded_sparsity(task(tmp_path, "dense"), 2, lambda line: None)


def test_embeddings_are_exchanged_sparse_where_that_is_faster(tmp_path: Path) -> None:
    hardware = store.loads(HOSTS, "hosts.yaml", Hardware)
    plan, _, sparsity = planned(tmp_path, hardware)
    decisions, plans = plan.decisions, {"sparse": plan}
    assert decisions.time_ns < decisions.dense_ns
    assert [each.scheme == "dense" for each in decisions.gradients] == [False, False, True]
    assert check_plan(plan) + check_against(plan, {"sparsity": sparsity, "hardware": hardware}) == []
    assert PART.prediction(plans).exchange_ms == pytest.approx(decisions.time_ns / 1e6)
    schemes, exchange = PART.report(plans, None, None).details
    assert schemes.value == "2 of 2 embeddings"
    assert exchange.note.startswith("predicted, with every gradient dense ")


@pytest.mark.slow
def test_a_job_with_sparse_gradients_from_its_file_to_its_report(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "embeddings_model.py").write_text(MODEL)
    (here / "hosts.yaml").write_text(HOSTS)
    (here / "job.yaml").write_text(f"{JOB}sparse: {{}}\n")
    assert run(["plan", "job", "job.yaml", "-o", "out", "--json", "--time-limit", "10"]) == 0
    captured = capsys.readouterr()
    summary, cards = json.loads(captured.out), json.loads(captured.out)["verdicts"]
    assert "record sparse gradients of 4 steps of 2 ranks" in captured.err
    assert cards["same numbers"]["value"] == "yes, measured"
    assert cards["sparse gradients"]["value"] == "2 of 2 embeddings"
    assert "measured" in cards["exchange of gradients"]["value"]
    assert "messages between these processes were not measured" in cards["exchange of gradients"]["note"]
    rows = {row[0]: row[1:] for row in summary["tables"][0]["rows"]}
    predicted, measured, _ = rows["peak of live tensors, MiB"]
    assert float(measured) == pytest.approx(float(predicted), rel=0.15)
    assert run(["check", "--fresh", "out/sparse.plan.json", "out/memory.plan.json"]) == 0
