"""What shells offer: asked as bash, zsh and fish ask."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from tests.treadle.cli.test_main import leaves
from treadle.cli import main as main_module
from treadle.cli.main import COMPLETION, SUBCOMMANDS, cli
from treadle.codegen.targets import target_names
from treadle.planner import resources
from treadle.planner.documents.collective import Collective

ROOT = Path(__file__).parents[3]


def asked(shell: str, line: str) -> dict[str, str]:
    """What the script of a shell sets for the word at the end of a line."""
    words = line.split(" ")
    return {
        COMPLETION: f"complete_{shell}",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }


def answer(shell: str, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    with monkeypatch.context() as patched:
        for name, value in {**asked(shell, line), "COLUMNS": "80"}.items():
            patched.setenv(name, value)
        with pytest.raises(SystemExit) as ended:
            main_module.main()
    assert ended.value.code == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    return printed.out.removesuffix("\n")


def offered(line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What every shell offers behind the blank or for the last word of the line; files where that is nothing."""
    bash, zsh, fish = (answer(shell, f"treadle {line}", monkeypatch, capsys) for shell in ("bash", "zsh", "fish"))
    names = bash.splitlines()
    assert [each.partition("\t")[0] for each in fish.splitlines()] == names
    assert [each.replace(r"\\:", ":") for each in re.findall(r'^(?:.*\(\()?"([^"]*)"', zsh, re.MULTILINE)] == names
    assert names or zsh == "_files"
    return names


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", list(SUBCOMMANDS)),
        ("si", ["simulate"]),
        ("plan ", ["memory", "swap", "collective", "fusion", "compression", "sparse", "ranks", "aggregation", "job"]),
        ("plan m", ["memory"]),
        ("trace ", ["capture", "import", "show"]),
        ("plan collective ", list(get_args(Collective))),
        ("plan collective allg", ["allgather"]),
        ("plan collective allgather --hardware ", [*resources.names("profiles"), "local"]),
        ("plan collective allgather --sketch ", resources.names("sketches")),
        ("plan collective allgather --method rou", []),
        ("plan collective allgather --method mi", ["milp"]),
        ("plan fusion --trace x --hardware loc", ["local"]),
        ("plan memory --hardware dgx", [name for name in resources.names("profiles") if name.startswith("dgx")]),
        ("plan memory --hardware ./ma", []),
        ("plan memory --without c", ["conv"]),
        ("plan swap --with", ["--with-recompute"]),
        ("plan swap --trace ", []),
        ("generate plan.json --target ", list(target_names())),
        ("generate pl", []),
        ("profile show lo", ["local"]),
        ("sketch show ", resources.names("sketches")),
        ("nothing ", list(SUBCOMMANDS)),
        ("plan nothing m", ["memory"]),
        ("plan swap --not-there", []),
        ("plan memory -o nowhere/at/all.json --trace ", []),
    ],
)
def test_shells_offer_what_may_stand_there(
    line: str, expected: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert offered(line, monkeypatch, capsys) == expected


def test_every_option_is_offered_with_one_line_of_help(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, command in leaves(cli).items():
        names = offered(f"{name} --", monkeypatch, capsys)
        options = [name for each in command.params for name in (*each.opts, *each.secondary_opts) if name[:2] == "--"]
        assert names == [*options, "--help"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_lines_of_the_manual_write_a_script_for_each_shell(
    shell: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "environment.md").read_text()
    assert f"{COMPLETION}=source_{shell} treadle" in page
    monkeypatch.setenv(COMPLETION, f"source_{shell}")
    with pytest.raises(SystemExit) as ended:
        main_module.main()
    assert ended.value.code == 0
    assert f"{COMPLETION}=complete_{shell}" in capsys.readouterr().out


def test_bash_completes_by_the_script(tmp_path: Path) -> None:
    (tmp_path / "treadle").write_text(f'#!/bin/sh\nexec {sys.executable} -m treadle "$@"\n')
    (tmp_path / "treadle").chmod(0o700)
    script = (
        f'eval "$({COMPLETION}=source_bash treadle)"; complete -p treadle\n'
        "COMP_WORDS=(treadle plan fusion --hardware dgx); COMP_CWORD=4\n"
        '_treadle_completion treadle; echo "${COMPREPLY[@]}"'
    )
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=True, env={**os.environ, "PATH": path}
    )
    dgx = [name for name in resources.names("profiles") if name.startswith("dgx")]
    assert done.stdout.splitlines() == ["complete -o default -F _treadle_completion treadle", " ".join(dgx)]
    assert done.stderr == ""


def test_an_answer_imports_no_torch_and_no_solver() -> None:
    lines = ["treadle ", "treadle plan memory --", "treadle plan collective allgather --hardware "]
    code = (
        "import os, sys; from treadle.cli.main import main\n"
        f"for each in {[asked('bash', line) for line in lines]}:\n"
        "    os.environ.update(each)\n"
        "    try: main()\n"
        "    except SystemExit: print('heavy', sorted({'torch', 'ortools', 'highspy'} & sys.modules.keys()))\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    answers = ended.stdout.split("heavy []\n")
    assert [bool(each) for each in answers] == [True, True, True, False]
