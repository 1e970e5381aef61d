"""`treadle run` of a hook: two ranks exchange by it, exactly with the identity, and alike with a compressor."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.codegen.compression.compression_plans import plan_with, small_problem
from tests.treadle.cli.test_json_output import KEYS
from treadle.cli.main import run
from treadle.codegen import emit
from treadle.codegen.targets import generate
from treadle.passes.compression.run import slower
from treadle.passes.compression.words import kept
from treadle.planner.passes.compression.decided import decided
from treadle.planner.passes.compression.decisions import GradientGroup
from treadle.planner.passes.compression.problem import Gradient

FLAT = (
    "compress@device",
    "alltoall@flat",
    "decompress@device",
    "compress@device",
    "allgather@flat",
    "decompress@device",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    problem = replace(
        small_problem(),
        devices=1,
        gradients=tuple(Gradient(name=f"layer.{at}", elements=1000 + 4 * at, backward_ns=1000) for at in range(3)),
    )
    groups = (
        GradientGroup(first=0, last=1, compressor="dgc:0.01", steps=FLAT),
        GradientGroup(first=2, last=2, steps=("reduce-scatter@flat", "allgather@flat")),
    )
    emit.write(generate(plan_with(decided(problem, groups)), "plan.json"), tmp_path)
    return tmp_path


def test_two_ranks_run_the_hook_and_compare_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", str(folder), "--backend", "gloo", "--steps", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.pop("schema") == "treadle.run-compression/1"
    assert found.keys() == KEYS["run-compression"][0]
    assert (found["world"], found["identity_equal"], found["ranks_equal"], found["findings"]) == (2, True, True, [])
    assert 0 < found["relative_error"] < 1.5
    assert found["sent_bytes"]["measured"] == found["sent_bytes"]["planned"]
    assert min(found["iteration_ns"].values()) > 0


def test_a_planned_exchange_that_is_slower_is_said_to_be() -> None:
    assert slower(2_000_000, 2_000_000) == ()
    (line,) = slower(3_000_000, 2_000_000)
    assert "the planned exchange takes 3 ms, 1.50x of the 2 ms of DistributedDataParallel" in line


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ((None, None), ""),
        (("fp16", None), ""),
        (("int8", None), ", which error feedback adds to the next"),
        (("int8", "fp16"), ", which error feedback adds to the next, except for fp16"),
    ],
)
def test_what_is_kept_is_said_of_compressors_that_keep_it(names: tuple[str | None, ...], words: str) -> None:
    decisions = decided(small_problem(), (GradientGroup(first=0, last=2, steps=("allreduce@flat",)),))
    groups = tuple(GradientGroup(first=at, last=at, compressor=name, steps=()) for at, name in enumerate(names))
    assert kept(replace(decisions, groups=groups)) == words


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--backend", "cuda"), "--backend: found cuda, expected gloo; on GPUs attach the plan in a training script"),
        (("--world", "3"), "--world: found 3, expected 2: the plan has that many ranks"),
    ],
)
def test_other_back_ends_and_numbers_are_refused(
    folder: Path, options: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["run", str(folder), *options]) == 2
    assert message in capsys.readouterr().err


def test_a_changed_hook_is_not_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hook = folder / "hook.py"
    hook.write_text(hook.read_text() + "\nprint('changed')\n")
    assert run(["run", str(folder)]) == 2
    assert "found a text other than the one that was generated" in capsys.readouterr().err
