"""LSTM language model, "Recurrent Neural Network Regularization": the medium and large models for the Penn Treebank.

The paper rounds the sizes: "medium" about 20 million parameters, "large" about 66 million. Exactly, with v words,
width w, two layers and both bias vectors of `nn.LSTM`: 2vw + v + 2(8ww + 8w).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .common import Step


class LSTMLanguageModel(nn.Module):
    """Words [N, T] to logits [N, T, vocabulary]; the state starts at zero."""

    def __init__(self, vocabulary: int, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True, dropout=dropout)
        self.output = nn.Linear(width, vocabulary)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.05, 0.05)

    def forward(self, words: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.dropout(self.embedding(words)))
        return self.output(self.dropout(hidden))


def language_model_loss(model: nn.Module, words: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy of every word's prediction; `targets` [N, T] are the words shifted by one."""
    return F.cross_entropy(model(words).flatten(0, 1), targets.flatten())


def step(vocabulary: int, width: int, layers: int, dropout: float, batch: int, words: int) -> Step:
    """One training step on random text of `words` words a sequence."""
    text = torch.randint(vocabulary, (batch, words + 1))
    model = LSTMLanguageModel(vocabulary, width, layers, dropout)
    return model, (text[:, :-1].contiguous(), text[:, 1:].contiguous()), language_model_loss


def medium(*, batch: int = 20, words: int = 35, dropout: float = 0.5) -> Step:
    """19,780,400 parameters: 2 layers of 650 over 10,000 words."""
    return step(10_000, 650, 2, dropout, batch, words)


def large(*, batch: int = 20, words: int = 35, dropout: float = 0.65) -> Step:
    """66,034,000 parameters: 2 layers of 1500 over 10,000 words."""
    return step(10_000, 1500, 2, dropout, batch, words)


def tiny(*, batch: int = 2, words: int = 6, dropout: float = 0.0) -> Step:
    """2 layers of 16 over 50 words."""
    return step(50, 16, 2, dropout, batch, words)
