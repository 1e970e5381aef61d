"""What a plan says of how it was made: by which version, and options of the wrong shape end in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.planner.samples import COLLECTIVE_PLAN, PROBLEM
from treadle import __version__
from treadle.cli.main import run
from treadle.planner.documents.store import dumps
from treadle.planner.version import TOOL

MISSHAPEN: dict[str, dict[str, Any]] = {
    "$.provenance.options.candidates_ns": {"candidates_ns": [1]},
    "$.provenance.options.candidates_ns.ring": {"candidates_ns": {"ring": "fast"}},
    "$.provenance.options.chosen": {"candidates_ns": {"ring": 1}, "chosen": 3},
    "$.provenance.options.gap": {"gap": "small"},
    "$.provenance.options.not_followed[0]": {"not_followed": [None]},
    "$.provenance.options.reserve_bytes": {"reserve_bytes": -1},
    "$.provenance.options.skipped.a": {"skipped": {"a": 1, "b": "slow"}},
    "$.provenance.options.transport": {"transport": "LL"},
    "$.provenance.options.transport.simulated_us.LL x 1": {"transport": {"simulated_us": {"LL x 1": None}}},
}


@pytest.mark.parametrize("path", MISSHAPEN)
@pytest.mark.parametrize("command", [["check", "PLAN"], ["report", "PLAN", "-o", "page.html"]])
def test_options_of_the_wrong_shape(
    path: str, command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = json.loads(dumps(COLLECTIVE_PLAN))
    plan["provenance"]["options"] = MISSHAPEN[path]
    Path("plan.json").write_text(json.dumps(plan))
    assert run([word.replace("PLAN", "plan.json") for word in command]) == 2
    where, place = capsys.readouterr().err.split(": ")[1:3]
    assert (where, place.replace("['", ".").replace("']", "")) == ("plan.json", path)


def test_a_plan_names_the_version_that_made_it(tmp_path: Path) -> None:
    problem, plan = tmp_path / "problem.json", tmp_path / "plan.json"
    problem.write_text(dumps(PROBLEM))
    assert run(["plan", "memory", "--problem", str(problem), "--budget", "1GiB", "-o", str(plan)]) == 0
    assert json.loads(plan.read_text())["provenance"]["tool"] == TOOL == f"treadle {__version__}"
