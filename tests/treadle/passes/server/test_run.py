"""`treadle run` of a server plan: weights as those of local steps, and what it prints and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.treadle.cli.test_json_output import KEYS
from tests.treadle.server.serving import plan_for
from treadle.cli.main import run
from treadle.codegen import emit
from treadle.codegen.targets import generate
from treadle.passes.server.run import run_lines
from treadle.planner.passes.server.decided import ServerOptions
from treadle.planner.passes.server.planning import plan_server
from treadle.runtime.server.compare import Usage, WorkerComparison, at_work


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = nn.Sequential(nn.Linear(30, 40), nn.Linear(40, 3, dtype=torch.float16))
    plan = plan_server(plan_for(model, "lamb", 2, "shared").problem, options=ServerOptions(chunk_bytes=1024))
    emit.write(generate(plan, "plan.json"), tmp_path)
    return tmp_path


@pytest.mark.slow
def test_workers_have_the_weights_of_local_steps(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", str(folder), "--steps", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.pop("schema") == "treadle.run-server/1"
    assert found.keys() == KEYS["run-server"][0]
    assert (found["workers"], found["servers"], found["equal"], found["findings"]) == (2, 1, True, [])
    assert min(time for name, time in found["time_ns"].items() if name not in ("planned", "here")) > 0
    lines = [*run_lines(found)]
    assert lines[0] == "2 workers and 1 server as processes of this machine, by shared memory; random gradients"
    assert "  weights     those of local steps, bit by bit, after 3 steps of lamb" in lines


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--backend", "cuda"),
            "--backend: found cuda, expected gloo; on GPUs attach the servers in a",
        ),
        (("--world", "3"), "--world: found 3, expected 2: the plan has that many workers"),
    ],
    ids=["backend", "world"],
)
def test_other_back_ends_and_numbers_are_refused(
    folder: Path, options: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["run", str(folder), *options]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("used", "expected"),
    [
        ((1.0, 0.2, 0.2, 0.1), "links"),
        ((1.0, 0.95, 1.0, 0.1), "core of a server"),
        ((1.0, 0.5, 0.5, 1e3), "shared cores"),
    ],
    ids=["idle", "core", "all"],
)
def test_what_was_at_work_all_the_time_is_the_bottleneck(used: tuple[float, ...], expected: str) -> None:
    worker = WorkerComparison("", None, [1], [1], [1], Usage._make(used))
    assert at_work([worker], 4) == expected
