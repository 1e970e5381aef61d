"""Results compared with those of a reference: random data for both, the difference, and the tolerated one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int32": torch.int32,
    "int64": torch.int64,
}
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
"""Tolerance of gradients, losses and buffers, relative to the largest value; COARSE for narrow types and autocast."""
COARSE = 1e-2


@dataclass(frozen=True, kw_only=True)
class Row:
    """One program, data type, operation and number of elements; the worst of all ranks. `op` says nothing where nothing
    is added up; times in seconds."""

    program: str
    dtype: str
    op: str
    elements: int
    max_error: float
    tolerance: float
    """0 where only data moves, a least or greatest is taken or numbers are whole: then results must be equal."""
    seconds: float

    @property
    def good(self) -> bool:
        return self.max_error <= self.tolerance


def random(count: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Normal or whole numbers, of which sums of some thousand do not overflow."""
    if dtype.is_floating_point:
        return torch.randn(count, dtype=dtype, generator=generator)
    most = 2**40 if dtype == torch.int64 else 2**20
    return torch.randint(-most, most, (count,), dtype=dtype, generator=generator)


def rounding_of_sums(ranks: int, dtype: torch.dtype, total: float) -> float:
    """Any two orders of summing R numbers differ by at most 2 (R - 1) eps times the sum of their absolute values,
    `total`; 0 for whole numbers."""
    return 2 * (ranks - 1) * torch.finfo(dtype).eps * total if dtype.is_floating_point else 0.0


def relative_tolerance(parameters: Iterable[Tensor], narrow: bool) -> float:
    """How far a step on these parameters may be off plain PyTorch's, relative to the largest value."""
    found = max((TOLERANCE.get(parameter.dtype, COARSE) for parameter in parameters), default=TOLERANCE[torch.float32])
    return max(found, COARSE) if narrow else found


def value_finding(what: str, a: Tensor, b: Tensor, tolerance: float) -> str | None:
    """What is wrong with `b` where it is further off `a`, plain PyTorch's, than `tolerance` of the largest value, or
    off at all in whole numbers."""
    gap, scale = difference(a, b), largest(a)
    if gap <= (tolerance * scale if a.is_floating_point() or a.is_complex() else 0.0):
        return None
    return f"{what} differs from plain PyTorch's by {gap:.3g}, its largest is {scale:.3g}"


def difference(a: Tensor | None, b: Tensor | None) -> float:
    """The largest difference of two elements, at least 1 of whole numbers that are not equal; infinite where one alone
    is NaN or infinite, and for other shapes."""
    if a is None or b is None:
        return 0.0 if a is b else float("inf")
    if a.shape != b.shape:
        return float("inf")
    unequal = 0.0 if a.is_floating_point() or a.is_complex() else float((a != b).any())
    a, b = _wide(a), _wide(b)
    gap = (a - b).abs().nan_to_num(nan=float("inf"), posinf=float("inf"))
    gap = gap.masked_fill((a == b) | (a.isnan() & b.isnan()), 0.0)
    return max(unequal, float(gap.max())) if gap.numel() else 0.0


def largest(tensor: Tensor) -> float:
    """The largest absolute value that is finite."""
    found = _wide(tensor).abs()
    finite = found[found.isfinite()]
    return float(finite.max()) if finite.numel() else 0.0


def equal_bits(a: Tensor, b: Tensor) -> bool:
    """Whether type, shape and every bit are the same: two NaN may be, 0 and -0 are not."""
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(_bits(a), _bits(b))


def _wide(tensor: Tensor) -> Tensor:
    return tensor.detach().to(torch.promote_types(tensor.dtype, torch.float64))


def _bits(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
