"""The text of CUDA artefacts: one golden specialised kernel, and what nvcc says about all of them."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.codegen.collective.algorithms import line_alltoall, ring_allreduce
from treadle.codegen.collective.cuda import kernels
from treadle.codegen.collective.cuda.tables import tables
from treadle.codegen.collective.lower import lower
from treadle.planner.errors import CheckFailed, MissingBackendError
from treadle.runtime import native_build

NVCC = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")


def test_golden_kernel(golden: Callable[[str, str], None]) -> None:
    program = lower(ring_allreduce(3))
    files = kernels.artefacts({"allreduce": program})
    for name in ("allreduce.cu", "allreduce_program.h", "Makefile"):
        golden(f"cuda/allreduce_ring3.{name}", files[name])


def test_a_folder_holds_all_that_its_files_include() -> None:
    files = kernels.artefacts({"alltoall": lower(line_alltoall())})
    for name, text in files.items():
        for included in re.findall(r'#include "([^"]+)"', text):
            assert included in files, f"{name} includes {included}"
    assert {"alltoall.cu", "alltoall.xml", "alltoall_program.h", "treadle_interpreter.cu", "Makefile"} <= set(files)


def test_names_of_files_of_others_become_identifiers() -> None:
    program = replace(lower(ring_allreduce(2)), name="2 rings\\\n/*über*/")
    files = kernels.artefacts({"a": program})
    assert "namespace treadle::_2_rings_____ber__ {" in files["a_program.h"]
    assert files["a.cu"].startswith("// _2_rings_____ber__: allreduce of 2 ranks")


def test_the_makefile_builds_a_host_library_without_warnings(tmp_path: Path) -> None:
    for name, text in kernels.artefacts({"alltoall": lower(line_alltoall())}).items():
        (tmp_path / name).write_text(text)
    warnings = ["CXXFLAGS=-O1 -Wall -Wextra -Werror"]
    done = subprocess.run(
        ["make", *warnings, "interpreter.fibers.so"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "interpreter.fibers.so").is_file()


def require_no_spills(
    folder: Path, texts: dict[str, str], main: str, flags: list[str], numbers: tuple[int, ...] = (80, 90)
) -> None:
    """Compile device code for sm_80 and sm_90, or other `numbers`."""
    for name, text in texts.items():
        (folder / name).write_text(text)
    archs = [f"-gencode=arch=compute_{number},code=sm_{number}" for number in numbers]
    command = ["nvcc", "-std=c++17", "-O3", *archs, "-fatbin", "-Xptxas=-v", *flags, main]
    done = subprocess.run([*command, "-o", "out"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr, done.stderr
    registers = [int(number) for number in re.findall(r"Used (\d+) registers", done.stderr)]
    spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", done.stderr)
    assert len(registers) >= 2
    assert max(registers) <= 128  # of 65,536 for 512 threads
    assert set(spills) == {("0", "0")}


@NVCC
@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["Simple", "LL", "LL128"])
def test_the_interpreter_compiles_for_gpus_without_spills(protocol: str, tmp_path: Path) -> None:
    flags = kernels.definitions("interpreter", protocol, protocol == "LL")
    require_no_spills(tmp_path, kernels.headers(), kernels.INTERPRETER, flags)


@NVCC
def test_a_specialised_kernel_compiles_for_gpus_without_spills(tmp_path: Path) -> None:
    program = lower(line_alltoall())
    texts = {**kernels.headers(), "program.cu": kernels.specialised(program, tables(program))}
    flags = kernels.definitions("specialised", program.protocol, False)
    require_no_spills(tmp_path, texts, "program.cu", flags)


@NVCC
@pytest.mark.slow
def test_kernels_over_symmetric_memory_compile_for_gpus_with_and_without_a_switch(tmp_path: Path) -> None:
    texts = kernels.symmetric()
    require_no_spills(tmp_path, texts, kernels.SYMMETRIC, ["-keep"], (80, 90, 100))
    for number, switched in ((80, False), (90, True)):
        text = (tmp_path / kernels.SYMMETRIC).with_suffix(f".compute_{number}.ptx").read_text()
        assert ("multimem.ld_reduce.relaxed.sys.global.add.v4.f32" in text) == switched
        assert ("multimem.st.relaxed.sys.global.v4.f32" in text) == switched


# Compiling and keeping.


def test_a_text_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    texts = {"a.cu": '#include "a.h"\nextern "C" int answer() { return ANSWER; }\n', "a.h": "#define ANSWER 42\n"}
    first = native_build.compile_library(texts, "a.cu", "fibers")
    assert first.parent == tmp_path / "treadle" / "native" == native_build.cache_folder("native")
    stamp = first.stat().st_mtime_ns
    assert native_build.compile_library(dict(texts), "a.cu", "fibers") == first
    assert first.stat().st_mtime_ns == stamp
    assert native_build.compile_library({**texts, "a.h": "#define ANSWER 43\n"}, "a.cu", "fibers") != first
    assert native_build.compile_library(texts, "a.cu", "fibers", ["-DX"]) != first
    assert len(list(first.parent.iterdir())) == 3


@pytest.mark.parametrize("keep", [0, 100, -1])
def test_a_damaged_library_is_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: int) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    texts = {"a.cu": 'extern "C" __attribute__((visibility("default"))) int answer() { return 42; }'}
    library = native_build.compile_library(texts, "a.cu", "fibers")
    library.write_bytes(library.read_bytes()[:keep])
    assert native_build.compile_library(texts, "a.cu", "fibers") == library
    assert ctypes.CDLL(str(library)).answer() == 42


def test_without_a_cache_libraries_last_for_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    texts = {"a.cu": 'extern "C" __attribute__((visibility("default"))) int answer() { return 42; }'}
    library = native_build.compile_library(texts, "a.cu", "fibers")
    assert ctypes.CDLL(str(library)).answer() == 42
    assert native_build.compile_library(texts, "a.cu", "fibers") == library
    (said,) = caplog.messages
    assert said.startswith("compiled kernels are kept for this run only: ")
    assert "Not a directory; set XDG_CACHE_HOME" in said


def test_a_relative_cache_home_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the XDG base directory specification says."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in ("", "here"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert native_build.cache_folder("native") == tmp_path / ".cache" / "treadle" / "native"


def test_a_missing_compiler_and_a_wrong_text_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(CheckFailed, match=r"g\+\+ refused a.cu") as caught:
        native_build.compile_library({"a.cu": "int x = ;"}, "a.cu", "fibers")
    assert any("a.cu:1" in line for line in caught.value.findings)
    monkeypatch.setenv("PATH", str(tmp_path))
    for target, name in (("fibers", r"g\+\+"), ("cuda", "nvcc")):
        with pytest.raises(MissingBackendError, match=f"found no {name} for backend {target}; install"):
            native_build.compile_library({"a.cu": ""}, "a.cu", target)
