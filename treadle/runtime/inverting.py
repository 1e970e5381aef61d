"""What a step keeps where it cannot compute a normalisation's input from its output.

Output-activated batch and layer normalisation divide by the scale (gamma), which training may bring to 0. Then the step
keeps the input after all, and its backward pass reads that: correct, but over the plan's peak by these bytes.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from torch import Tensor

from treadle import kernels


def spare(values: Sequence[Tensor], scale: Tensor, shift: Tensor, name: str, copy: bool = False) -> list[Tensor] | None:
    """`values` where `scale`, which messages call `name`, is too near 0 to undo a scaling and a shift; else None.

    With `copy` they are copies, because the step overwrites them later.
    """
    if kernels.safe_to_invert(scale, shift):
        return None
    warnings.warn(
        f"{name} has elements near 0, which the plan divides by: the input of its normalisation is kept instead, "
        "so that the step needs more memory than planned; plan with --without out to avoid this",
        stacklevel=2,
    )
    return [value.clone() if copy else value.detach() for value in values]
