"""A model small enough to be planned within a second, and its batches."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH = 16
BATCH = 4096


class Deep(nn.Module):
    """Rows [N, WIDTH] to rows [N, WIDTH], with dropout."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(*[layer for _ in range(5) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())])
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.layers(x))


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(model(x), y)


def batch_of(rows: int = BATCH, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, WIDTH, generator=generator)
    return x, torch.randn(rows, WIDTH, generator=generator)
