"""Indices as data sets have them: few occur often, most hardly ever (Zipf's law)."""

from __future__ import annotations

import torch
from torch import Tensor

EXPONENT = 1.05
"""About that of words in English text."""


def zipf(rows: int, *shape: int) -> Tensor:
    """Indices [*shape] below `rows`, int64, of which index i occurs in proportion to (i + 1) ** -EXPONENT: rows are
    numbered by how often they occur, as vocabularies are. The seed is PyTorch's."""
    reached = torch.arange(1, rows + 1, dtype=torch.float64).pow_(-EXPONENT).cumsum(0)
    drawn = torch.rand(shape, dtype=torch.float64) * reached[-1]
    return torch.searchsorted(reached, drawn).clamp_(max=rows - 1)
