"""`treadle plan memory` from files to files."""

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

from tests.planner.passes.memory import cases
from tests.planner.passes.memory.extract.test_problem import perceptron
from treadle.cli.main import run
from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.trace import Costs
from treadle.planner.passes.memory.check import check
from treadle.planner.passes.memory.problem import Backward, Forward


@pytest.fixture
def files(tmp_path, monkeypatch) -> Path:
    """`step.json` is a trace, `problem.json` the chain of four at 6 bytes; the working directory is theirs."""
    store.save(perceptron(), tmp_path / "step.json")
    store.save(cases.a(6), tmp_path / "problem.json")
    store.save(cases.a(0), tmp_path / "nothing.json")
    text = json.loads((tmp_path / "problem.json").read_text())
    text["fwd"][0]["impls"] = [{"family": "cnov"}]
    (tmp_path / "family.json").write_text(json.dumps(text))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_trace_and_a_share_give_a_checked_plan(files, capsys):
    assert run(["plan", "memory", "--trace", "step.json", "--budget", "1.0x", "-o", "plan.json"]) == 0
    plan = store.load(files / "plan.json", Plan)
    assert check(plan.decisions) == []
    assert plan.inputs["trace"].file == "step.json"
    out = capsys.readouterr()
    assert out.err == ""
    assert out.out.splitlines() == [
        "budget       290 B (1.00x of plain PyTorch's 290 B, 1.00x of store-all's 290 B)",
        "peak         290 B (1.00x of plain PyTorch, 1.00x of store-all)",
        "time         38 ns, 1.000x of plain PyTorch, +0.00% against store-all",
        "lower bound  38 ns, proved optimal for any order of recomputation",
        "recomputed   0 of 3 forward ops, 0 extra runs",
        "found by     heuristic",
        "wrote plan.json",
    ]


def test_a_reserve_shows(files, capsys):
    command = ["plan", "memory", "--trace", "step.json", "--budget", "300B", "-o", "plan.json"]
    assert run([*command, "--reserve", "10B"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[:3] == [
        "budget       300 B (1.00x of plain PyTorch's 300 B, 1.00x of store-all's 300 B)",
        "reserve      10 B, counted in budget and peaks",
        "peak         300 B (1.00x of plain PyTorch, 1.00x of store-all)",
    ]
    assert run([*command, "--reserve", "a lot"]) == 2
    assert "--reserve: found 'a lot'" in capsys.readouterr().err


def test_a_problem_file_and_json(files, capsys):
    assert run(["plan", "memory", "--problem", "problem.json", "--gap", "0", "-o", "plan.json", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["time_ns"] == 15
    assert facts["recomputations"] == 3
    assert facts["recomputed_ops"] == 2
    assert facts["optimal"] is True
    assert facts["plan"] == "plan.json"
    plan = store.load(files / "plan.json", Plan)
    assert plan.inputs["problem"].digest == store.digest(cases.a(6))


def test_leaving_costs_more_here(files, capsys):
    command = ["plan", "memory", "--problem", "problem.json", "--gap", "0", "-o", "plan.json", "--json"]
    assert run([*command, "--as-published"]) == 0
    assert json.loads(capsys.readouterr().out)["time_ns"] == 16


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--problem", "problem.json", "--budget", "5"], 3, "is below the least feasible 6 B"),
        (["--problem", "problem.json", "--budget", "0"], 2, "--budget: found '0', expected more than nothing"),
        (["--problem", "problem.json", "--budget=-3MiB"], 2, "--budget: found '-3MiB', which is negative"),
        (["--problem", "problem.json", "--budget", "lots"], 2, "--budget: found 'lots', expected a size"),
        (["--problem", "nothing.json"], 2, "nothing.json: $.budget_bytes: found 0, expected bytes, or a budget by"),
        (["--problem", "family.json"], 2, "family.json: $.fwd[0].impls[0].family: found 'cnov', expected families of"),
        (["--problem", "step.json"], 2, "step.json: $.kind: found 'trace'"),
        (["--trace", "problem.json", "--budget", "1x"], 2, "problem.json: $.kind: found 'memory-problem'"),
        (["--trace", "missing.json", "--budget", "1x"], 2, "missing.json: cannot read"),
        (["--trace", "step.json"], 2, "--trace needs --budget"),
        (["--budget", "1x"], 2, "give either --trace or --problem"),
        (
            ["--trace", "step.json", "--problem", "problem.json", "--budget", "1x"],
            2,
            "give either --trace or --problem",
        ),
        (["--problem", "problem.json", "--gap", "2"], 2, "--gap"),
        (["--problem", "problem.json", "--time-limit", "0"], 2, "--time-limit"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(files, capsys, arguments, code, message):
    assert run(["plan", "memory", *arguments, "-o", "plan.json"]) == code
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert not (files / "plan.json").exists()


def test_a_trace_without_times_says_how_to_get_them(files, capsys):
    bare = replace(
        perceptron(),
        costs=Costs(model="absent"),
        ops=tuple(replace(op, time_ns=None) for op in perceptron().ops),
    )
    store.save(bare, files / "bare.json")
    assert run(["plan", "memory", "--trace", "bare.json", "--budget", "1x", "-o", "plan.json"]) == 2
    assert "`treadle trace capture --hardware NAME` or `--measure`" in capsys.readouterr().err


def test_hardware_changes_nothing_where_the_trace_has_times(files, capsys):
    command = ["plan", "memory", "--trace", "step.json", "--budget", "1x", "--hardware", "ndv4", "-o", "plan.json"]
    assert run(command) == 0
    assert "the trace already has recorded times" in capsys.readouterr().err


@pytest.fixture
def slow(tmp_path) -> list[str]:
    """A command that searches for long after it has found a heuristic plan."""
    count = 100
    sizes = [1 + 7 * i % 11 for i in range(count)]
    fwd = cases.chain(*sizes, times=tuple(1 + 5 * i % 7 for i in range(count)))
    bwd = [
        cases.backward(sizes[k - 1] if k else 0, sizes[k], ((k - 1,) if k % 3 else (k,), 0, 2))
        for k in reversed(range(count))
    ]
    store.save(cases.problem(120, fwd, bwd), tmp_path / "long.json")
    command = [
        sys.executable,
        "-m",
        "treadle",
        "plan",
        "memory",
        "--problem",
        str(tmp_path / "long.json"),
        "--gap",
        "0",
    ]
    return [*command, "-o", str(tmp_path / "plan.json")]


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_signals_write_the_best_plan_so_far_and_a_terminal_sees_progress(slow, tmp_path, number):
    master, terminal = pty.openpty()
    process = subprocess.Popen(slow, stdout=subprocess.PIPE, stderr=terminal, start_new_session=True)
    os.close(terminal)
    heard = b""
    deadline = time.monotonic() + 60
    while b"best " not in heard and time.monotonic() < deadline:
        heard += os.read(master, 4096)
    children: list[psutil.Process] = []
    while not children and time.monotonic() < deadline:
        time.sleep(0.1)
        children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    while b"interrupted: " not in heard and time.monotonic() < deadline:
        heard += os.read(master, 4096)
    os.close(master)
    assert b"bound" in heard
    assert b"interrupted: this is the best plan found so far" in heard
    assert children
    assert not psutil.wait_procs(children, timeout=30)[1]
    assert process.returncode == 0, output
    plan = store.load(tmp_path / "plan.json", Plan)
    assert plan.provenance.interrupted
    assert not plan.certificate.optimal
    assert check(plan.decisions) == []


def test_a_killed_search_leaves_its_best_plan_and_no_processes(slow, tmp_path):
    process = subprocess.Popen(slow, stdout=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 60
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


def test_a_time_limit_is_recorded_and_a_pipe_sees_no_progress(slow, tmp_path):
    done = subprocess.run([*slow, "--time-limit", "1"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert done.stderr == "the time limit of 1 s ended the search: this is the best plan found so far\n"
    plan = store.load(tmp_path / "plan.json", Plan)
    assert plan.provenance.limit_fired
    assert plan.certificate.gap > 0


def test_help_loads_neither_torch_nor_a_solver():
    code = (
        "import sys; from treadle.cli.main import run; run(['plan', 'memory', '--help']);"
        "print(sorted({m.split('.')[0] for m in sys.modules} & {'torch', 'ortools', 'numpy', 'scipy'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_variants_leave_families_out(tmp_path, capsys):
    store.save(cases.d(16), tmp_path / "problem.json")
    command = ["plan", "memory", "--problem", str(tmp_path / "problem.json"), "-o", str(tmp_path / "plan.json")]
    assert run([*command, "--without", "inplace", "--no-recompute"]) == 0
    decisions = store.load(tmp_path / "plan.json", Plan).decisions
    assert decisions.families == ("conv", "out", "int", "grad-inplace", "rng", "statistics")
    assert not decisions.recompute
    assert all(node.inplace_of is None and not node.recomputable for node in decisions.problem.fwd)
    assert run([*command, "--budget", "12B", "--no-recompute"]) == 3
    assert "least feasible" in capsys.readouterr().err


def test_the_summary_names_families_and_what_the_bound_speaks_of(tmp_path, capsys):
    relu = cases.forward(4, (0,), (0, 2), inplace_of=0)
    made = cases.forward(4, (), (0, 3))
    by_mask = Backward(name="mask", family="int", needs=(2,), time_ns=1)
    mask = cases.forward(1, (1,), (0, 0), kind="intermediate", creator=1)
    last = cases.backward(4, 4, ((1,), 0, 9))
    problem = cases.problem(
        12,
        [replace(made, op="aten.convolution.default"), replace(relu, op="aten.relu.default"), mask],
        [replace(last, op="aten.threshold_backward.default", impls=(*last.impls, by_mask))],
    )
    store.save(problem, tmp_path / "problem.json")
    command = ["plan", "memory", "--problem", str(tmp_path / "problem.json"), "-o", str(tmp_path / "plan.json")]
    assert run(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "uses         inplace: 1 relu" in lines
    assert "             int: 1 threshold_backward by mask" in lines
    assert run([*command, "--no-recompute", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["bound_holds_for"] == "plans without recomputation"
    assert {"family": "int", "op": "threshold_backward", "implementation": "mask", "ops": 1} in facts["uses"]


def test_a_program_too_large_is_said_so_before_the_search(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("treadle.planner.passes.memory.search.rounds.FULL", 10)
    store.save(cases.a(6), tmp_path / "problem.json")
    command = ["plan", "memory", "--problem", str(tmp_path / "problem.json"), "-o", str(tmp_path / "plan.json")]
    assert run([*command, "--method", "full"]) == 0
    assert "the 0-1 program of 4 forward and 4 backward nodes may find nothing" in capsys.readouterr().err


def test_a_folder_is_no_plan_file(files, capsys):
    (files / "folder").mkdir()
    assert run(["plan", "memory", "--problem", "problem.json", "-o", "folder"]) == 2
    assert "folder: found a folder, expected a file to write" in capsys.readouterr().err


def test_a_plan_is_compared_with_its_problem_file(files, capsys):
    assert run(["plan", "memory", "--problem", "problem.json", "--budget", "8B", "-o", "plan.json"]) == 0
    assert run(["check", "--fresh", "plan.json"]) == 0
    assert "inputs problem checked" in capsys.readouterr().out
    store.save(replace(cases.a(6), base={"parameters": 1}), files / "other.json")
    assert run(["check", "--problem", "other.json", "plan.json"]) == 1
    assert "stale: problem other.json" in capsys.readouterr().out
    plan = store.load("plan.json", Plan)
    changed = replace(plan.decisions.problem, base={"parameters": 0})
    store.save(replace(plan, decisions=replace(plan.decisions, problem=changed)), files / "edited.json")
    assert run(["check", "--fresh", "edited.json"]) == 1
    assert "$.decisions.problem.base: not that of the problem file" in capsys.readouterr().out


def test_shares_are_of_plain_pytorch_where_its_calls_need_less_than_store_all(tmp_path, capsys):
    slow, fast = Forward(time_ns=2), Forward(name="fast", time_ns=1, workspace_bytes=20)
    problem = cases.a(60)
    fwd = tuple(replace(node, impls=(slow, fast)) for node in problem.fwd)
    bwd = tuple(replace(node, impls=(replace(node.impls[0], name="default"),)) for node in problem.bwd)
    store.save(replace(problem, fwd=fwd, bwd=bwd), tmp_path / "conv.json")
    command = ["plan", "memory", "--problem", str(tmp_path / "conv.json"), "-o", str(tmp_path / "plan.json")]
    assert run(command) == 0
    assert "60 B (6.00x of plain PyTorch's 10 B, 2.14x of store-all's 28 B)" in capsys.readouterr().out
    assert run([*command, "--budget", "1.5x", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["budget_bytes"], facts["plain_peak_bytes"], facts["store_all_peak_bytes"]) == (15, 10, 28)
    assert facts["peak_of_plain"] == facts["peak_bytes"] / 10
    assert facts["time_of_plain"] == facts["time_ns"] / facts["plain_ns"]
