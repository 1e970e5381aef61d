"""`treadle plan memory --sweep`: a folder of plans, a table and a curve."""

from __future__ import annotations

import csv
import json
from fractions import Fraction
from pathlib import Path

import pytest
from lxml import etree
from msgspec.structs import replace

from tests.planner.passes.memory import cases
from treadle.cli.main import run
from treadle.passes.memory import sweep
from treadle.passes.memory.pareto import KEPT, SEGMENTS, peers
from treadle.passes.memory.sweep import parse_budgets
from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan
from treadle.planner.errors import InputError
from treadle.planner.passes.memory.check import check


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    store.save(cases.a(6), tmp_path / "problem.json")
    monkeypatch.chdir(tmp_path)
    return ["plan", "memory", "--problem", "problem.json", "-o", "curve"]


def test_ranges_are_nine_equal_steps_or_as_many_as_asked_for() -> None:
    assert parse_budgets("0.2x..1.0x") == tuple(Fraction(tenths, 10) for tenths in range(2, 11))
    assert parse_budgets("4GiB..12GiB") == tuple(gib * 2**30 for gib in range(4, 13))
    assert parse_budgets("0.5x..1x:3") == (Fraction(1, 2), Fraction(3, 4), Fraction(1))
    assert parse_budgets("8..10:9") == (8, 9, 10)
    assert parse_budgets("0.5x..0.5x") == (Fraction(1, 2),)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "expected a size such as 8GiB, or a share of plain PyTorch's peak such as 0.5x"),
        ("0.2x..1x:1", "5 values (2 to 100)"),
        ("0.2x..1x:many", "5 values (2 to 100)"),
        ("0.2x..1x:", "5 values (2 to 100)"),
        ("1.0x..0.2x", "expected the smaller end first"),
        ("0.2x..4GiB", "expected sizes alone or shares alone"),
        ("0x..1x", "found '0x', expected more than nothing"),
        ("a..b", "found 'a', expected a size such as 8GiB"),
    ],
)
def test_other_ranges_are_refused_before_anything_is_read(text: str, expected: str) -> None:
    with pytest.raises(InputError) as error:
        parse_budgets(text)
    assert "--sweep" in str(error.value)
    assert expected in str(error.value)


def test_a_sweep_writes_plans_a_table_and_a_curve(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command, "--sweep", "0.4x..1.0x:7"]) == 0
    out = capsys.readouterr()
    lines = out.out.splitlines()
    assert " ".join(lines[0].split()) == "budget peak time overhead lower bound gap found by plan"
    assert "budget 4 B (4 bytes, 0.4x of plain PyTorch) is below the least feasible 6 B" in lines[1]
    assert lines[-2].endswith("1x.plan.json")
    assert lines[-1] == "wrote 5 plans, sweep.csv and pareto.svg to curve"
    rows = list(csv.DictReader(Path("curve/sweep.csv").read_text().splitlines()))
    assert [row["time_ns"] for row in rows] == ["", "", "15", "15", "13", "13", "12"]
    assert "least feasible 6 B" in rows[0]["reason"]
    for row in rows[2:]:
        plan = store.load(Path("curve") / row["plan"], Plan)
        assert check(plan.decisions) == []
        assert plan.decisions.problem.budget_bytes == int(row["budget_bytes"])
        assert plan.decisions.objective_ns == int(row["time_ns"])
    words = {text.strip() for text in etree.parse("curve/pareto.svg").getroot().itertext()}
    assert {"plans", "lower bound", SEGMENTS, "everything kept", "nothing fits"} <= words


def test_a_second_sweep_replaces_the_first_and_prints_json(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, "--sweep", "0.6x..1.0x:5"]) == 0
    capsys.readouterr()
    assert run([*command, "--sweep", "5B..10B:2", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    low, high = facts["points"]
    assert (low["infeasible"], low["budget_bytes"]) == (True, 5)
    assert (high["time_ns"], high["plan"], high["optimal"]) == (12, "10B.plan.json", True)
    assert sorted(path.name for path in Path("curve").iterdir()) == ["10B.plan.json", "pareto.svg", "sweep.csv"]


def test_folders_of_something_else_are_left_alone(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("curve").mkdir()
    Path("curve/notes.txt").write_text("mine")
    for name in ("sweep.csv", "pareto.svg", "1x.plan.json"):
        Path("curve", name).write_text("mine")
        assert run([*command, "--sweep", "0.6x..1.0x"]) == 2
        assert f"curve/{name}: found a file that is no" in capsys.readouterr().err
        assert sorted(path.name for path in Path("curve").iterdir()) == sorted(("notes.txt", name))
        Path("curve", name).unlink()
    Path("curve/my.plan.json").write_text("mine")
    for _ in range(2):
        assert run([*command, "--sweep", "0.6x..1.0x:3"]) == 0
    assert Path("curve/notes.txt").read_text() == Path("curve/my.plan.json").read_text() == "mine"
    capsys.readouterr()
    assert run([*command[:-1], "problem.json", "--sweep", "0.6x..1.0x"]) == 2
    assert "problem.json: found an input of this command" in capsys.readouterr().err
    Path("file").write_text("")
    assert run([*command[:-1], "file", "--sweep", "0.6x..1.0x"]) == 2
    assert "file: found a file, expected a folder to write into" in capsys.readouterr().err


def test_nothing_is_written_where_no_budget_has_a_plan(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command, "--sweep", "0.1x..0.3x:3"]) == 3
    error = capsys.readouterr().err
    assert "no budget of the sweep has a plan: budget 3 B" in error
    assert "least feasible 6 B" in error
    assert not Path("curve").exists()


def test_a_broken_problem_is_named_with_its_path(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(Path("problem.json").read_text())
    document["fwd"][0]["inputs"] = [3]
    Path("problem.json").write_text(json.dumps(document))
    assert run([*command, "--sweep", "0.5x..1.0x"]) == 2
    assert "problem.json: $.fwd[0].inputs[0]: found 3, expected an earlier node" in capsys.readouterr().err


def test_the_report_passes_over_the_table_and_the_curve(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command, "--sweep", "0.8x..1x:2"]) == 0
    assert run(["report", *map(str, sorted(Path("curve").iterdir())), "-o", "r.html"]) == 0
    assert "passed over curve/pareto.svg, curve/sweep.csv: no plan" in capsys.readouterr().err
    assert run(["report", "curve/sweep.csv", "-o", "other.html"]) == 2


def test_plans_of_a_sweep_are_a_curve_in_the_report(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command, "--sweep", "0.6x..1.0x:3"]) == 0
    assert run(["report", *map(str, sorted(Path("curve").glob("*.json"))), "-o", "r.html"]) == 0
    page = Path("r.html").read_text()
    assert "Memory: time at each budget" in page
    assert "Plans of one problem at 3 budgets: 0.6x, 0.8x, 1x." in page


def test_peers_take_default_calls_and_need_no_solver() -> None:
    """Chain of four at 2 bytes each: kept whole it takes 10 bytes and 12 ns; segments need less and take longer."""
    found = peers(cases.a(6))
    assert found[KEPT] == [(10, 12)]
    assert min(found[SEGMENTS])[0] < 10
    assert all(time >= 12 for _, time in found[SEGMENTS])
    everything = peers(cases.c(1000, conv=True, out=True, intermediate=True))
    assert set(everything) == {SEGMENTS, KEPT}


def test_equal_labels_get_the_bytes_as_their_name(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Budgets a byte apart read the same in GiB."""
    assert sweep.POINTS == 9
    large = 2**33
    problem = cases.a(6)
    scaled = replace(problem, fwd=tuple(replace(node, out_bytes=large) for node in problem.fwd))
    store.save(scaled, "problem.json")
    assert run([*command, "--sweep", f"{5 * large}..{5 * large + 1}:2"]) == 0
    names = sorted(path.name for path in Path("curve").glob("*.json"))
    assert names == ["40GiB.plan.json", f"{5 * large + 1}B.plan.json"]
