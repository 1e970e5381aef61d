"""`treadle run` of a sparse plan: sums equal to dense ones, bytes as the planner counts them, and what is off."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.treadle.cli.test_json_output import KEYS
from treadle.cli.main import run
from treadle.codegen import emit
from treadle.codegen.targets import PLAN_NAME, generate
from treadle.planner.documents import store
from treadle.planner.documents.gradient_link import GradientLink
from treadle.planner.documents.plan import Plan
from treadle.planner.passes import require_pass
from treadle.planner.passes.sparse.decisions import SparseDecisions
from treadle.planner.passes.sparse.planning import plan_sparse
from treadle.planner.passes.sparse.problem import SparseGradient, SparseProblem
from treadle.runtime.sparse.compare import off_by

LINK = GradientLink(alpha_us=30, beta_us_per_MB=839)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    def gradient(name: str, form: str, unit: str, units: int, width: int) -> SparseGradient:
        counts = {"unions": (60, 100), "even": (40, 60), "hashed": (40, 60)}
        return SparseGradient(
            name=name, form=form, unit=unit, units=units, width=width, occurrences=90, densest=70, **counts
        )

    gradients = (gradient("table.weight", "coo", "row", 1000, 8), gradient("wide.weight", "dense", "element", 4000, 1))
    problem = SparseProblem(version=1, name="small", machines=2, devices=1, gradients=gradients, inter=LINK)
    emit.write(generate(plan_sparse(problem), "plan.json"), tmp_path)
    return tmp_path


def test_two_ranks_exchange_as_planned(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", str(folder), "--backend", "gloo", "--steps", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.pop("schema") == "treadle.run-sparse/1"
    assert found.keys() == KEYS["run-sparse"][0]
    assert (found["world"], found["findings"]) == (2, [])
    assert [each["name"] for each in found["gradients"]] == ["table.weight", "wide.weight"]
    for each in found["gradients"]:
        assert each["sums_equal"]
        assert each["bytes"]["exact"]
        assert 0 < each["bytes"]["measured"] <= each["bytes"]["planned"] * 1.1
    assert min(found["time_ns"].values()) > 0
    plan = require_pass(store.load(folder / PLAN_NAME, Plan), SparseDecisions, "plan").decisions
    assert (found["time_ns"]["planned"], found["time_ns"]["dense_planned"]) == (plan.time_ns, plan.dense_ns)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--backend", "cuda"), "--backend: found cuda, expected gloo; on GPUs attach the plan in a training script"),
        (("--world", "3"), "--world: found 3, expected 2: the plan has that many ranks"),
    ],
)
def test_other_back_ends_and_numbers_are_refused(
    folder: Path, options: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["run", str(folder), *options]) == 2
    assert message in capsys.readouterr().err


def test_a_prediction_off_by_more_than_a_third_names_its_term() -> None:
    assert off_by(3_000_000, 4_000_000, 1, 1) is None
    line = off_by(3_000_000, 6_000_000, 2_000_000, 4_500_000)
    assert line == "2.00x of its prediction, most of it links: 2 ms planned, 4.5 ms measured"
    line = off_by(3_000_000, 1_000_000, 1_000_000, 900_000)
    assert line is not None
    assert "work of the ranks: 2 ms planned, 100 us measured" in line
