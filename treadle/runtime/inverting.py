"""What a step keeps where it cannot compute a normalisation's input from its output.

Output-activated batch and layer normalisation divide by the scale (gamma). A model that starts with one near 0 is
refused. Where training brings it there later, the step keeps the input after all, and its backward pass reads that:
correct, but over the plan's peak by these bytes.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

from torch import Tensor

from treadle import kernels
from treadle.planner.errors import InputError
from treadle.runtime.planned_step import PlannedStep


def require_invertible(step: PlannedStep, parameters: Mapping[str, Tensor]) -> None:
    """Raises InputError where a scale is so near 0 that already the first step would be over the plan's peak."""
    for scale, shift in step.scales:
        if not parameters[scale].is_meta and not kernels.safe_to_invert(parameters[scale], parameters[shift]):
            raise InputError(
                f"found elements of {scale!r} near 0, by which the plan divides to have the input of a normalisation "
                "back from its output; plan again with --without out, or load the trained parameters first",
                where=step.name,
            )


def spare(values: Sequence[Tensor], scale: Tensor, shift: Tensor, name: str, copy: bool = False) -> list[Tensor] | None:
    """`values` where `scale`, which messages call `name`, is too near 0 to undo a scaling and a shift; else None. With
    `copy` they are copies, because the step overwrites them later."""
    if kernels.safe_to_invert(scale, shift):
        return None
    warnings.warn(
        f"{name} has elements near 0, which the plan divides by: the input of its normalisation is kept instead, "
        "so that the step needs more memory than planned; plan with --without out to avoid this",
        stacklevel=2,
    )
    return [value.clone() if copy else value.detach() for value in values]
