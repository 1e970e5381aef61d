"""A small masked language model that is called by keyword, `model(**batch)`, and returns its loss in an object.

`ModelOutput` has the manners of the class of that name in Transformers: fields that are not None by name, by key and by
place.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

IGNORED = -100
"""The label of positions that count for nothing."""


class ModelOutput(OrderedDict[str, Any]):
    """Base of dataclasses whose fields are items as well, those that are not None."""

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if value is not None:
                super().__setitem__(field.name, value)

    def __getitem__(self, key: str | int | slice) -> Any:
        return super().__getitem__(key) if isinstance(key, str) else tuple(self.values())[key]


@dataclass
class MaskedLMOutput(ModelOutput):
    """`loss` is a scalar, `logits` [N, T, vocabulary]; `hidden` are the states of all layers, if they were wanted."""

    loss: Tensor | None = None
    logits: Tensor | None = None
    hidden: tuple[Tensor, ...] | None = None


class MaskedLM(nn.Module):
    """Tokens with a mask, both [N, T], to the cross entropy of the labels [N, T] that are not `IGNORED`."""

    def __init__(self, vocabulary: int, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.embedding, self.dropout = nn.Embedding(vocabulary, width), nn.Dropout(dropout)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width)) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary)

    def forward(
        self, tokens: dict[str, Tensor], labels: Tensor | None = None, *, want_hidden: bool = False
    ) -> MaskedLMOutput:
        state = self.embedding(tokens["ids"])
        mask = tokens["mask"].unsqueeze(-1)
        states = []
        for layer in self.layers:
            around = (state * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)
            state = state + self.dropout(torch.tanh(layer(state + around)))
            states.append(state)
        logits = self.head(state)
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
        return MaskedLMOutput(loss, logits, tuple(states) if want_hidden else None)


Batch = dict[str, Any]


def step(vocabulary: int, width: int, layers: int, dropout: float, batch: int, words: int) -> tuple[nn.Module, Batch]:
    """One training step on random text in which every fourth word is to be found; the second half of the last sequence
    is padding."""
    ids = torch.randint(vocabulary, (batch, words))
    mask = torch.ones(batch, words)
    mask[-1, words // 2 :] = 0
    labels = torch.where((torch.arange(words) % 4 == 0) & mask.bool(), ids, IGNORED)
    return MaskedLM(vocabulary, width, layers, dropout), {"tokens": {"ids": ids, "mask": mask}, "labels": labels}


def tiny(*, batch: int = 4, words: int = 16, dropout: float = 0.0) -> tuple[nn.Module, Batch]:
    """2 layers of 16 over 32 words."""
    return step(32, 16, 2, dropout, batch, words)
