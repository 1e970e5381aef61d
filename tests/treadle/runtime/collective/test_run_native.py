"""generate --target cuda, check, and run with compiled kernels from the command line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from tests.codegen.collective.mutations import with_step
from tests.planner.plans import collective_plan
from treadle.cli.main import run
from treadle.codegen.collective.msccl import xml as msccl_xml
from treadle.codegen.emit import text_digest
from treadle.planner import resources
from treadle.planner.documents import store
from treadle.planner.documents.artefact import Artefact
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.sketch import Sketch
from treadle.runtime.collective import run_native
from treadle.runtime.collective.messages import programs_in
from treadle.runtime.collective.native import OPERATIONS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """CUDA artefacts of an allgather."""
    home = tmp_path_factory.mktemp("native")
    plan = collective_plan(
        "allgather",
        store.load(resources.locate("profiles", "ring4"), Hardware),
        store.load(resources.locate("sketches", "ring"), Sketch),
        size_bytes=65536,
    )
    store.save(plan, home / "allgather.plan.json")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(home / "cache"))
        out = home / "out"
        assert run(["generate", str(home / "allgather.plan.json"), "--target", "cuda", "-o", str(out)]) == 0
        yield out


def test_a_plan_priced_for_symmetric_memory_runs_over_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, out = str(tmp_path / "p.json"), str(tmp_path / "out")
    planned = ["plan", "collective", "allreduce", "--hardware", "ndv5", "--size", "1KiB", "-o", plan]
    assert run([*planned, "--method", "all-pairs"]) == 0
    assert "one-shot over symmetric memory" in capsys.readouterr().out
    assert run(["generate", plan, "--target", "msccl-xml", "-o", out]) == 0
    capsys.readouterr()
    monkeypatch.setattr(run_native, "MAX_SPECIALISED_STEPS", 0)
    command = ["run", out, "--backend", "fibers", "--sizes", "0,33", "--dtypes", "bfloat16", "--repeats", "2", "--json"]
    assert run(command) == 0
    rows = json.loads(capsys.readouterr().out)["results"]
    own = [row for row in rows if row["program"] == "allreduce, one-shot over symmetric memory"]
    assert [(row["op"], row["elements"]) for row in own] == [(op, n) for op in OPERATIONS for n in (0, 33)]
    assert all(row["good"] for row in rows)


def test_what_a_switch_does_is_generated_checked_and_run_over_symmetric_memory_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, out = str(tmp_path / "p.json"), str(tmp_path / "out")
    planned = ["plan", "collective", "reducescatter", "--hardware", "ndv5", "--size", "64KiB", "-o", plan]
    assert run([*planned, "--method", "nvls"]) == 0
    assert run(["generate", plan, "--target", "cuda", "-o", out]) == 0
    assert run(["check", out]) == 0
    capsys.readouterr()
    command = ["run", out, "--backend", "fibers", "--sizes", "0,33", "--dtypes", "bfloat16", "--repeats", "2", "--json"]
    assert run(command) == 0
    rows = json.loads(capsys.readouterr().out)["results"]
    assert {row["program"] for row in rows} == {"reducescatter in the switch, one-shot over symmetric memory"}
    assert [(row["op"], row["elements"]) for row in rows] == [(op, n) for op in OPERATIONS for n in (0, 33)]
    assert all(row["good"] for row in rows)
    assert run(["run", out]) == 2
    assert "in this plan a switch adds up or multicasts" in capsys.readouterr().err


@pytest.mark.slow
def test_generated_folders_are_accepted_and_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", str(folder)]) == 0
    assert "cuda artefacts" in capsys.readouterr().out
    command = ["run", str(folder), "--backend", "fibers", "--sizes", "0,1,33", "--dtypes", "float16,int32"]
    assert run([*command, "--repeats", "2", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["results"]
    kernels = {f"allgather{tag}.xml, {kernel}" for tag in ("", "_inplace") for kernel in ("specialised", "interpreter")}
    assert {row["program"] for row in rows} == kernels
    assert len(rows) == 4 * 2 * 3
    assert all(row["good"] and row["max_error"] == 0 for row in rows)
    assert run([*command, "--repeats", "1"]) == 0
    printed = capsys.readouterr().out
    assert "4 ranks as fibers of one process, 1 random order each; all results are right" in printed
    assert "0 to 33" in printed


def test_the_cpu_backend_finds_the_programs_of_such_a_folder(folder: Path) -> None:
    assert sorted(programs_in(folder)) == ["allgather.xml", "allgather_inplace.xml"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_cuda_backend_says_what_to_do(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", str(folder), "--backend", "cuda"]) == 5
    error = capsys.readouterr().err
    assert "install" in error
    assert "found no" in error


def test_wrong_options_and_files_are_refused(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    xml = folder / "allgather.xml"
    program = msccl_xml.parse(xml.read_text(), "allgather.xml")
    place, step = next((place, step) for place, _, step in program.steps() if step.writes)
    wrong = tmp_path / "wrong.xml"
    wrong.write_text(msccl_xml.emit(with_step(program, *place, dst=(step.dst[0], (step.dst[1] + 1) % 4))))
    for status, arguments, said in (
        (2, [str(folder), "--world", "4"], "--world: found 4, expected none"),
        (2, [str(folder), "--sizes", "x"], "--sizes"),
        (2, [str(folder), "--dtypes", "int8"], "--dtypes: found 'int8'"),
        (1, [str(wrong)], "wrong.xml: not run, its check failed"),
    ):
        assert run(["run", *arguments, "--backend", "fibers"]) == status
        assert said in capsys.readouterr().err


def test_a_changed_kernel_is_not_run(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    kernel = copy / "allgather.cu"
    kernel.write_text(kernel.read_text().replace("{INPUT, 0}", "{INPUT, 1}"))
    assert run(["run", str(copy), "--backend", "fibers"]) == 2
    assert "found a text other than the one that was generated" in capsys.readouterr().err
    manifest = store.load(copy / "artefact.json", Artefact)
    files = {**manifest.files, "allgather.cu": text_digest(kernel.read_text())}
    store.save(replace(manifest, files=files), copy / "artefact.json")
    assert run(["run", str(copy), "--backend", "fibers"]) == 2, "whoever changes a text changes its digest"
    assert "allgather.cu: found other kernels than this version of treadle makes" in capsys.readouterr().err
