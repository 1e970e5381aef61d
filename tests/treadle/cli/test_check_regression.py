"""`check --fresh --max-regression`: plans whose inputs changed, judged by their figures on the inputs of today."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.conftest import GOLDEN
from treadle.cli.main import run
from treadle.planner import resources

PLANS = {
    "memory": "memory --problem memory-problem.yaml --gap 0 --budget 445",
    "swap": "swap --problem swap-problem.yaml --method exact --workers 1",
    "collective": "collective allgather --hardware net.yaml --size 64KiB --method greedy",
    "fusion": "fusion examples.fusion.sgd:program --hardware switch.yaml --bind N=1M",
}
SLOWER = {
    "memory": ("memory-problem.yaml", "time_ns: ", "time_ns: 1"),  # another digit in front
    "swap": ("swap-problem.yaml", "time_ns: 10}", "time_ns: 15}"),
    "collective": ("net.yaml", "beta_us_per_MB: 368", "beta_us_per_MB: 736"),
    "fusion": ("switch.yaml", "beta_us_per_MB: 8", "beta_us_per_MB: 12"),
}
BARELY = {
    "swap": ("swap-problem.yaml", "in_bandwidth: 1000000000", "in_bandwidth: 1000000001"),
    "collective": ("net.yaml", "beta_us_per_MB: 368", "beta_us_per_MB: 369"),
    "fusion": ("switch.yaml", "beta_us_per_MB: 8", "beta_us_per_MB: 8.01"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    for name in ("memory-problem.yaml", "swap-problem.yaml"):
        shutil.copy(GOLDEN / "inputs" / name, folder)
    for name, copy in (("cpu-2x2", "net.yaml"), ("switch4", "switch.yaml")):
        shutil.copy(resources.locate("profiles", name), folder / copy)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, command in PLANS.items():
            assert run([*f"plan {command} -o {name}.json".split()]) == 0
    return folder


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "copy"
    shutil.copytree(made, folder)
    monkeypatch.chdir(folder)
    return folder


def edit(file: str, before: str, after: str) -> None:
    text = Path(file).read_text()
    assert before in text
    Path(file).write_text(text.replace(before, after))


def check(name: str, *options: str) -> int:
    return run(["check", f"{name}.json", "--fresh", *options])


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_with_its_own_inputs_is_no_regression(name, here, capsys):
    assert check(name, "--max-regression", "0%", "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)["files"]
    assert row["today"]["time_ns"]["today"] == row["today"]["time_ns"]["recorded"] > 0


@pytest.mark.parametrize("name", BARELY)
def test_an_input_that_changes_little_is_accepted_within_the_share_only(name, here, capsys):
    edit(*BARELY[name])
    assert check(name) == 1
    assert "stale: " in capsys.readouterr().out
    assert check(name, "--max-regression", "5%") == 0
    assert "1 input changed, no figure worse by more than 5.00%" in capsys.readouterr().out


@pytest.mark.parametrize("name", SLOWER)
def test_a_plan_that_became_slower_is_rejected_with_both_times(name, here, capsys):
    edit(*SLOWER[name])
    assert check(name, "--max-regression", "0.05") == 1
    assert "  regression: time " in (out := capsys.readouterr().out)
    assert " recorded, +" in out


def test_faster_links_than_the_plan_uses_widen_the_gap(here, capsys):
    edit("net.yaml", "alpha_us: 79.1", "alpha_us: 1")
    assert check("collective", "--max-regression", "5%") == 1
    assert "  regression: gap " in capsys.readouterr().out


def test_decisions_that_fit_the_inputs_no_more_are_stale(here, capsys):
    edit("swap-problem.yaml", "{id: a1, bytes: 4", "{id: a1, bytes: 5")
    assert check("swap", "--max-regression", "100%") == 1
    assert "stale: the tensors have other names, sizes or roles than in the plan; plan again" in capsys.readouterr().out


def test_the_share_needs_fresh_and_is_a_share(here, capsys):
    assert run(["check", "swap.json", "--max-regression", "5%"]) == 2
    capsys.readouterr()
    for share, wrong in {
        "500%": "500% is not in the range 0<=x<=1",
        "5": "5 is not in the range 0<=x<=1",
        "-1": "-1 is not in the range 0<=x<=1",
        "nan": "nan is not in the range 0<=x<=1",
        "5%%": "'5%%' is not a number",
    }.items():
        assert run(["check", "swap.json", "--fresh", "--max-regression", share]) == 2
        assert f"'--max-regression': {wrong}, such as 5% or 0.05 (see" in capsys.readouterr().err
