"""Validation of a schedule that was written by hand: its launches are derived one by one."""

from __future__ import annotations

from dataclasses import replace

from treadle.planner.errors import InputError
from treadle.planner.passes.fusion.program import Kernel, Program
from treadle.planner.passes.fusion.stages import behind
from treadle.planner.passes.fusion.transforms.editing import settled
from treadle.planner.passes.fusion.transforms.fusing import fuse
from treadle.planner.passes.fusion.transforms.overlapping import overlap


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


def outputs_in_memory(program: Program) -> None:
    """Raises InputError for an output that is a view: it has no memory of its own, and what it shows may be
    overwritten."""
    for name in program.outputs:
        if (shown := behind(program, name)) != name:
            raise InputError(
                f"{program.name}: found the output {name}, a view of {shown}, expected one that is computed"
            )


def _holds(kernel: Kernel, others: list[Kernel]) -> bool:
    return any(other.name in kernel.members for other in others)
