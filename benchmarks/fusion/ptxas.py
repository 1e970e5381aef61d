"""Registers, spilled bytes and shared memory of the kernels of a generated file, as `nvcc -Xptxas -v` reports them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from treadle.codegen.fusion import lower
from treadle.host.scratch import scratch
from treadle.planner.errors import CheckFailed, MissingBackendError
from treadle.runtime.native_build import run_compiler

DRIVER_KERNELS = frozenset({"count_run"})
"""Kernels that the driver of a schedule adds (templates/fusion/treadle_fusion_driver.h)."""


@dataclass(frozen=True)
class Resources:
    """Registers and spilled bytes of one thread of a kernel, shared bytes of one block."""

    kernel: str
    registers: int
    spill_stores: int
    spill_loads: int
    shared: int


def resources(text: str, arch: str, include: Sequence[Path] = ()) -> tuple[Resources, ...]:
    """The kernels of a generated file, compiled for `arch` (sm_90) with our headers and those in the folders `include`.

    Raises MissingBackendError without nvcc, CheckFailed with nvcc's output when it refuses the text, LimitError when it
    was killed.
    """
    compiler = shutil.which("nvcc")
    if compiler is None:
        raise MissingBackendError("found no nvcc, expected the CUDA toolkit 12 or newer with its bin folder on PATH")
    with scratch() as folder:
        for name, header in lower.headers().items():
            (folder / name).write_text(header, encoding="utf-8")
        (folder / "schedule.cu").write_text(text, encoding="utf-8")
        options = ["-std=c++17", "-O3", f"-arch={arch}", "-Xptxas=-v", "-cubin", "-o", "schedule.cubin"]
        folders = [f"-I{path}" for path in include]
        command = [compiler, *options, *folders, "schedule.cu"]
        words = run_compiler(command, f"the schedule for {arch}", folder)
    return tuple(each for each in reported(words) if each.kernel not in DRIVER_KERNELS)


_ENTRY = re.compile(r"Compiling entry function '(\w+)'")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


def reported(words: str) -> tuple[Resources, ...]:
    """The kernels in the output of `nvcc -Xptxas -v`, their names without namespace."""
    found = []
    for part in words.split("Compiling entry function")[1:]:
        name, spills, used = (x.search(f"Compiling entry function{part}") for x in (_ENTRY, _SPILLS, _USED))
        if name is None or spills is None or used is None:
            raise CheckFailed(f"found a report of nvcc without registers or spills: {part.strip()[:200]}")
        shared = _SHARED.search(part)
        numbers = int(used[1]), int(spills[1]), int(spills[2]), int(shared[1]) if shared else 0
        found.append(Resources(_plain(name[1]), *numbers))
    return tuple(found)


def _plain(mangled: str) -> str:
    """The last part of a mangled name `_ZN7treadle4nameE...`."""
    rest, name = mangled.removeprefix("_ZN").removeprefix("_Z"), mangled
    while length := re.match(r"\d+", rest):
        begin = length.end()
        end = begin + int(length[0])
        name, rest = rest[begin:end], rest[end:]
    return name
