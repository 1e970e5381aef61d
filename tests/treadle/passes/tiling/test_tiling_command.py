"""`treadle plan tiling`: programs, traces and problems on meshes, and one line for what does not fit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.conftest import GOLDEN
from treadle.cli.main import run
from treadle.passes.tiling.meshes import meshes_of
from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import InputError
from treadle.planner.passes import require_pass
from treadle.planner.passes.tiling.decisions import TilingDecisions

PROGRAM = str(Path(__file__).with_name("program_of_products.py"))


@pytest.fixture
def files(here: Path) -> Path:
    shutil.copy(GOLDEN / "inputs" / "step.json", here)
    return here


def planned(*arguments: str) -> TilingDecisions:
    assert run(["plan", "tiling", *arguments, "-o", "plan.json"]) == 0
    return require_pass(store.load("plan.json", Plan), TilingDecisions, "plan.json").decisions


def test_a_program_is_cut_as_published_or_exactly(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exact = planned(PROGRAM, "--mesh", "4")
    assert "proved optimal" in capsys.readouterr().out
    greedy = planned(f"{PROGRAM}:program", "--mesh", "4", "--as-published")
    assert (exact.problem.model, greedy.problem.model) == ("exact", "seed")
    assert (exact.method, greedy.method) == ("exact", "greedy")
    assert greedy.steps
    assert run(["check", "plan.json"]) == 0


@pytest.mark.slow
def test_a_trace_is_cut_over_hardware_as_fixed(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    step = store.load("step.json", Trace)
    name = next(tensor.name for tensor in step.tensors if tensor.role == "parameter" and len(tensor.shape or ()) == 2)
    decisions = planned("--trace", "step.json", "--mesh", "2x2", "--hardware", "cpu-2x2", "--fix", f"{name}=R,R")
    fixed = [array for array in decisions.problem.arrays if array.fixed is not None]
    assert [array.fixed for array in fixed] == [("R", "R")]
    assert decisions.problem.model == "time"
    assert all(axis.costs for axis in decisions.problem.mesh)
    assert "arrays given and returned" in capsys.readouterr().out


def test_other_meshes_and_memory_are_answered(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["plan", "tiling", PROGRAM, "--mesh", "4", "-o", "plan.json", "--json"]
    assert run([*line, "--what-if", "mesh=2,4,8"]) == 0
    assert [each["mesh"] for each in json.loads(capsys.readouterr().out)["what_if"]] == ["2", "4", "8"]
    assert run([*line, "--what-if", "memory=16..64K"]) == 0
    shown = capsys.readouterr()
    assert "no plan with memory=16 B: " in shown.err
    assert json.loads(shown.out)["what_if"][-1]["memory"] == "64 KiB"


def test_a_range_of_meshes_has_all_of_as_many_workers() -> None:
    assert meshes_of("1x8..8x1", "--what-if") == ((1, 8), (2, 4), (4, 2), (8, 1))
    assert meshes_of("2x4,8", "--what-if") == ((2, 4), (8,))
    with pytest.raises(InputError, match="two meshes of as many axes and workers"):
        meshes_of("1x8..4x4", "--what-if")


@pytest.mark.parametrize(
    ("line", "code", "text"),
    [
        ("small_program.py", 2, "give --mesh"),
        ("small_program.py --trace step.json --mesh 2", 2, "one of them only"),
        ("small_program.py --mesh 2y4", 2, "found '2y4', expected workers along 1 to 4 axes such as 2x4"),
        ("small_program.py --mesh 0", 2, "found '0', expected workers"),
        ("small_program.py:absent --mesh 2", 2, "it has program, other"),
        ("absent.py --mesh 2", 2, "absent.py: does not exist"),
        ("small_program.py --mesh 2 --strict", 2, "--strict belongs to --trace"),
        ("small_program.py --mesh 2 --nodes 2", 2, "--nodes belongs to --hardware"),
        ("small_program.py --mesh 2 --fix ones9=S0", 2, "found no array 'ones9'"),
        ("small_program.py --mesh 2 --fix ones1", 2, "expected ARRAY=S0,R"),
        ("small_program.py --mesh 2 --fix ones1=S5", 2, "found S5 of an array of 2 axes"),
        ("small_program.py --mesh 2 --fix ones1=S0 --fix ones1=S1", 2, "expected one tiling"),
        ("small_program.py --mesh 2 --memory-per-worker 8", 3, "the least that suffices is"),
        (
            f"small_program.py --mesh 2 --memory-per-worker {2**62 + 1}",
            2,
            "--memory-per-worker: found 46116860184273879",
        ),
        (f"small_program.py --mesh 2 --dup-budget {2**62 + 1}", 2, "--dup-budget: found 46116860184273879"),
        ("small_program.py --mesh 2 --what-if size=3", 2, "found 'size', expected mesh=1x8..8x1"),
        ("small_program.py:other --mesh 2 --fix ones1=S0 --fix swapaxis1=S0", 3, "ones1"),
        ("--trace step.json --mesh 97", 2, "found an axis of 97 workers, expected one that divides"),
        ("--trace step.json --mesh 2 --model time", 2, "expected --hardware"),
        ("--trace step.json --mesh 3 --hardware cpu-2x2", 2, "a divisor or a multiple of 2"),
        ("--trace step.json --mesh 8 --hardware cpu-2x2", 2, "expected at most 4"),
        ("--trace step.json --mesh 2 --as-published", 2, "goes without --trace"),
        ("--problem step.json --mesh 2", 2, "expected 'tiling-problem'"),
    ],
)
def test_what_does_not_fit_is_one_line(
    files: Path, capsys: pytest.CaptureFixture[str], line: str, code: int, text: str
) -> None:
    words = line.replace("small_program.py", PROGRAM).split()
    assert run(["plan", "tiling", *words, "-o", "plan.json"]) == code
    assert text in capsys.readouterr().err
    assert not Path("plan.json").exists()


@pytest.mark.slow
def test_an_operator_without_a_rule_is_named_and_refused_where_asked(
    files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from treadle.passes.tiling import extract

    rules = extract.rules_of
    monkeypatch.setattr(
        extract, "rules_of", lambda op, *rest: () if op.target == "aten.relu.default" else rules(op, *rest)
    )
    line = ["plan", "tiling", "--trace", "step.json", "--mesh", "2", "-o", "plan.json"]
    assert run([*line, "--strict"]) == 2
    assert "--strict: found no rule of aten.relu.default (" in capsys.readouterr().err
    assert run(line) == 0
    assert "replicated, since there is no rule of it: aten.relu.default (" in capsys.readouterr().err
