"""`treadle plan index`: from a workload, from files and from problems, what it prints and writes, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.planner.passes.index.index_plans import PROBLEM, plan_index, problem_of
from tests.treadle.passes.index.index_commands import FILES, PLAN, MadeUp, made_up
from treadle.cli.main import run
from treadle.passes.index.inputs import evaluator
from treadle.planner import resources
from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan
from treadle.planner.errors import LimitError
from treadle.planner.passes import require_pass
from treadle.planner.passes.index.decisions import IndexDecisions
from treadle.planner.passes.index.problem import WorkloadFiles
from treadle.planner.search.clock import Clock

__all__ = ["made_up"]


def planned(folder: Path) -> Plan[IndexDecisions]:
    return require_pass(store.load(folder / "plan.json", Plan), IndexDecisions, "plan.json")


def test_the_ten_best_predicted_are_measured_and_the_fastest_is_taken(
    made_up: MadeUp, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(PLAN) == 0
    printed = capsys.readouterr()
    plan = planned(here)
    assert len(made_up.calls) == 10
    assert plan.decisions.chosen == made_up.calls[-1]
    assert plan.decisions.second == made_up.calls[-2]
    assert (plan.decisions.time_ns, plan.decisions.problem.top) == (9_000, 10)
    assert plan.certificate.lower_bound == 700
    assert set(plan.inputs) == {"workload", "model"}
    for text in (
        "workload     keys like books, 1000 loaded; 1000 lookups and 1000 inserts\n",
        "9 us, 4.5 ns an operation, measured; ",
        "took the 10th predicted",
        "takes 9.1 us, 1.01x\n",
        "measured on one core",
        "chosen\n",
        "wrote plan.json\n",
    ):
        assert text in printed.out
    assert printed.err == ""
    assert run(["check", "plan.json", "--fresh"]) == 0


def test_files_of_keys_and_operations_are_the_same_workload(made_up: MadeUp, here: Path) -> None:
    assert run(PLAN) == 0
    drawn = planned(here).decisions
    assert run([*FILES, "--sample", "1500"]) == 0
    read = planned(here).decisions
    assert isinstance(read.problem.workload, WorkloadFiles)
    assert (read.problem.workload.keys.file, read.problem.workload.operations.file) == ("keys.npy", "operations.txt")
    assert (read.problem.bulk, read.problem.operations, read.problem.whole) == (1000, 1500, 2000)
    assert drawn.problem.operations == 2000
    assert set(planned(here).inputs) == {"model"}


def test_top_0_trusts_the_model_and_measures_nothing(
    made_up: MadeUp, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*PLAN, "--top", "0"]) == 0
    assert made_up.calls == []
    plan = planned(here)
    assert plan.decisions.bytes is None
    assert plan.provenance.tuned == ()
    printed = capsys.readouterr().out
    assert "an operation, predicted\n" in printed
    assert "100 ranked by drawn, none measured\n" in printed
    assert "measured on one core" not in printed


def test_configurations_over_the_memory_are_passed_over(made_up: MadeUp, here: Path) -> None:
    assert run([*PLAN, "--max-memory-ratio", "1.35", "--json"]) == 0
    decisions = planned(here).decisions
    assert decisions.chosen == made_up.calls[2]
    assert decisions.over_memory == 7


def test_a_memory_ratio_that_nothing_meets_ends_with_3_and_the_least_one(
    made_up: MadeUp, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*PLAN, "--max-memory-ratio", "1.05"]) == 3
    assert "a ratio of 1.1 would do" in capsys.readouterr().err
    assert not (here / "plan.json").exists()


def test_json_has_what_was_ranked_and_measured(made_up: MadeUp, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*PLAN, "--top", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "treadle.plan-index/1"
    assert [each["measured_ns"] for each in found["ranked"][:4]] == [9_900, 9_800, 9_700, None]
    assert found["leaves"] == found["ranked"][2]["leaves"]
    assert found["ns_per_operation"] == 9_700 / 2000
    assert found["tuned"][0]["measured"] == 3


def test_ctrl_c_takes_the_fastest_that_was_measured(
    made_up: MadeUp, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    monkeypatch.setattr("treadle.passes.index.command.clock_of", lambda limit: clock)
    made_up.on_measured = lambda: clock.stop.set() if len(made_up.calls) == 2 else None
    assert run(PLAN) == 0
    plan = planned(here)
    assert len(made_up.calls) == 2
    assert plan.decisions.chosen == made_up.calls[1]
    assert plan.decisions.problem.cut_short
    assert plan.provenance.interrupted
    assert "interrupted: this is the best plan found so far" in capsys.readouterr().err
    assert run(["check", "plan.json"]) == 0


def test_the_limit_ends_the_measuring_after_the_first(
    made_up: MadeUp, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times = iter(range(0, 100_000, 2))
    clock = Clock(ends=60.0, began=0.0, now=lambda: next(times), limit_s=60.0)
    monkeypatch.setattr("treadle.passes.index.command.clock_of", lambda limit: clock)
    made_up.on_measured = lambda: [next(times) for _ in range(20)] and None
    assert run(PLAN) == 0
    plan = planned(here)
    assert 1 <= len(made_up.calls) < 10
    assert plan.provenance.limit_fired
    assert "the time limit of 60 s ended the search" in capsys.readouterr().err


@pytest.mark.parametrize("ratio", [None, "2"])
def test_without_time_for_one_measurement_the_model_is_trusted_unless_memory_is_limited(
    ratio: str | None,
    made_up: MadeUp,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = Clock(ends=1.0, began=0.0, now=lambda: 2.0, limit_s=1.0)
    monkeypatch.setattr("treadle.passes.index.command.clock_of", lambda limit: clock)
    assert run([*PLAN, *(["--max-memory-ratio", ratio] if ratio else [])]) == (4 if ratio else 0)
    assert made_up.calls == []
    said = (
        "no time was left to measure the memory"
        if ratio
        else "nothing was measured: this is the best by predicted time"
    )
    assert said in capsys.readouterr().err
    assert (here / "plan.json").exists() == (ratio is None)
    if ratio is None:
        assert planned(here).provenance.limit_fired
        assert run(["check", "plan.json"]) == 0


def test_a_plan_is_there_before_anything_is_measured(made_up: MadeUp, here: Path) -> None:
    seen: list[bool] = []
    made_up.on_measured = lambda: seen.append(planned(here).decisions.bytes is None)
    assert run([*PLAN, "--top", "2"]) == 0
    assert seen == [True, True]


def test_a_configuration_that_runs_out_of_memory_gives_its_turn_to_the_next(
    made_up: MadeUp, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs_from = 3

    def full() -> None:
        if len(made_up.calls) < runs_from:
            raise LimitError("the index ran out of memory")

    made_up.on_measured = full
    assert run([*PLAN, "--top", "2"]) == 0
    problem = planned(here).decisions.problem
    assert len(made_up.calls) == 4
    assert [each.failed for each in problem.candidates if each.failed] == ["the index ran out of memory"] * 2
    assert run(["check", "plan.json"]) == 0
    runs_from = 1000
    assert run(PLAN) == 3
    assert "runs here: the index ran out of memory" in capsys.readouterr().err


def test_a_problem_has_its_measurements(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store.save(PROBLEM, here / "problem.yaml")
    assert run(["plan", "index", "--problem", "problem.yaml", "-o", "plan.json"]) == 0
    assert planned(here).decisions == plan_index(PROBLEM).decisions
    assert "1.5x allowed, which 1 of the measured ones exceed" in capsys.readouterr().out
    assert run(["check", "plan.json", "--fresh"]) == 0


def test_diff_names_what_another_measurement_changed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, times in (("old", (350, 420)), ("new", (350, 300))):
        store.save(plan_index(problem_of((300, 400), times)), here / f"{name}.json")
    assert run(["diff", "old.json", "new.json"]) == 1
    printed = capsys.readouterr().out
    assert "gapped array 1/2" in printed
    assert "gapped array 1/8" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give one of WORKLOAD, --trace with --data, and --problem"),
        (["workload.yaml", "--problem", "x.yaml"], "give one of WORKLOAD, --trace with --data, and --problem"),
        (["workload.yaml", "--data", "keys.npy"], "give one of WORKLOAD"),
        (["--trace", "operations.txt"], "--trace and --data go together"),
        (["--data", "keys.npy"], "--trace and --data go together"),
        (["--problem", "x.yaml", "--top", "3"], "goes without options for them"),
        (["--problem", "x.yaml", "--model", "m"], "goes without options for them"),
        (["workload.yaml", "--top", "0", "--max-memory-ratio", "2"], "--max-memory-ratio needs measurements"),
        (["workload.yaml", "--top", "-1"], "-1 is not in the range 0<=x<=1000000"),
        (["workload.yaml", "--top", "9" * 30], "is not in the range 0<=x<=1000000"),
        (["workload.yaml", "--max-memory-ratio", "0"], "0 is not in the range 0<x<=1000000000"),
        (["workload.yaml", "--max-memory-ratio", "1e308"], "1e308 is not in the range 0<x<=1000000000"),
        (["workload.yaml", "--sample", "0"], "0 is not in the range x>=1"),
        (["absent.yaml"], "absent.yaml: cannot read: No such file or directory"),
        (["keys.npy"], "keys.npy: "),
        (["--data", "absent.npy", "--trace", "operations.txt"], "absent.npy: cannot read: No such file or directory"),
        (["--data", "operations.txt", "--trace", "keys.npy"], "operations.txt: found "),
    ],
)
def test_what_is_not_understood_is_one_line(
    arguments: list[str], message: str, made_up: MadeUp, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", "index", *arguments, "-o", "plan.json"]) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.out == ""
    assert made_up.calls == []
    assert not (here / "plan.json").exists()


@pytest.mark.parametrize("damage", [b"", b"\x93NUMPY", b"\x93NUMPY\x01\x00v\x00{'descr': 'O'}"])
def test_a_damaged_file_of_keys_is_one_line(
    damage: bytes, made_up: MadeUp, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "keys.npy").write_bytes(damage)
    assert run(FILES) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("error: keys.npy: ")
    assert printed.count("\n") == 1


def test_an_evaluator_that_is_missing_is_one_line(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.treadle.passes.index.index_commands import written

    written(here)
    assert run([*PLAN, "--model", "absent"]) == 2
    assert "absent: no such file" in capsys.readouterr().err
    assert run([*PLAN, "--model", "workload.yaml"]) == 2
    assert "workload.yaml: " in capsys.readouterr().err


def test_an_evaluator_that_ships_has_its_name_with_or_without_its_folder() -> None:
    name = resources.names("profiles/index")[0]
    assert evaluator(f"index/{name}") == evaluator(name) == evaluator(None)


@pytest.mark.parametrize("family", ["__import__('os').system('touch PWNED')", "!!python/object:os.system", "unknown"])
def test_a_family_that_is_none_is_refused_and_not_run(
    family: str, made_up: MadeUp, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (here / "workload.yaml").read_text()
    (here / "workload.yaml").write_text(text.replace("books", json.dumps(family)))
    (here / "workload.yaml").write_text((here / "workload.yaml").read_text().replace("some ", ""))
    assert run(PLAN) == 2
    assert "workload.yaml: " in capsys.readouterr().err
    assert not (here / "PWNED").exists()


@pytest.mark.parametrize("name", ["books-writes", "books-reads"])
def test_the_examples_are_workloads_that_plan(name: str, made_up: MadeUp, here: Path) -> None:
    file = str(resources.folder("examples") / "index" / f"{name}.yaml")
    assert run(["check", file]) == 0
    assert run(["plan", "index", file, "--top", "1", "-o", "plan.json"]) == 0
    assert planned(here).decisions.problem.bulk == 100_000
