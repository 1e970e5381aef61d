"""`treadle plan aggregation`, and what check, simulate, diff, report and run make of its plans."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.planner.passes.aggregation.aggregation_plans import Groups, problem_on
from treadle.cli.main import run
from treadle.planner.documents import store
from treadle.planner.documents.cost_matrix import CostHost, CostMatrix, PairRate
from treadle.planner.documents.plan import Plan

pytestmark = pytest.mark.usefixtures("few_steps")

MIXED: Groups = ((0, 2), (1, 3))
PLAN = ["plan", "aggregation", "--costs", "costs.json", "--size", "1MiB", "-o", "plan.json"]


def matrix_on(groups: Groups) -> CostMatrix:
    problem = problem_on(groups)
    pairs = [(i, j, ns) for i, row in enumerate(problem.ns_per_MiB) for j, ns in enumerate(row) if i != j]
    return CostMatrix(
        version=1,
        name="probed",
        hosts=tuple(CostHost(name=host.name) for host in problem.hosts),
        latency_us=tuple(tuple(ns / 1000 for ns in row) for row in problem.latency_ns),
        rates=tuple(PairRate(i, j, 2**20 * 1e9 / ns) for i, j, ns in pairs),
    )


@pytest.fixture
def files(here: Path) -> Path:
    store.save(matrix_on(MIXED), here / "costs.json")
    return here


def test_groups_levels_and_rivals_are_printed(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*PLAN, "--groups", "2", "--levels", "2"]) == 0
    printed = capsys.readouterr().out
    assert "h0, h2" in printed
    assert "h1, h3" in printed
    assert "two levels, 4 rounds: 2 MiB across" in printed
    assert "flat, 2 rounds: 4 MiB across" in printed
    assert "a stream inside a group is 4.00 times as fast as one between groups" in printed
    assert [line.split()[0] for line in printed.splitlines() if line.endswith("x")] == ["ring", "flat", "two-level"]
    assert run(["check", "--fresh", "plan.json"]) == 0
    assert "accepted (aggregation plan of 4 hosts in 2 groups" in capsys.readouterr().out


def test_figures_for_programs(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*PLAN, "--groups", "2", "--levels", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["groups"] == [["h0", "h2"], ["h1", "h3"]]
    assert (found["levels"], found["rounds"]) == (1, 2)
    assert found["across_bytes"] > found["rivals"]["two-level"]["across_bytes"]
    assert found["across_to_inside"] == pytest.approx(4)
    plan = store.load(files / "plan.json", Plan)
    assert (plan.decisions.levels, plan.decisions.near) == (1, MIXED)


def test_a_problem_by_hand_is_planned(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store.save(problem_on(MIXED, connections=2), here / "problem.yaml")
    assert run(["plan", "aggregation", "--problem", "problem.yaml", "-o", "plan.json"]) == 0
    assert run(["check", "--fresh", "plan.json"]) == 0
    assert "inputs problem checked" in capsys.readouterr().out


def test_costs_that_changed_make_a_plan_stale_and_are_compared(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*PLAN, "--groups", "2"]) == 0
    slower = matrix_on(MIXED)
    store.save(
        replace(
            slower, rates=tuple(replace(rate, bytes_per_second=rate.bytes_per_second / 2) for rate in slower.rates)
        ),
        files / "costs.json",
    )
    assert run(["check", "--fresh", "plan.json"]) == 1
    assert "stale: costs costs.json" in "".join(capsys.readouterr())
    assert run(["check", "--fresh", "--max-regression", "5%", "plan.json"]) == 1
    assert "%" in "".join(capsys.readouterr())


def test_plans_are_simulated_and_compared(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*PLAN, "--groups", "2", "--levels", "2"]) == 0
    assert run([*PLAN[:-1], "flat.json", "--groups", "2", "--levels", "1"]) == 0
    capsys.readouterr()
    assert run(["simulate", "plan.json"]) == 0
    printed = capsys.readouterr().out
    assert "sent  6 MiB, 2 MiB across" in printed
    assert "port uplink 0 out" in printed
    assert run(["diff", "plan.json", "flat.json"]) == 1
    printed = "".join(capsys.readouterr())
    assert "levels: 2 -> 1\n" in printed
    assert "across: 2 MiB -> 4 MiB" in printed


def test_the_report_draws_every_host(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*PLAN, "--groups", "2", "--levels", "2"]) == 0
    assert run(["report", "plan.json", "-o", "plan.html"]) == 0
    page = (files / "plan.html").read_text()
    assert page.count("h0, group 0") == 1
    for words in ("checked, not run", "a ring along the groups", "2 groups; 33% of all bytes", "global master"):
        assert words in page
    assert run(["report", "plan.json", "-o", "plan.svg"]) == 0
    assert run(["plan", "aggregation", "--problem", "p.json", "-o", "one.json"]) == 2  # there is none
    store.save(problem_on(((0,),)), files / "p.json")
    assert run(["plan", "aggregation", "--problem", "p.json", "-o", "one.json"]) == 0
    assert run(["report", "one.json", "-o", "one.html"]) == 0


@pytest.mark.slow
def test_it_runs_as_a_collective(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*PLAN, "--groups", "2", "--chunk-bytes", "256KiB"]) == 0
    assert run(["generate", "plan.json", "-o", "out"]) == 0
    capsys.readouterr()
    assert run(["run", "out", "--sizes", "1000", "--dtypes", "int64", "--repeats", "1"]) == 0
    done = capsys.readouterr()
    assert "all results equal" in done.out
    assert "predicted ms on costs.json" in done.out
    assert "the prediction is for 4 hosts of costs.json" in done.err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--size", "1MiB"], "give either --costs or --problem"),
        (["--costs", "costs.json"], "--costs needs --size"),
        (["--problem", "costs.json", "--size", "1MiB"], "goes without options for them"),
        (["--problem", "costs.json"], "found 'cost-matrix' (text), expected 'aggregation-problem'"),
        (["--costs", "costs.json", "--size", "1MiB", "--groups", "9"], "found 9 groups of 4 hosts, expected 1 to 4"),
        (["--costs", "costs.json", "--size", "1MiB", "--groups", "1", "--levels", "2"], "two levels of one group"),
        (["--costs", "costs.json", "--size", "1MiB", "--levels", "3"], "1<=x<=2"),
        (["--costs", "latency.json", "--size", "1MiB"], "found no rates"),
        (["--costs", "uneven.json", "--size", "1MiB"], "h0 - h1"),
    ],
)
def test_bad_input_is_one_line(options: list[str], words: str, files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    right = matrix_on(MIXED)
    store.save(replace(right, rates=()), files / "latency.json")
    first = replace(right.rates[0], bytes_per_second=right.rates[0].bytes_per_second * 2)
    store.save(replace(right, rates=(first, *right.rates[1:])), files / "uneven.json")
    assert run(["plan", "aggregation", *options, "-o", "plan.json"]) == 2
    error = capsys.readouterr().err.strip()
    assert words in error
    assert not (files / "plan.json").exists()
    repaired = ["plan", "aggregation", "--costs", "uneven.json", "--size", "1MiB", "--repair", "max", "-o", "z.json"]
    if "uneven.json" in options:
        assert run(repaired) == 0
        assert run(["check", "--fresh", "z.json"]) == 0
