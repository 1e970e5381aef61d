"""Compiles the text of a schedule: by g++ for fibers or for processes, by nvcc for GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from treadle.codegen.fusion.kernel import Buffer
from treadle.codegen.fusion.library import Call
from treadle.planner.passes.fusion.program import Bindings, Program
from treadle.runtime.native_build import Target, compile_library

MAIN = "schedule.cu"


class LoweredSchedule(Protocol):
    """What treadle.codegen.fusion.lower makes of a schedule."""

    @property
    def program(self) -> Program: ...
    @property
    def bindings(self) -> Bindings: ...
    @property
    def buffers(self) -> tuple[Buffer, ...]: ...
    @property
    def places(self) -> Mapping[str, int]: ...
    @property
    def calls(self) -> Mapping[int, Call]: ...
    @property
    def scattered(self) -> frozenset[str]: ...
    @property
    def texts(self) -> dict[str, str]: ...


@dataclass(frozen=True)
class Compiled:
    """A library of one schedule. `ranks` of all groups; `counts` when it counts what it loads, stores and sends."""

    path: Path
    target: Target
    ranks: int
    buffers: tuple[Buffer, ...]
    counts: bool = False


def build(
    lowered: LoweredSchedule,
    target: Target = "fibers",
    *,
    counts: bool = False,
    quickly: bool = False,
    arch: str | None = None,
) -> Compiled:
    """`lowered` compiled, or found in the cache. `quickly` saves time of the compiler and costs time of the kernels;
    `arch` is nvcc's -arch, by default that of the available GPU.

    Raises MissingBackendError without the compiler, CheckFailed with its output when it refuses the text.
    """
    definitions = [*(["-DTREADLE_COUNT"] if counts else []), *(["-O1"] if quickly else [])]
    path = compile_library(lowered.texts, MAIN, target, definitions, arch)
    ranks = lowered.bindings.ranks * lowered.bindings.groups
    return Compiled(path, target, ranks, lowered.buffers, counts)
