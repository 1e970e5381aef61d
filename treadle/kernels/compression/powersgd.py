"""PowerSGD (Vogels et al., PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization): two
factors, each of which is summed over the ranks."""

from __future__ import annotations

import torch
from torch import Tensor

from treadle.planner.errors import InputError
from treadle.planner.machine.compressors import compressor, matrix


class PowerSGD:
    """One compression point of `elements` float32, which are read as a nearly square matrix, filled up with zeros.

    In each step every rank calls `first`, sums its result over the ranks, calls `second` with the sum, sums its result
    too and calls `decode_add` with that. `residual` (float32 [elements]) is what this rank's part of the product of the
    factors lost; `factor` (float32 [columns, rank]) starts from the last step's and is the same on all ranks, as are
    its first values by `seed`. A gradient that is not finite decodes to what is not, and leaves no trace. Raises
    InputError for a name that is no `powersgd:RANK`.
    """

    def __init__(self, name: str, elements: int, *, device: torch.device | str = "cpu", seed: int = 0) -> None:
        found = compressor(name)
        if found.algorithm.name != "powersgd":
            raise InputError(f"found {name!r}, expected powersgd:RANK")
        self.name, self.elements, self.wire_bytes = found.name, elements, found.wire_bytes(elements)
        rows, columns = matrix(elements)
        self.rank = min(int(found.parameter), rows, columns)
        generator = torch.Generator().manual_seed(seed)
        self._fresh = torch.randn(columns, self.rank, generator=generator).to(device)
        self.factor = self._fresh.clone()
        self._matrix = torch.zeros(rows, columns, device=device)
        self._left = self._matrix.new_zeros(rows, self.rank)

    @property
    def residual(self) -> Tensor:
        return self._matrix.view(-1)[: self.elements]

    def first(self, values: Tensor) -> Tensor:
        """The left factor, float32 [rows, rank], of values + residual. Raises InputError for another size or type."""
        if values.numel() != self.elements or values.dtype != torch.float32:
            raise InputError(f"found {values.numel()} {values.dtype}, expected {self.elements} torch.float32")
        self.residual.add_(values.view(-1))
        return (self._matrix @ _by_columns(self.factor)).contiguous()

    def second(self, left: Tensor) -> Tensor:
        """The right factor, float32 [columns, rank], to the sum of the left ones."""
        self._left = torch.linalg.qr(left).Q
        right = (self._left.T.contiguous() @ self._matrix).T.contiguous()
        self._matrix.addmm_(self._left, right.T, alpha=-1).nan_to_num_(0, 0, 0)
        self._matrix.view(-1)[self.elements :].zero_()
        return right

    def decode_add(self, right: Tensor, out: Tensor) -> None:
        """Add the product with the sum of the right factors to `out`, float32 [elements]."""
        rows, columns = self._matrix.shape
        if rows * columns == self.elements and out.is_contiguous():
            out.view(rows, columns).addmm_(self._left, right.T)
        else:
            out.view(-1).add_((self._left @ right.T).view(-1)[: self.elements])
        self.factor.copy_(torch.where(torch.isfinite(right).all(), right, self._fresh))


def _by_columns(factor: Tensor) -> Tensor:
    """The same numbers column by column, with which libraries multiply several times as fast."""
    return factor.T.contiguous().T
