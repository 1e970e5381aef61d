"""What commands print of choices that were measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer

from treadle.check.difference import compare_plans
from treadle.cli.lazy import UsageError
from treadle.cli.main import run
from treadle.cli.options import DEFAULT_TOP, top_of
from treadle.cli.tuned_lines import ordinal, tuned_line
from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan
from treadle.planner.search.top import Outcome, Predicted, recorded

CHOICES = [Predicted(name, ns) for name, ns in (("a", 10.0), ("b", 20.0), ("c", 40.0), ("d", 80.0))]
RECORD = recorded("order", "prices", CHOICES, 3, {0: Outcome(30.0), 1: Outcome(25.0), 2: Outcome(60.0)})
LINE = (
    "order: 4 ranked by prices, 3 measured, took the 2nd predicted, 1.2 times as fast as the 1st; "
    "measured / predicted: 1.5"
)


def test_a_line_says_what_was_ranked_measured_and_taken() -> None:
    assert tuned_line(RECORD) == LINE
    first = recorded("order", "prices", CHOICES[:1], 3, {0: Outcome(10.0)})
    assert tuned_line(first) == "order: 1 ranked by prices, 1 measured, took the 1st predicted; measured / predicted: 1"
    free = recorded("order", "prices", [Predicted("a", 0.0)], 3, {0: Outcome(10.0)})
    assert tuned_line(free) == "order: 1 ranked by prices, 1 measured, took the 1st predicted"


def test_ordinals() -> None:
    assert [ordinal(n) for n in (1, 2, 3, 4, 11, 12, 13, 21, 102, 111)] == [
        *("1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "102nd", "111th")
    ]


def test_top_belongs_to_measure() -> None:
    assert (top_of(False, None), top_of(True, None), top_of(True, 3)) == (0, DEFAULT_TOP, 3)
    with pytest.raises(UsageError, match="--top belongs to --measure"):
        top_of(False, 3)
    assert issubclass(UsageError, typer.BadParameter)


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Plan:
    """A plan of a collective with a record, which is `plan.json`."""
    monkeypatch.chdir(tmp_path)
    command = "plan collective allgather --hardware cpu-2x2 --size 64KiB --method greedy -o plan.json"
    assert run(command.split()) == 0
    capsys.readouterr()
    made = _with(store.load("plan.json", Plan), RECORD)
    store.save(made, "plan.json")
    return made


def test_check_and_report_print_it_for_every_plan(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "plan.json"]) == 0
    assert f"  {LINE}\n" in capsys.readouterr().out
    assert run(["check", "plan.json", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["files"]
    assert row["tuned"] == [
        {
            "what": "order",
            "model": "prices",
            "ranked": 4,
            "measured": 3,
            "chosen": "b",
            "place": 2,
            "measured_over_predicted": 1.5,
        }
    ]
    assert run(["report", "plan.json", "-o", "page.html"]) == 0
    assert "Which predictions to trust" in Path("page.html").read_text()


def test_a_record_that_was_changed_is_rejected(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    raw: dict[str, Any] = json.loads(Path("plan.json").read_text())
    raw["provenance"]["tuned"][0]["chosen"] = "a"
    Path("plan.json").write_text(json.dumps(raw))
    assert run(["check", "plan.json"]) == 1
    assert "$.provenance.tuned[0].chosen: 'a' took 30 ns, the fastest 25 ns" in capsys.readouterr().out
    assert run(["report", "plan.json", "-o", "page.html"]) == 1


def test_a_difference_names_what_was_taken(plan: Plan) -> None:
    other = recorded("order", "prices", CHOICES, 3, {0: Outcome(20.0), 1: Outcome(25.0), 2: Outcome(60.0)})
    (change,) = compare_plans(plan, _with(plan, other))["provenance"]
    assert str(change) == "order: b (measured / predicted: 1.5) -> a (measured / predicted: 1.5)"
    (change,) = compare_plans(plan, _with(plan))["provenance"]
    assert str(change) == "order: b (measured / predicted: 1.5) -> not measured"
    assert compare_plans(plan, plan)["provenance"] == []


def _with(plan: Plan, *records: Any) -> Plan:
    return msgspec.structs.replace(plan, provenance=msgspec.structs.replace(plan.provenance, tuned=records))
