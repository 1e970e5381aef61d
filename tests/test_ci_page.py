"""docs/ci.md: the shell lines of its snippets run as they stand, in a repository of plans; the hooks are valid."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import GOLDEN
from treadle.cli.main import run
from treadle.planner import resources

ROOT = Path(__file__).parent.parent
SNIPPETS: list[dict[str, Any]] = [
    yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/ci.md").read_text(), re.DOTALL)
]
GITHUB, GITLAB, HOOKS = SNIPPETS
RUN = {step["name"]: step["run"] for step in GITHUB["jobs"]["plans"]["steps"] if "run" in step}


def git(*arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, *arguments], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A branch whose plan is for another size than that of the base, `main`; and on the path `treadle` without PyTorch,
    which the page does not install."""
    monkeypatch.chdir(tmp_path)
    Path("plans").mkdir()
    Path("bin").mkdir()
    without = "import sys; sys.modules['torch'] = None; from treadle.__main__ import main; main()"
    Path("bin/treadle").write_text(f'#!/bin/sh\nexec {sys.executable} -c "{without}" "$@"\n')
    Path("bin/treadle").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    shutil.copy(resources.locate("profiles", "ring4"), "plans/ring4.yaml")
    plan = [
        "plan",
        "collective",
        "allgather",
        "--hardware",
        "plans/ring4.yaml",
        "--method",
        "ring",
        "-o",
        "plans/ring.plan.json",
        "--size",
    ]
    shutil.copy(GOLDEN / "inputs/step.json", "plans/step.json")
    traced = ["plan", "memory", "--trace", "plans/step.json", "--budget", "0.9x", "-o", "plans/step.plan.json"]
    git("init", "-q", "-b", "main")
    assert run(traced) == 0
    assert run([*plan, "64KiB"]) == 0
    assert run(["generate", "plans/ring.plan.json", "--target", "msccl-xml", "-o", "made"]) == 0
    shutil.copy("made/allgather.xml", "plans")
    git("add", "plans")
    git("commit", "-qm", "base")
    git("checkout", "-qb", "change")
    assert run([*plan, "128KiB"]) == 0
    git("commit", "-qam", "change")
    return tmp_path


def shell(lines: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", "-e", "-o", "pipefail", "-c", lines]  # as GitHub and GitLab run them
    return subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True)


@pytest.mark.slow
def test_the_lines_of_both_snippets_run(repository):
    done = shell(RUN["difference"], BASE="main")
    assert done.returncode == 0, done.stderr
    text = Path("difference.txt").read_text()
    assert text.startswith("plans/ring.plan.json\n")
    assert "  input: 64 KiB -> 128 KiB (+100.00%)" in text
    for lines in (RUN["check"], "\n".join(GITLAB["plans"]["script"])):
        done = shell(lines)
        assert done.returncode == 0, done.stderr
    assert Path("findings.sarif").exists()
    assert '"schema": "treadle.check/1"' in Path("findings.json").read_text()
    plan = Path("plans/ring.plan.json")
    plan.write_text(plan.read_text().replace('"verdict": "accepted"', '"verdict": "refused"'))
    assert shell(RUN["check"]).returncode == 2


def test_the_snippets_install_alike():
    assert GITLAB["plans"]["before_script"] == [RUN["install"]]


def test_the_hooks_are_those_of_the_page_and_their_entries_run(tmp_path, monkeypatch):
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert [hook["id"] for hook in hooks] == [hook["id"] for hook in HOOKS["repos"][0]["hooks"]]
    monkeypatch.chdir(tmp_path)
    assert (
        run(
            [
                "plan",
                "collective",
                "allgather",
                "--hardware",
                "ring4",
                "--method",
                "ring",
                "--size",
                "1KiB",
                "-o",
                "a.plan.json",
            ]
        )
        == 0
    )
    for hook in hooks:
        assert hook.keys() == {"id", "name", "description", "entry", "language", "files"}
        assert hook["language"] == "python"
        assert re.search(hook["files"], "a.plan.json")
        assert run([*hook["entry"].split()[1:], "a.plan.json"]) == 0
