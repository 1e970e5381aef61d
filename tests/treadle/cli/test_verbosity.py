"""`-q` and `-v`: what a command prints on stderr besides its errors."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.planner.samples import PROBLEM
from tests.treadle.cli.test_main import leaves
from treadle.cli.main import cli, run
from treadle.planner.documents.store import dumps

PLAN = ["memory", "--problem", "problem.json", "-o", "plan.json"]


@pytest.fixture
def problem(here: Path) -> Path:
    (here / "problem.json").write_text(dumps(PROBLEM))
    return here


def test_every_command_has_both_options() -> None:
    for name, command in {**leaves(cli), "": cli}.items():
        options = {option for each in command.params for option in each.opts}
        assert {"-q", "--quiet", "-v", "--verbose"} <= options, name


@pytest.mark.parametrize("place", [0, 1, 3])
def test_quiet_stands_anywhere_and_leaves_out_notes_only(
    place: int, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["profile", "show", "dgx1", "--svg", "p.svg"]
    assert run(words) == 0
    assert capsys.readouterr() == ("", "wrote p.svg\n")
    assert run([*words[:place], "-q", *words[place:]]) == 0
    assert capsys.readouterr() == ("", "")


def test_quiet_leaves_results_and_errors(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", "show", "-q", "dgx1"]) == 0
    assert "dgx1" in capsys.readouterr().out
    assert run(["-q", "check", "absent.json"]) == 2
    assert capsys.readouterr().err == "error: absent.json: cannot read: No such file or directory\n"


def test_verbose_logs_what_is_read_which_method_runs_and_what_is_written(
    problem: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", *PLAN, "--verbose"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert all(line.startswith("[") and " s] " in line for line in lines)
    logged = [line.partition("] ")[2] for line in lines]
    assert logged[0] == "read problem.json: memory-problem"
    assert any(line.startswith("method ") for line in logged)
    assert "wrote plan.json" in logged
    assert run(["check", "plan.json"]) == 0
    assert capsys.readouterr().err == "", "the option holds for one command line"
    assert not logging.getLogger("treadle").handlers


def test_quiet_and_verbose_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["-q", "profile", "list", "-v"]) == 2
    assert "--quiet and --verbose exclude each other" in capsys.readouterr().err
