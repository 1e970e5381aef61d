"""`treadle plan swap --with-recompute`: a plan in which ops run again, that checks against its trace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.planner.job.recompute_swap.steps import MIB, chain
from treadle.cli.main import run
from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan

FEW = ["--population", "4", "--generations", "2", "--patience", "1", "--workers", "1"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    store.save(chain(12, size=64 * MIB), "step.json")
    return tmp_path


def test_ops_run_again_and_the_plan_checks_against_its_trace(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = ["plan", "swap", "--trace", "step.json", "--hardware", "p3-v100-16gb", "--device-memory", "512MiB", *FEW]
    assert run([*base, "--with-recompute", "--same-bits", "-o", "plan.json", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    plan = store.load("plan.json", Plan)
    assert len(plan.decisions.runs) == facts["ops"] > 24
    assert facts["repeated_runs"] == facts["ops"] - 24
    assert facts["repeated_ns"] == 1000 * facts["repeated_runs"]
    assert plan.provenance.options["with_recompute"] is True
    assert run([*base, "-o", "alone.json", "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert facts["time_ns"] < alone["time_ns"]
    assert facts["ideal_ns"] == alone["ideal_ns"], "what is recomputed is no part of it"
    assert run(["check", "plan.json", "--fresh", "--trace", "step.json"]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--trace", "step.json", "--hardware", "p3-v100-16gb", "--same-bits"], "belongs to --with-recompute"),
        (["--problem", "step.json", "--with-recompute"], "needs --trace"),
    ],
)
def test_what_does_not_go_together(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert run(["plan", "swap", *words, "-o", "plan.json"]) == 2
    assert message in capsys.readouterr().err
