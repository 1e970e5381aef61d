"""What a command does when its stdout takes nothing: it still does its work, and its exit code stays true."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import GOLDEN

TREADLE = f"{sys.executable} -m treadle"
PLAN = "plan memory --problem memory-problem.yaml --gap 0 --budget 445 -o m.json"
CODES = {"--help": 0, "profile list": 0, "diff a.yaml b.yaml": 1, "check w.xml --json": 1, PLAN: 0}
"""Command lines, and the exit code of each on a terminal."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(GOLDEN / "inputs" / "memory-problem.yaml", tmp_path)
    profile = (Path(__file__).parents[3] / "profiles" / "ring4.yaml").read_text()
    (tmp_path / "a.yaml").write_text(profile)
    (tmp_path / "b.yaml").write_text(profile.replace("name: ring4", "name: other"))
    program = (GOLDEN / "msccl_xml" / "allreduce_ring4.out.xml").read_text()
    (tmp_path / "w.xml").write_text(program.replace('srcoff="1"', 'srcoff="0"', 1))
    return tmp_path


def ended(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = ["bash", "-o", "pipefail", "-c", script]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)


@pytest.mark.slow
@pytest.mark.parametrize("line", CODES)
def test_a_closed_pipe_changes_no_exit_code(folder, line):
    done = ended(f"{TREADLE} {line} | true", folder)
    assert done.returncode == CODES[line]
    errors = [each for each in done.stderr.splitlines() if each.startswith("error: ")]
    assert len(errors) == CODES[line]
    assert "Traceback" not in done.stderr
    assert (folder / "m.json").exists() == (line == PLAN)


@pytest.mark.slow
@pytest.mark.parametrize("line", CODES)
def test_a_full_disk_is_one_line_that_names_stdout(folder, line):
    done = ended(f"{TREADLE} {line} >/dev/full", folder)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "error: stdout: No space left on device"
    assert done.stderr.count("error: ") == 1
    if line == PLAN:
        assert json.loads((folder / "m.json").read_text())["kind"] == "plan"


def test_both_at_once(folder):
    """One of each kind in the quick tests."""
    assert ended(f"{TREADLE} diff a.yaml b.yaml | true", folder).returncode == 1
    assert (
        ended(f"{TREADLE} diff a.yaml b.yaml >/dev/full", folder).stderr == "error: stdout: No space left on device\n"
    )
