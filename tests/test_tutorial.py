"""The tutorial's commands, run in its order: they end as shown, and say what is shown."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[1] / "docs" / "tutorial.md").read_text()
FILES = re.findall(r"Write this as `([a-z.]+)`:\n\n```(?:python|text)\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [
    (command, shown)
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
]


def shape(text: str) -> str:
    """How the first line begins, whatever its numbers."""
    return re.sub(r"[0-9][0-9.,]*", "#", text.strip().split("\n")[0])[:30]


def test_the_tutorial_does_what_it_says(tmp_path: Path) -> None:
    assert len(FILES) == 5
    assert len(COMMANDS) > 10
    for name, text in FILES:
        (tmp_path / name).write_text(text)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "100"}
    for command, shown in COMMANDS:
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, env=environment, text=True, capture_output=True, check=False
        )
        said = done.stdout + done.stderr
        assert (done.returncode != 0) == ("error: " in shown.lower() or "rejected" in shown), f"{command}\n{said}"
        assert shape(said) == shape(shown), command
