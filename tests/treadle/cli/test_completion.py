"""What shells offer: asked as bash, zsh and fish ask."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from treadle.cli.completion import SHELLS
from treadle.cli.lazy import COMPLETION
from treadle.cli.main import SUBCOMMANDS, cli
from treadle.codegen.targets import target_names
from treadle.passes.collective.command import COLLECTIVES
from treadle.planner import resources


def offered(line: str) -> list[str]:
    """What every shell offers behind the blank or for the last word of the line."""
    *args, incomplete = line.split(" ")
    answers = [
        [(item.type, item.value) for item in shell(cli, {}, "treadle", COMPLETION).get_completions(args, incomplete)]
        for shell in SHELLS
    ]
    assert all(answer == answers[0] for answer in answers)
    return [value if kind == "plain" else f"<{kind}>" for kind, value in answers[0]]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", list(SUBCOMMANDS)),
        ("si", ["simulate"]),
        ("plan ", ["memory", "swap", "collective", "fusion", "job"]),
        ("plan m", ["memory"]),
        ("trace ", ["capture", "import", "show"]),
        ("plan collective ", list(COLLECTIVES)),
        ("plan collective allg", ["allgather"]),
        ("plan collective allgather --hardware ", [*resources.names("profiles"), "local"]),
        ("plan collective allgather --sketch ", resources.names("sketches")),
        ("plan collective allgather --method rou", ["<file>"]),
        ("plan collective allgather --method mi", ["milp"]),
        ("plan fusion --trace x --hardware loc", ["local"]),
        ("plan memory --hardware dgx", [name for name in resources.names("profiles") if name.startswith("dgx")]),
        ("plan memory --hardware ./ma", ["<file>"]),
        ("plan memory --without c", ["conv"]),
        ("plan swap --with", ["--with-recompute"]),
        ("plan swap --trace ", ["<file>"]),
        ("generate plan.json --target ", list(target_names())),
        ("generate pl", ["<file>"]),
        ("profile show lo", ["local"]),
        ("sketch show ", resources.names("sketches")),
        ("nothing ", list(SUBCOMMANDS)),
        ("plan nothing m", ["memory"]),
        ("plan swap --not-there", []),
        ("plan memory -o nowhere/at/all.json --trace ", ["<file>"]),
    ],
)
def test_shells_offer_what_may_stand_there(line: str, expected: list[str]) -> None:
    assert offered(line) == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_command_writes_a_script_for_each_shell_and_answers_it(shell: str) -> None:
    def asked(instruction: str, **more: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, COMPLETION: instruction, **more}
        return subprocess.run(
            [sys.executable, "-m", "treadle"], capture_output=True, text=True, check=False, env=environment
        )

    script = asked(f"{shell}_source")
    assert script.returncode == 0
    assert f"{COMPLETION}={shell}_complete" in script.stdout
    words = {"COMP_WORDS": "treadle plan me", "COMP_CWORD": "me" if shell == "fish" else "2"}
    found = asked(f"{shell}_complete", **words)
    assert found.returncode == 0
    assert "memory" in found.stdout
    assert found.stderr == ""


def test_an_answer_imports_no_torch_and_no_solver() -> None:
    code = (
        "import sys; from treadle.cli.main import cli; from treadle.cli.completion import SHELLS\n"
        "shell = SHELLS[0](cli, {}, 'treadle', '_TREADLE_COMPLETE')\n"
        "for args in ([], ['plan'], ['plan', 'memory'], ['plan', 'collective', 'allgather', '--hardware']):\n"
        "    assert shell.get_completions(args, '')\n"
        "print(sorted({'torch', 'ortools', 'highspy'} & sys.modules.keys()))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"
