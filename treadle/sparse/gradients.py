"""What of one gradient is not zero: the indices of a COO gradient as they are, or those of a dense one."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from treadle.planner.documents.sparsity import MAX_UNITS, Form, Unit

DENSE_FROM = 0.5
"""A dense gradient of which more units than this share are not zero is none of the sparse ones."""
MOSTLY_DENSE = f"over {DENSE_FROM:.0%} of its units are not zero"


@dataclass(frozen=True)
class GradientUnits:
    """What is recorded of one parameter's gradients."""

    form: Form
    unit: Unit
    units: int
    width: int


def units_of(gradient: Tensor, unit: Unit | None) -> GradientUnits | str:
    """The units of a gradient as its first one shows them, or why it is left out.

    `unit` None: rows of a COO gradient, and of a dense matrix of which at most half the rows are not zero; else
    elements.
    """
    form: Form = "coo" if gradient.layout == torch.sparse_coo else "dense"
    if form == "dense" and gradient.layout != torch.strided:
        return f"its gradients are {str(gradient.layout).removeprefix('torch.')}"
    if gradient.dtype != torch.float32:
        return f"its gradients are {str(gradient.dtype).removeprefix('torch.')}, not float32"
    reason = "it has no rows"
    for tried in ("row", "element") if unit is None else (unit,):
        found = _shaped(gradient, form, tried)
        if found is None:
            continue
        if found.units > MAX_UNITS:
            return f"it has {found.units} units, more than {MAX_UNITS}"
        if not is_dense(found, len(indices_of(gradient, found))):
            return found
        reason = MOSTLY_DENSE
    return reason


def is_dense(units: GradientUnits, not_zero: float) -> bool:
    """Whether dense gradients are none of the sparse ones, as many of whose units are not zero."""
    return units.form == "dense" and not_zero > DENSE_FROM * units.units


def indices_of(gradient: Tensor, units: GradientUnits) -> NDArray[np.int32]:
    """Units of `gradient` that are not zero, on the host; of a COO gradient one for every entry, repeats included."""
    if gradient.layout == torch.strided:
        not_zero = gradient.detach().reshape(units.units, units.width) != 0
        found = not_zero.any(1).nonzero()[:, 0]
    else:
        indices, values = gradient._indices(), gradient._values()
        sizes = gradient.shape[: gradient.sparse_dim()]
        entries = torch.zeros(indices.shape[1], dtype=torch.int64, device=indices.device)
        for row, size in zip(indices, sizes, strict=True):
            entries = entries * size + row
        if units.unit == "element":
            inside = values.reshape(len(entries), prod(gradient.shape[gradient.sparse_dim() :]))
            where = (inside != 0).nonzero()
            entries = entries[where[:, 0]] * inside.shape[1] + where[:, 1]
        found = entries
    return np.asarray(found.to(device="cpu", dtype=torch.int32).numpy())


def _shaped(gradient: Tensor, form: Form, unit: str) -> GradientUnits | None:
    """The units of a shape; None where it has no rows."""
    if form == "coo":
        rows, width = prod(gradient.shape[: gradient.sparse_dim()]), prod(gradient.shape[gradient.sparse_dim() :])
    elif gradient.dim() == 2:
        rows, width = gradient.shape
    else:
        rows, width = gradient.numel(), 1
    if not rows * width:
        return None
    if unit == "element":
        return GradientUnits(form, "element", rows * width, 1)
    return GradientUnits(form, "row", rows, width) if width > 1 or (gradient.dim() == 2 and form == "coo") else None
