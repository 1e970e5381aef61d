"""A training script in plain PyTorch that trains in half of its memory: the lines with `treadle` are all that is new.

python -m examples.train_in_half
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import treadle
from treadle.planner.documents.scalars import format_bytes
from treadle.runtime.meter import Meter

VOCABULARY, WIDTH, LAYERS, ROWS, TOKENS = 128, 64, 6, 16, 128


@dataclass
class Output:
    """`loss` is a scalar, `logits` are [N, T, VOCABULARY]."""

    loss: Tensor
    logits: Tensor


class Decoder(nn.Module):
    """Tokens and labels [N, T] to the loss and the logits, called by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.1, activation="gelu", batch_first=True)
        self.layers = nn.ModuleList(copy.deepcopy(layer) for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor, labels: Tensor) -> Output:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        logits = self.head(x)
        return Output(F.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits)


def batch_of(rows: int = ROWS) -> dict[str, Tensor]:
    text = torch.randint(VOCABULARY, (rows, TOKENS + 1))
    return {"tokens": text[:, :-1].contiguous(), "labels": text[:, 1:].contiguous()}


def train(model: Callable[..., Any], parameters: list[nn.Parameter], steps: int) -> tuple[list[float], int]:
    """Losses, and the peak of the steps in bytes. Each epoch of four batches ends in a smaller one."""
    torch.manual_seed(0)
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    losses, peak = [], 0
    for step in range(steps):
        batch = batch_of(ROWS if step % 4 < 3 else ROWS // 4)
        with Meter(parameters, batch) as meter:
            loss = model(**batch).loss
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        peak = max(peak, meter.peak_bytes)
    return losses, peak


def main(steps: int = 8) -> None:
    """Train twice from the same numbers, as it is and fitted."""
    torch.manual_seed(0)
    plain = Decoder()
    model = copy.deepcopy(plain)
    logging.basicConfig(format="%(message)s")
    logging.getLogger("treadle.fit").setLevel("INFO")
    model = treadle.fit(model, batch_of(), budget="0.5x")
    for name, each in (("plain PyTorch", plain), ("fitted", model)):
        losses, peak = train(each, list(each.parameters()), steps)
        print(f"{name:<14}losses {losses[0]:.4f} to {losses[-1]:.4f}, peak {format_bytes(peak)}")


if __name__ == "__main__":
    main()
