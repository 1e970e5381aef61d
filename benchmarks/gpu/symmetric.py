"""Kernels over symmetric memory, one-shot and two-shot, on virtual ranks of one card, compared with a plain reference.

In a dry run the ranks are fibers of this process. Several processes, and what a switch does, need several cards.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks.gpu.collective import TIMEOUT, compared, programs
from benchmarks.gpu.items import Kernel, Outcome


def kernels(dry: bool) -> Iterator[Kernel]:
    yield Kernel("symmetric", partial(_kernels, "cuda"), True)


def check(dry: bool) -> Outcome:
    """Every collective that these kernels do. Raises CheckFailed with a line for each that is wrong or hangs."""
    from treadle.runtime.collective.symmetric import METHODS

    compiled = _kernels("fibers" if dry else "cuda", None)
    jobs = [(f"{collective} {shots}", partial(_program, compiled, collective, shots)) for collective, shots in METHODS]
    return compared(jobs, dry)


def _kernels(target: Any, arch: str | None) -> Any:
    from treadle.runtime.collective.symmetric import SymmetricKernels

    return SymmetricKernels(target, arch)


def _program(compiled: Any, collective: str, shots: Any) -> Any:
    from treadle.runtime.collective.symmetric import Exchange, SymmetricProgram

    program = next(each for name, each in programs().items() if name.split()[0] == collective)
    return SymmetricProgram(program, Exchange(collective, shots), compiled, TIMEOUT)
