"""`treadle plan swap` from files to files."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from tests.planner.passes.memory.extract.test_problem import perceptron
from tests.planner.passes.swap import cases
from treadle.cli.main import run
from treadle.planner.documents import store
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.plan import Plan
from treadle.planner.passes.swap.check import check
from treadle.planner.resources import locate

QUICK = ("--generations", "5", "--population", "8", "--workers", "1")


@pytest.fixture
def files(tmp_path, monkeypatch) -> Path:
    """`step.json` is a trace, the others swap problems; the working directory is theirs."""
    store.save(perceptron(), tmp_path / "step.json")
    store.save(cases.figure_4_1(), tmp_path / "problem.json")
    store.save(cases.figure_4_1(4), tmp_path / "small.json")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_problem_gives_a_checked_plan_and_its_figures(files, capsys):
    assert run(["plan", "swap", "--problem", "problem.json", *QUICK, "-o", "plan.json"]) == 0
    plan = store.load(files / "plan.json", Plan)
    assert check(plan.decisions) == []
    assert plan.inputs["problem"].file == "problem.json"
    out = capsys.readouterr()
    assert out.err == ""
    lines = dict(line.split(maxsplit=1) for line in out.out.splitlines())
    assert lines["memory"] == "10 B (0.83x of the 12 B without copies)"
    assert lines["least"] == "5 B for any plan with the allocator pool"
    assert lines["time"] == "6 ns, 100.00% of ideal (6 ns)"
    assert lines["wrote"] == "plan.json"
    assert "proved optimal for any order" in out.out


def test_what_takes_no_time_is_as_good_as_ideal(files, capsys):
    store.save(cases.built(1, [], [("o", "", "")], 0), "nothing.json")
    assert run(["plan", "swap", "--problem", "nothing.json", "-o", "p.json"]) == 0
    assert "0 ns, 100.00% of ideal (0 ns)" in capsys.readouterr().out


def test_a_trace_and_a_share_of_memory_give_a_plan_that_names_both_inputs(files, capsys):
    arguments = ["--trace", "step.json", "--hardware", "p3-v100-16gb", "--device-memory", "2x", "--json"]
    assert run(["plan", "swap", *arguments, *QUICK, "-o", "plan.json"]) == 0
    plan = store.load(files / "plan.json", Plan)
    assert set(plan.inputs) == {"trace", "hardware"}
    assert plan.inputs["hardware"].file == "p3-v100-16gb"
    facts = json.loads(capsys.readouterr().out)
    assert facts["device_memory_bytes"] == 2 * facts["footprint_bytes"] == plan.decisions.problem.machine.memory_bytes
    assert facts["optimal"]
    tensors = plan.decisions.problem.tensors
    assert facts["in_bytes"] == sum(tensor.bytes for tensor in tensors if tensor.role == "input")
    assert facts["out_bytes"] == 0
    assert facts["plan"] == "plan.json"


@pytest.mark.parametrize("memory", ["100KiB", "2x"])
def test_a_profile_need_not_tell_a_memory_that_the_command_names(files, capsys, memory):
    profile = store.load(locate("profiles", "p3-v100-16gb"), Hardware)
    devices = tuple(replace(device, memory_bytes=None) for device in profile.devices)
    store.save(replace(profile, devices=devices), files / "box.json")
    arguments = ["plan", "swap", "--trace", "step.json", "--hardware", "box.json", *QUICK, "-o", "plan.json"]
    assert run([*arguments, "--device-memory", memory]) == 0
    assert store.load(files / "plan.json", Plan).decisions.problem.machine.memory_bytes > 0
    capsys.readouterr()
    assert run(arguments) == 2
    assert "give them with --device-memory" in capsys.readouterr().err


def test_reserve_and_host_memory_become_part_of_the_problem(files):
    arguments = ["--problem", "problem.json", "--device-memory", "11", "--reserve", "1", "--host-memory", "100"]
    assert run(["plan", "swap", *arguments, *QUICK, "-o", "plan.json"]) == 0
    problem = store.load(files / "plan.json", Plan).decisions.problem
    assert (problem.machine.memory_bytes, problem.reserve_bytes, problem.machine.host_bytes) == (11, 1, 100)


def test_too_little_memory_is_exit_3_with_the_least(files, capsys):
    small = ["plan", "swap", "--problem", "small.json", *QUICK, "-o", "plan.json"]
    assert run([*small, "--allocator", "pool"]) == 3
    assert "expected at least 5 B" in capsys.readouterr().err
    assert not (files / "plan.json").exists()
    assert run([*small, "--device-memory", "3"]) == 3
    assert "expected at least 4 B" in capsys.readouterr().err, "of the allocator that needs least"


def test_auto_takes_the_allocator_whose_plan_is_faster(files):
    """A pool cannot run the problem in 4 bytes, an arena can; in 10 bytes the pool is at the bound."""
    for problem, allocator in (("small.json", "offset"), ("problem.json", "pool")):
        assert run(["plan", "swap", "--problem", problem, *QUICK, "-o", "plan.json"]) == 0
        plan = store.load(files / "plan.json", Plan)
        assert (plan.decisions.allocator, plan.provenance.options["allocators"]) == (allocator, ["pool", "offset"])


def test_the_same_seed_gives_the_same_bytes(files):
    for name in ("one.json", "two.json"):
        assert run(["plan", "swap", "--problem", "problem.json", "--as-published", *QUICK, "-o", name]) == 0
    assert (files / "one.json").read_bytes() == (files / "two.json").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give either --trace or --problem"),
        (("--trace", "step.json", "--problem", "problem.json"), "give either --trace or --problem"),
        (("--trace", "step.json"), "--trace needs --hardware"),
        (("--problem", "problem.json", "--hardware", "dgx1"), "goes without --hardware"),
        (("--problem", "problem.json", "--with-recompute"), "--with-recompute needs --trace"),
        (("--problem", "problem.json", "--device-memory", "0.5"), "--device-memory: found '0.5'"),
        (("--problem", "problem.json", "--executor", "here"), "expected dask://HOST:PORT or dask://local"),
        (("--problem", "step.json"), "found 'trace' (text), expected 'swap-problem'"),
    ],
)
def test_bad_usage_is_exit_2_in_one_line(files, capsys, arguments, message):
    assert run(["plan", "swap", *arguments, *QUICK, "-o", "plan.json"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_without_dask_the_exit_code_is_5(files, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    arguments = ["--problem", "problem.json", "--device-memory", "6", "--executor", "dask://local"]
    assert run(["plan", "swap", *arguments, *QUICK, "-o", "plan.json"]) == 5
    assert "pip install 'treadle[dask]'" in capsys.readouterr().err


@pytest.fixture
def slow(tmp_path) -> list[str]:
    """A search that goes on for minutes, in other processes."""
    store.save(cases.rnn(8, 40, 40), tmp_path / "long.json")
    command = [sys.executable, "-m", "treadle", "plan", "swap", "--problem", str(tmp_path / "long.json")]
    return [*command, "--generations", "1000000", "--patience", "1000000", "--workers", "2", "-o",
            str(tmp_path / "plan.json")]  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_signals_write_the_best_plan_so_far_and_a_terminal_sees_progress(slow, tmp_path, number):
    master, terminal = pty.openpty()
    process = subprocess.Popen(
        slow,
        stdout=subprocess.PIPE,
        stderr=terminal,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    os.close(terminal)
    heard = b""
    deadline = time.monotonic() + 100
    while b"generation 1" not in heard and time.monotonic() < deadline:
        heard += os.read(master, 4096)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    os.close(master)
    assert process.returncode == 0, output
    plan = store.load(tmp_path / "plan.json", Plan)
    assert plan.provenance.interrupted
    assert check(plan.decisions) == []
    assert children
    assert not psutil.wait_procs(children, timeout=30)[1]


def test_a_killed_search_leaves_its_best_plan_and_no_processes(slow, tmp_path):
    process = subprocess.Popen(slow, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 100
    children: list[psutil.Process] = []
    while not ((tmp_path / "plan.json").exists() and children) and time.monotonic() < deadline:
        time.sleep(0.1)
        children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    plan = store.load(tmp_path / "plan.json", Plan)
    assert plan.provenance.interrupted
    assert check(plan.decisions) == []
    assert children
    assert not psutil.wait_procs(children, timeout=30)[1]
