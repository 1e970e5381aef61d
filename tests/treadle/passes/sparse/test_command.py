"""`treadle plan sparse`: from problems and recorded sparsity, what it prints and writes, what it refuses."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.planner.samples import SPARSE_COSTS, SPARSE_PROBLEM, SPARSITY
from treadle.cli.main import run
from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.sparsity import UnionCount
from treadle.planner.passes.sparse.decisions import SparseDecisions
from treadle.planner.passes.sparse.problem import SparseProblem
from treadle.planner.search.top import Outcome
from treadle.runtime import trial_ranks
from treadle.runtime.sparse import trials

Found = list[dict[int, Outcome]]
PROBLEM = ["plan", "sparse", "--problem", "problem.json", "-o", "plan.json"]
RECORDED = ["plan", "sparse", "--sparsity", "sparsity.json", "--hardware", "hosts-2x2", "-o", "plan.json"]


@pytest.fixture
def files(here: Path) -> Path:
    """A problem of four nodes, recorded sparsity and costs."""
    table = replace(
        SPARSE_PROBLEM.gradients[0],
        units=1_000_000,
        unions=(1000, 1900, 2700, 3400),
        even=(700, 1300, 1800, 2300),
        hashed=(290, 540, 760, 950),
        densest=1100,
        occurrences=1400,
        blocks=None,
    )
    store.save(replace(SPARSE_PROBLEM, machines=4, gradients=(table,)), here / "problem.json")
    store.save(SPARSITY, here / "sparsity.json")
    store.save(SPARSE_COSTS, here / "costs.json")
    return here


def test_a_problem_by_hand_is_planned_and_described(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(PROBLEM) == 0
    printed = capsys.readouterr().out
    plan = store.load(files / "plan.json", Plan)
    assert plan.decisions.time_ns < plan.decisions.dense_ns
    assert "1, exchanged by 4 nodes of 1 rank" in printed
    assert "Balanced Parallelism" in printed
    assert "little overlap: the sum of 4 has 3.4 times the units of one" in printed
    assert run(["check", "plan.json"]) == 0
    assert "plan.json: accepted (sparse plan: 1 gradient" in capsys.readouterr().out
    assert run(["simulate", "plan.json"]) == 0
    assert " with every gradient dense" in capsys.readouterr().out


def test_a_faster_order_of_sums_is_named_and_can_be_had(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*PROBLEM, "--json"]) == 0
    strict = json.loads(capsys.readouterr().out)
    assert strict["any_order_ns"] < strict["time_ns"]
    assert run(PROBLEM) == 0
    assert " with --any-order: sparcml for 1 gradient" in capsys.readouterr().out
    assert run([*PROBLEM, "--any-order", "--json"]) == 0
    free = json.loads(capsys.readouterr().out)
    assert free["time_ns"] == free["any_order_ns"] == strict["any_order_ns"]
    assert [each["scheme"] for each in free["gradients"]] == ["sparcml"]


def test_of_many_gradients_the_largest_are_shown(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    problem = store.load(files / "problem.json", SparseProblem)
    many = tuple(
        replace(problem.gradients[0], name=f"table{place}", units=100_000 * (1 + place % 24)) for place in range(25)
    )
    store.save(replace(problem, gradients=many), files / "problem.json")
    assert run(PROBLEM) == 0
    printed = capsys.readouterr().out
    assert "25, exchanged by 4 nodes" in printed
    assert "and 5 smaller gradients" in printed
    assert printed.count("Balanced Parallelism") == 1
    assert "\ntable23: " in printed
    assert "table0 " not in printed


def test_recorded_sparsity_is_planned_for_a_machine(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(RECORDED) == 0
    printed = capsys.readouterr()
    assert "not zero in the sum of a node" in printed.out
    assert " extrapolated " in printed.out  # four ranks, two of which were recorded
    assert run(["check", "--fresh", "plan.json"]) == 0
    seen = replace(
        SPARSITY.tensors[0], unions=(*SPARSITY.tensors[0].unions, UnionCount(participants=4, mean=110, most=130))
    )
    store.save(replace(SPARSITY, tensors=(seen,)), files / "sparsity.json")
    assert run(["check", "--fresh", "plan.json"]) == 1
    assert run(RECORDED) == 0
    assert " recorded " in capsys.readouterr().out.split("gradients\n")[-1]


def test_costs_make_the_work_of_schemes(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*RECORDED, "--costs", "costs.json", "--nodes", "3"]) == 0
    plan = store.load(files / "plan.json", Plan)
    assert plan.decisions.problem.work == SPARSE_COSTS.work
    assert plan.decisions.problem.machines == 3
    assert capsys.readouterr().err == ""
    assert run(["check", "--fresh", "plan.json"]) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "give either --sparsity or --problem"),
        (["--sparsity", "sparsity.json"], "--sparsity needs --hardware"),
        (["--problem", "problem.json", "--nodes", "2"], "--problem names its machine"),
        (["--problem", "sparsity.json"], "sparsity.json: $.kind: found 'sparsity' (text), expected 'sparse-problem'"),
        (["--sparsity", "sparsity.json", "--hardware", "hosts-2x2", "--costs", "absent"], "absent"),
        (["--problem", "problem.json", "--top", "2"], "--top belongs to --measure"),
        (["--sparsity", "sparsity.json", "--hardware", "hosts-2x2", "--measure"], "--measure: found 2 nodes in the"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_line(
    files: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert run(["plan", "sparse", *options, "-o", "plan.json"]) == 2
    assert message in capsys.readouterr().err


def test_measured_schemes_are_taken_by_their_times_and_said(
    files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def times(ask: object, clock: object, show: object, rows: list[list[SparseDecisions]]) -> Found:
        return [
            {at: Outcome(1.0 if each.gradients[0].scheme == "ranges" else 2.0) for at, each in enumerate(row)}
            for row in rows
        ]

    monkeypatch.setattr(trials, "_times", times)
    assert run([*PROBLEM, "--measure", "--top", "19", "--any-order"]) == 0
    printed = capsys.readouterr().out
    assert "measured, took the " in printed
    assert "other order" not in printed
    plan = store.load(files / "plan.json", Plan)
    assert plan.decisions.gradients[0].scheme == "ranges"
    assert run(["check", "plan.json"]) == 0
    assert run(["simulate", "plan.json"]) == 0
    assert run(["generate", "plan.json", "-o", "hook"]) == 0
    capsys.readouterr()
    assert run([*PROBLEM, "--measure", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tuned"][0]["measured"] == 6


def test_between_the_ranks_of_one_node_there_is_nothing_to_measure(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = store.load(files / "problem.json", SparseProblem)
    table = replace(one.gradients[0], unions=(1000,), even=(1000,), hashed=(1000,))
    store.save(replace(one, machines=1, gradients=(table,)), files / "problem.json")
    assert run([*PROBLEM, "--measure"]) == 2
    assert "--measure: found a single node, expected several, between which schemes" in capsys.readouterr().err


def test_ctrl_c_while_schemes_are_measured_keeps_the_cheapest(
    files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_ranks, "launch", lambda *_: signal.raise_signal(signal.SIGINT))
    assert run([*PROBLEM, "--measure"]) == 0
    assert capsys.readouterr().err.splitlines()[-2:] == [
        "interrupted: this is the best plan found so far",
        "nothing was measured: this is the best by predicted time",
    ]
    assert store.load(files / "plan.json", Plan).provenance.interrupted
    assert run(["check", "plan.json"]) == 0


@pytest.mark.slow
def test_processes_of_this_machine_measure_schemes(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = store.load(files / "problem.json", SparseProblem)
    small = replace(one.gradients[0], units=20_000)
    store.save(replace(one, gradients=(small, replace(small, name="other", form="dense"))), files / "problem.json")
    assert run([*PROBLEM, "--measure", "--top", "3"]) == 0
    assert f" ranked by prices of sparse schemes on {one.name}, 3 measured, took the " in capsys.readouterr().out
    plan = store.load(files / "plan.json", Plan)
    assert [len(each.measured) for each in plan.provenance.tuned[:2]] == [3, 3]
    assert run(["check", "plan.json"]) == 0
