"""`treadle plan compression`: from problems and traces, what it prints and writes, what it refuses."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.codegen.compression.compression_plans import small_problem
from tests.planner.passes.compression.test_extract import COSTS, STEP, selection
from treadle.cli.main import run
from treadle.passes.compression.inputs import SHIPPED_COSTS
from treadle.planner.documents import store
from treadle.planner.documents.compression_costs import CompressionCosts, Curve
from treadle.planner.documents.gradient_link import GradientLink
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.sources import load_named
from treadle.planner.passes.compression.decisions import CompressionDecisions
from treadle.planner.search.top import Outcome
from treadle.runtime import trial_ranks
from treadle.runtime.compression import trials

Found = list[dict[int, Outcome]]
STEP_ON = ["--trace", "step.json", "--hardware", "hosts-2x2"]
TRACE = ["plan", "compression", *STEP_ON, "--compressor", "dgc", "-o", "plan.json"]
PROBLEM = ["plan", "compression", "--problem", "problem.json", "-o", "plan.json"]


@pytest.fixture
def files(here: Path) -> Path:
    """A problem, a trace with its times, costs and a selection."""
    store.save(small_problem(), here / "problem.json")
    store.save(STEP, here / "step.json")
    store.save(COSTS, here / "costs.json")
    store.save(selection(), here / "selection.json")
    return here


def test_a_problem_by_hand_is_planned_and_described(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(PROBLEM) == 0
    printed = capsys.readouterr().out
    plan = store.load(files / "plan.json", Plan)
    assert plan.decisions.time_ns < plan.decisions.uncompressed_ns
    assert printed.startswith("compress     ")
    for words in ("dgc:0.01 for ", "2 nodes of 2 ranks", " uncompressed (1.5", "lower bound  ", "\ncompared with\n"):
        assert words in printed
    assert run(["check", "plan.json"]) == 0
    assert "plan.json: accepted (compression plan: 3 gradients" in capsys.readouterr().out


def test_compressors_that_treadle_does_not_have_are_noted(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    problem = small_problem()
    own = replace(problem.compressors[0], name="ours", wire=Curve(points=((0, 0), (1000, 40))))
    store.save(replace(problem, compressors=(own,)), files / "problem.json")
    assert run(PROBLEM) == 0
    printed = capsys.readouterr()
    assert "ours for " in printed.out
    assert "treadle does not have ours: the plan can be simulated, not run" in printed.err
    assert run(["simulate", "plan.json"]) == 0
    assert run(["generate", "plan.json", "-o", "hook"]) == 0
    assert run(["run", "hook"]) == 2
    assert "found compressor 'ours', expected one of randomk, topk, " in capsys.readouterr().err


def test_json_has_the_figures(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*PROBLEM, "--method", "cupcake", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["schema"] == "treadle.plan-compression/1"
    assert facts["exposed_ns"] == facts["time_ns"] - facts["operators_ns"]
    assert facts["lower_bound_ns"] <= facts["time_ns"] <= min(facts["rivals_ns"].values())
    assert sum(facts["compressed_groups"].values()) <= facts["groups"]
    assert facts["reason"] is None


def test_compress_nothing_is_said_with_its_reason(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fast = replace(small_problem(), inter=GradientLink(alpha_us=1, beta_us_per_MB=10))
    store.save(fast, files / "problem.json")
    assert run(PROBLEM) == 0
    assert "compress     nothing: links cost less than encoding: " in capsys.readouterr().out


def test_a_trace_is_planned_with_costs_and_collectives_and_checked_against_them(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*TRACE, "--costs", "costs.json", "--collectives", "selection.json"]) == 0
    assert "compressors are priced" not in capsys.readouterr().err
    plan = store.load(files / "plan.json", Plan)
    assert sorted(plan.inputs) == ["collectives", "costs", "hardware", "trace"]
    assert plan.decisions.problem.planned is not None
    assert run(["check", "--fresh", "plan.json"]) == 0
    store.save(replace(COSTS, pack=None), files / "costs.json")
    assert run(["check", "--fresh", "plan.json"]) == 1
    assert "stale: costs" in capsys.readouterr().out


def test_costs_of_the_kind_of_device_are_taken_and_said(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(TRACE) == 0
    assert "compressors are priced as on AMD EPYC; " in capsys.readouterr().err
    assert store.load(files / "plan.json", Plan).inputs["costs"].file == "cpu-epyc"


@pytest.mark.parametrize("kind", SHIPPED_COSTS)
def test_shipped_costs_have_no_collectives_which_are_those_of_one_machine(kind: str) -> None:
    costs = load_named(CompressionCosts, SHIPPED_COSTS[kind])
    assert costs.routines == ()
    assert {"dgc:0.01", "efsignsgd"} <= {each.name for each in costs.compressors}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("", "give either --trace or --problem"),
        ("--trace step.json --problem problem.json", "give either --trace or --problem"),
        ("--trace step.json --hardware hosts-2x2", "--trace needs --hardware, for the links, and at least one"),
        ("--problem problem.json --hardware hosts-2x2", "--problem names its machine and its compressors"),
        ("--problem problem.json --as-published", "--as-published belongs to --method espresso or cupcake"),
        ("--problem problem.json --top 3", "--top belongs to --measure"),
        ("--problem problem.json --method cupcake --as-published --measure", "so it goes without --measure"),
        (
            "--trace step.json --hardware hosts-2x2 --compressor dgc --collectives x.json --measure",
            "no planned allreduce",
        ),
        (
            "--trace step.json --hardware hosts-2x2 --compressor dgc --measure",
            "--measure: found 2 nodes in the profile",
        ),
        ("--problem problem.json --no-bubble-pruning", "--no-bubble-pruning belongs to --method espresso"),
        ("--trace step.json --hardware hosts-2x2 --compressor dgc:2", "found 'dgc:2', expected a ratio above 0"),
        ("--trace step.json --hardware hosts-2x2 --compressor zip", "found zip, expected one with costs in AMD EPYC: "),
    ],
)
def test_what_does_not_go_together_is_refused(
    files: Path, options: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", "compression", *options.split(), "-o", "plan.json"]) == 2
    assert message in capsys.readouterr().err


def test_measured_plans_are_taken_by_their_times_and_said(
    files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def times(ask: object, clock: object, show: object, rows: list[list[CompressionDecisions]]) -> Found:
        encoded = [[sum(group.compressor is not None for group in each.groups) for each in row] for row in rows]
        return [{at: Outcome(1e6 + count) for at, count in enumerate(row)} for row in encoded]

    monkeypatch.setattr(trials, "_times", times)
    assert run([*PROBLEM, "--measure", "--top", "12"]) == 0
    printed = capsys.readouterr().out
    assert "compress     nothing: of 11 plans that were measured this one takes least time" in printed
    assert "gradients: 11 ranked by timeline of an iteration on three layers, 11 measured, took the " in printed
    assert run(["check", "plan.json"]) == 0
    capsys.readouterr()
    assert run([*PROBLEM, "--measure", "--json"]) == 0
    [tuned] = json.loads(capsys.readouterr().out)["tuned"]
    assert (tuned["ranked"], tuned["measured"]) == (11, 6)
    plan = json.loads((files / "plan.json").read_text())
    (record,) = plan["provenance"]["tuned"]
    other = next(each for each in record["ranked"] if "measured_ns" in each and each["name"] != record["chosen"])
    other["measured_ns"], record["chosen"] = 1.0, other["name"]
    (files / "plan.json").write_text(json.dumps(plan))
    assert run(["check", "plan.json"]) == 1
    assert f"provenance.tuned: took {other['name']}, expected " in capsys.readouterr().out


def test_ctrl_c_while_plans_are_measured_keeps_the_best_predicted(
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
def test_processes_of_this_machine_measure_plans(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*PROBLEM, "--measure", "--top", "2"]) == 0
    assert " ranked by timeline of an iteration on three layers, 2 measured, took the " in capsys.readouterr().out
    assert run(["check", "plan.json"]) == 0
    [tuned] = store.load(files / "plan.json", Plan).provenance.tuned
    assert len(tuned.measured) == 2


def test_a_single_rank_has_nothing_to_measure(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store.save(replace(small_problem(), machines=1, devices=1), files / "problem.json")
    assert run([*PROBLEM, "--measure"]) == 2
    assert "--measure: found a single rank, expected several, which exchange gradients" in capsys.readouterr().err
