"""`treadle generate` and `treadle run` with a fusion plan, from the command line."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from treadle.cli.main import run
from treadle.planner.errors import InputError
from treadle.runtime.fusion.folder import run_folder
from treadle.runtime.joined import StartedRank

SGD = Path(__file__).parents[4] / "examples" / "fusion" / "sgd.py"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kernels of a plan, next to the plan."""
    folder = tmp_path_factory.mktemp("fusion")
    plan = str(folder / "sgd.plan.json")
    assert (
        run(["plan", "fusion", str(SGD), "--hardware", "switch4", "--ranks", "2", "--bind", "N=1001", "-o", plan]) == 0
    )
    assert run(["generate", plan, "--target", "cuda", "-o", str(folder / "made")]) == 0
    return folder / "made"


@pytest.fixture
def copied(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "made"))


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_kernels_on_fibers_equal_the_interpreter_and_move_what_the_plan_says(made, capsys):
    assert run(["run", str(made), "--backend", "fibers", "--repeats", "2", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["results"]
    assert [row["data"] for row in rows] == ["integers", "floats"]
    assert rows[0]["bits"], "whole numbers have no rounding"
    for row in rows:
        assert row["good"]
        assert row["problems"] == []
        assert row["runs"] == 2
        assert row["sent"] == pytest.approx(row["planned_sent"], rel=0.01), "1001 elements are not even"
        assert row["traffic"] >= row["planned_traffic"] * 0.99
    assert run(["run", str(made), "--backend", "fibers", "--repeats", "1"]) == 0
    text = capsys.readouterr().out
    assert f"{made}: 1 run on fibers, in random orders" in text
    assert "equal to the last bit" in text


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("world", [2, 3])
def test_processes_that_were_started_together_are_the_ranks(made, world):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(world)}
    command = [sys.executable, "-m", "treadle", "run", str(made), "--repeats", "2", "--json"]
    started = [
        subprocess.Popen(
            command, env={**environment, "RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for rank in range(world)
    ]
    ended = [(*each.communicate(timeout=120), each.returncode) for each in started]
    if world == 2:
        assert [code for *_, code in ended] == [0, 0]
        assert all(row["good"] for row in json.loads(ended[0][0])["results"])
        assert ended[1][0] == "", "one rank reports for all"
    else:
        for _, error, code in ended:
            assert code == 2
            assert "WORLD_SIZE: found 3 processes, expected 2: the plan says how many ranks there are" in error


def test_ranks_with_different_plans_are_refused(made):
    started = StartedRank(0, 2, lambda value: [value, "another digest"])
    with pytest.raises(InputError, match="rank 1 found other kernels than rank 0, expected the same"):
        run_folder(made, started=started)


def test_an_edited_folder_is_refused(copied, capsys):
    kernels = copied / "schedule.cu"
    kernels.write_text(kernels.read_text() + "// mine\n")
    assert run(["run", str(copied), "--backend", "fibers"]) in (1, 2)
    error = capsys.readouterr().err
    assert "schedule.cu" in error.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--world", "2"), "--world: found 2, expected none: the plan says how many ranks there are"),
        (("--backend", "gpu"), "found 'gpu', expected one of cpu, fibers, cuda, gloo, nccl"),
    ],
)
def test_what_a_plan_decides_cannot_be_given(made, capsys, arguments, message):
    assert run(["run", str(made), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_more_ranks_than_fit_in_one_process_are_refused(made, monkeypatch, capsys):
    monkeypatch.setattr("treadle.runtime.fusion.folder.MOST_FIBERS", 1)
    assert run(["run", str(made), "--backend", "fibers"]) == 2
    assert "found 2 ranks, expected at most 1 on one machine" in capsys.readouterr().err


def test_targets_of_other_plans_are_refused(made, capsys):
    plan = str(made / "plan.json")
    assert run(["generate", plan, "--target", "msccl-xml", "-o", "nowhere"]) == 2
    assert "a fusion plan has no target msccl-xml" in capsys.readouterr().err


GATHERED = """
from treadle.fusion import *

T, H, F = dims("T", "H", "F")
x = Tensor("x", f16, [T, H], Local)
w = Tensor("w", f16, [H, F], Sliced(1))
whole = AllGather(w)
out = MatMul(x, whole)
program = Execute("gathered", [x, w], [out])
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_a_product_of_a_library_runs_on_our_own_kernel_where_there_is_none(tmp_path, capsys):
    """Plan, check, generate, run; the weight is gathered in slices of its columns."""
    text, plan, folder = (str(tmp_path / name) for name in ("gathered.py", "gathered.plan.json", "made"))
    Path(text).write_text(GATHERED)
    sizes = ("--bind", "T=512,H=64,F=512")
    assert run(["plan", "fusion", text, "--hardware", "mesh4", *sizes, "-o", plan]) == 0
    assert "call of a library; our own kernel takes 6.3" in capsys.readouterr().out
    assert run(["check", "--fresh", plan]) == 0
    assert run(["generate", plan, "--target", "cuda", "-o", folder]) == 0
    message = "out: runs on our own kernel instead of a library's, which is not called here: 6.3 us instead of 5.9 us"
    assert message in capsys.readouterr().err
    facts = json.loads((tmp_path / "made" / "artefact.json").read_text())["facts"]
    decisions = json.loads(Path(plan).read_text())["decisions"]
    own = decisions["stages"][1]["own_ns"] - decisions["stages"][1]["time_ns"]
    assert facts["planned_ns"] == decisions["time_ns"] + own
    assert run(["check", folder]) == 0
    assert run(["run", folder, "--backend", "fibers", "--repeats", "1", "--json"]) == 0
    capsys.readouterr()
    assert run(["run", folder, "--backend", "cpu", "--repeats", "1", "--json"]) == 0
    assert all(row["good"] for row in json.loads(capsys.readouterr().out)["results"])
    assert run(["generate", plan, "--target", "torch", "-o", str(tmp_path / "module")]) == 0
    assert capsys.readouterr().err == ""
    assert "by_library = ('out',)" in (tmp_path / "module" / "gathered.py").read_text()
    facts = json.loads((tmp_path / "module" / "artefact.json").read_text())["facts"]
    assert facts["planned_ns"] == decisions["time_ns"]
