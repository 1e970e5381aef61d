"""Compiles every kernel that the checks need, on all cores: for the card, or in a dry run for several architectures."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module

from benchmarks.gpu.items import ITEMS, Kernel, Outcome
from treadle.planner.errors import CheckFailed, TreadleError

ARCHITECTURES = ("sm_90", "sm_80", "sm_100")
"""Of a dry run: the first for every kernel, the others for those that programs share."""


def check(dry: bool) -> Outcome:
    """Raises CheckFailed naming each kernel that does not compile."""
    first, *others = ARCHITECTURES if dry else (None,)
    found = list(every_kernel(dry))
    jobs = [(kernel, first) for kernel in found]
    jobs += [(kernel, arch) for arch in others for kernel in found if kernel.shared]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        ended = list(pool.map(lambda job: _ended(*job), jobs))
    failures = tuple(failure for failure, _ in ended if failure)
    if failures:
        raise CheckFailed(f"{len(failures)} of {len(jobs)} libraries do not compile", failures)
    where = ", ".join(ARCHITECTURES) if dry else "this card"
    slowest = max(seconds for _, seconds in ended)
    return Outcome(f"{len(jobs)} libraries compile for {where}, the slowest in {slowest:.1f} s")


def every_kernel(dry: bool) -> Iterator[Kernel]:
    """The kernels of all modules that have any, each module once."""
    for name in dict.fromkeys(item.name.partition(".")[0] for item in ITEMS):
        kernels = getattr(import_module(f"benchmarks.gpu.{name}"), "kernels", None)
        if kernels is not None:
            yield from kernels(dry)


def _ended(kernel: Kernel, arch: str | None) -> tuple[str | None, float]:
    """Why a kernel does not compile, None where it does, and the seconds it took."""
    start = time.monotonic()
    try:
        kernel.build(arch)
    except TreadleError as error:
        words = next(iter(getattr(error, "findings", ())), "")
        return f"{kernel.name} for {arch or 'this card'}: {error} {words}".strip(), 0.0
    return None, time.monotonic() - start
