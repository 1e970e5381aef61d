"""A schedule that someone wrote instead of deriving it: taken apart, and its launches made again one by one."""

from __future__ import annotations

from dataclasses import replace

from planner.fusion.program import Kernel, Program
from planner.fusion.transforms.editing import settled
from planner.fusion.transforms.fusing import fuse
from planner.fusion.transforms.overlapping import overlap


def validate(program: Program) -> None:
    """Raises InvalidTransform, as fuse and overlap do, for a kernel or overlap that they would not make."""
    made = settled("fuse", replace(program, kernels=(), overlaps=()))
    waiting = list(program.kernels)
    while waiting:
        kernel = next((x for x in waiting if not _holds(x, waiting)), waiting[0])
        waiting.remove(kernel)
        made = fuse(made, kernel.members, kernel.policy, kernel.name).program
    for chain in program.overlaps:
        made = overlap(made, chain.members, chain.name).program


def _holds(kernel: Kernel, others: list[Kernel]) -> bool:
    return any(other.name in kernel.members for other in others)
