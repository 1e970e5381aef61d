"""A recommender like DLRM, "Deep Learning Recommendation Model for Personalization and Recommendation Systems".

Continuous features go through an MLP, categorical ones through embedding tables with sparse gradients; dot products of
all pairs of the vectors found, with the first, go through another MLP, which says how likely a click is.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .common import Step
from .zipf import zipf

CRITEO = (
    *(1_460, 583, 10_131_227, 2_202_608, 305, 24, 12_517, 633, 3, 93_145, 5_683, 8_351_593, 3_194),
    *(27, 14_992, 5_461_306, 10, 5_652, 2_173, 4, 7_046_547, 18, 15, 286_181, 105, 142_572),
)
"""Values of each categorical feature in the Criteo display advertising challenge, which has 13 continuous ones."""
CONTINUOUS = 13
REDUCED = (50_000, 20_000, 8_000, 300)


class DLRM(nn.Module):
    """Continuous features [N, 13] and indices [N, tables, lookups] to logits [N]."""

    def __init__(self, rows: Sequence[int], bottom: Sequence[int], top: Sequence[int], sparse: bool) -> None:
        super().__init__()
        width = bottom[-1]
        self.bottom = _mlp(CONTINUOUS, bottom)
        self.tables = nn.ModuleList(nn.EmbeddingBag(count, width, mode="sum", sparse=sparse) for count in rows)
        for table in self.tables:
            nn.init.uniform_(table.weight, -1 / width, 1 / width)
        vectors = len(rows) + 1
        self.top = nn.Sequential(_mlp(width + vectors * (vectors - 1) // 2, top), nn.Linear(top[-1], 1))
        one, other = torch.tril_indices(vectors, vectors, -1)
        self.register_buffer("one", one)
        self.register_buffer("other", other)

    def forward(self, features: Tensor, indices: Tensor) -> Tensor:
        dense = self.bottom(features)
        looked_up = [table(indices[:, place]) for place, table in enumerate(self.tables)]
        vectors = torch.stack([dense, *looked_up], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))[:, self.one, self.other]
        return self.top(torch.cat([dense, products], 1)).squeeze(1)


def _mlp(inputs: int, widths: Sequence[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, width in zip((inputs, *widths), widths, strict=False):
        layers += [nn.Linear(before, width), nn.ReLU()]
    return nn.Sequential(*layers)


def click_loss(model: nn.Module, features: Tensor, indices: Tensor, clicks: Tensor) -> Tensor:
    """Mean binary cross entropy; `clicks` [N] are 0 or 1."""
    return F.binary_cross_entropy_with_logits(model(features, indices), clicks)


def samples(rows: Sequence[int], batch: int, lookups: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """A random batch: features [batch, 13], indices [batch, tables, lookups] by Zipf's law, clicks [batch]."""
    indices = torch.stack([zipf(count, batch, lookups) for count in rows], 1)
    return torch.randn(batch, CONTINUOUS), indices, torch.randint(2, (batch,)).float()


def step(
    rows: Sequence[int], bottom: Sequence[int], top: Sequence[int], batch: int, lookups: int, sparse: bool
) -> Step:
    """One training step on a random batch."""
    return DLRM(rows, bottom, top, sparse), samples(rows, batch, lookups), click_loss


def criteo(*, batch: int = 2048, sparse: bool = True) -> Step:
    """540,677,217 parameters, as in DLRM's benchmark: 26 tables of width 16, MLPs of 512-256-64-16 and 512-256-1."""
    return step(CRITEO, (512, 256, 64, 16), (512, 256), batch, 1, sparse)


def reduced(*, batch: int = 128, sparse: bool = True) -> Step:
    """2,513,441 parameters: 4 tables of width 32."""
    return step(REDUCED, (64, 32), (64, 32), batch, 4, sparse)


def tiny(*, batch: int = 8, sparse: bool = True) -> Step:
    """3 tables of width 4."""
    return step((50, 7, 100), (8, 4), (8,), batch, 2, sparse)


def tiny_dense() -> Step:
    """`tiny` with dense gradients of its tables, which a capture needs."""
    return tiny(sparse=False)
