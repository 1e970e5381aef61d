"""A pass is three folders and one line: that of docs/adding-a-pass.md goes through every command in a copy."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "adding-a-pass.md").read_text()
FILES = dict(re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE, re.DOTALL))
LIST = "planner/passes/__init__.py"
LINE = re.search(r"^    \"toy\": .*$", PAGE, re.MULTILINE)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages with the pass of the page."""
    house = tmp_path_factory.mktemp("house")
    for name in ("planner", "codegen", "treadle"):
        shutil.copytree(ROOT / name, house / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("templates", "profiles", "sketches"):
        (house / name).symlink_to(ROOT / name)
    for name, text in FILES.items():
        (house / name).parent.mkdir(exist_ok=True)
        (house / name).write_text(text)
        (house / name).with_name("__init__.py").write_text('"""The toy pass."""\n')
    assert LINE is not None
    listed = (house / LIST).read_text()
    (house / LIST).write_text(listed.replace("ROOMS = {\n", f"ROOMS = {{\n{LINE[0]}\n"))
    return house


Treadle = Callable[..., str]


@pytest.fixture
def treadle(house: Path, tmp_path: Path) -> Treadle:
    """The command line of the copy, in an empty folder; returns what a command prints."""

    def run(*arguments: str, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "treadle", *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(house)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    return run


def test_a_pass_is_three_folders_and_one_line(treadle: Treadle, tmp_path: Path) -> None:
    assert {str(Path(name).parent) for name in FILES} == {"planner/passes/toy", "codegen/toy", "treadle/passes/toy"}
    (tmp_path / "jobs.yaml").write_text("kind: jobs\nversion: 1\nworkers: 2\ntimes_ns: [3, 3, 2, 2, 2]\n")
    assert "Which worker runs which job." in treadle("plan", "--help")
    assert treadle("plan", "toy", "jobs.yaml", "-o", "plan.json") == "7 ns; wrote plan.json\n"
    treadle("generate", "plan.json", "-o", "made")
    assert (tmp_path / "made" / "workers.txt").read_text() == "0 2 4\n1 3\n"
    assert "inputs jobs checked" in treadle("check", "--jobs", "jobs.yaml", "plan.json")
    checked = treadle("check", "--fresh", "jobs.yaml", "plan.json", "made")
    assert "toy plan of 5 jobs; gap 14.29%; inputs jobs checked" in checked
    assert "worker-lists artefacts, 2 files, generated again to the same text" in checked
    assert treadle("run", "made") == "worker 0 runs 0 2 4\nworker 1 runs 1 3\n"
    simulated = treadle("simulate", "plan.json")
    assert "0.007 us simulated, 0.007 us planned" in simulated
    assert "worker 1                 busy 0.005 us (71%)" in simulated
    treadle("report", "plan.json", "-o", "plan.html")
    assert "All jobs end after 7 ns." in (tmp_path / "plan.html").read_text()
    text = (tmp_path / "plan.json").read_text()
    (tmp_path / "plan.json").write_text(text.replace('"time_ns": 7', '"time_ns": 6'))
    assert "$.decisions.time_ns: 6 ns, the jobs take 7 ns" in treadle("check", "plan.json", code=1)


JOB = """
kind: job
version: 1
name: tiny
model: model:step
hardware: cpu-2x2
nodes: 1
memory: {budget: 0.9x}
collective: {sketch: ring}
toy: {workers: 2}
run: {steps: 1}
"""

MODEL = """
import torch

def step():
    layers = [torch.nn.Linear(32, 32) if n % 2 == 0 else torch.nn.GELU() for n in range(6)]
    return torch.nn.Sequential(*layers), (torch.randn(256, 32),), lambda model, inputs: model(inputs).square().mean()
"""


@pytest.mark.slow
def test_a_pass_has_a_part_in_jobs(treadle: Treadle, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "model.py").write_text(MODEL)
    printed = treadle("plan", "job", "job.yaml", "-o", "out")
    assert "plan operators over 2 workers" in printed
    assert "same numbers: yes, measured" in printed
    assert "toy plan of" in treadle("check", "out/toy.plan.json", "out/toy")
    page = (tmp_path / "out" / "report.html").read_text()
    card = r"operators on the busiest worker.*?[0-9.]+ ms.*?measured, all operators: [0-9.e+]+ ms"
    assert re.search(card, page, re.DOTALL)
    assert "Jobs: toy" in page
    (tmp_path / "job.yaml").write_text(JOB.replace("workers: 2", "workers: none"))
    assert "$.toy.workers: found 'none' (text)" in treadle("plan", "job", "job.yaml", "-o", "out", code=2)
