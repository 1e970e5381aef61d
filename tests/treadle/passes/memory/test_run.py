"""A plan that makes tensors again, from the search to a run: the bits are those of the step without a limit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.planner.job.recompute_swap.steps import captured, machine_for
from treadle.cli.main import run
from treadle.passes.swap.command import repeated
from treadle.planner.documents import store
from treadle.planner.documents.plan import InputRef
from treadle.planner.job.recompute_swap.memory_runs import SAME_BITS
from treadle.planner.job.recompute_swap.planning import JointOptions, JointProblem, plan_joint
from treadle.planner.passes.memory.planning import MemoryOptions
from treadle.planner.passes.swap.planning import SwapOptions
from treadle.runtime.swap import compare

OPTIONS = JointOptions(
    swap=SwapOptions(population=4, generations=1, patience=1, time_limit_s=120.0),
    families=SAME_BITS,
    memory=MemoryOptions(method="heuristic"),
    evaluations=8,
    starts=1,
    finalists=1,
)


def test_a_plan_that_makes_again_runs_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Copying everything takes eight times as long as the step, so some of it is recomputed."""
    monkeypatch.setattr(compare, "EMULATED", 0.05)
    monkeypatch.chdir(tmp_path)
    trace = replace(captured("convnet", "sgd"), entry="tests.treadle.runtime.models:convnet")
    plan = plan_joint(JointProblem(trace, machine_for(trace, 0.7, 8.0)), options=OPTIONS)
    assert repeated(plan.decisions)
    assert plan.decisions.in_bytes
    store.save(trace, "step.trace.json")
    inputs = {"trace": InputRef(file="step.trace.json", digest=store.digest(trace))}
    store.save(replace(plan, inputs=inputs), "made.plan.json")
    assert run(["check", "made.plan.json", "--fresh"]) == 0
    assert "accepted" in capsys.readouterr().out
    assert run(["generate", "made.plan.json", "-o", "made"]) == 0
    capsys.readouterr()
    assert run(["run", "made", "--steps", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["bit_equal"]
    assert found["findings"] == []
