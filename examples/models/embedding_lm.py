"""LSTM language model over a large vocabulary, "Exploring the Limits of Language Modeling": most parameters are words.

Both tables, of words read and of words predicted, have sparse gradients: the softmax is over the words that follow and
over words sampled by Zipf's law, whose logits are corrected for how often they are sampled.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .common import Step
from .zipf import EXPONENT, zipf

REDUCED = 30_000


class EmbeddingLanguageModel(nn.Module):
    """Words [N, T], the words that follow [N, T] and sampled words [S] to logits [N, T, 1 + S], the right one first."""

    def __init__(self, vocabulary: int, width: int, state: int, sparse: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, sparse=sparse)
        self.lstm = nn.LSTM(width, state, batch_first=True)
        self.projection = nn.Linear(state, width)
        self.output = nn.Embedding(vocabulary, width, sparse=sparse)
        for table in (self.embedding, self.output):
            nn.init.uniform_(table.weight, -0.05, 0.05)

    def forward(self, words: Tensor, following: Tensor, sampled: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.embedding(words))
        vectors = self.projection(hidden)
        right = (vectors * self.output(following)).sum(-1, keepdim=True) + _correction(following).unsqueeze(-1)
        others = vectors @ self.output(sampled).T + _correction(sampled)
        return torch.cat([right, others], -1)


def _correction(words: Tensor) -> Tensor:
    """Less the logarithm of how often a word is sampled, up to a constant."""
    return EXPONENT * torch.log1p(words.float())


def sampled_loss(model: nn.Module, words: Tensor, following: Tensor, sampled: Tensor) -> Tensor:
    """Mean cross entropy of every word's prediction."""
    logits = model(words, following, sampled).flatten(0, 1)
    return F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.int64, device=logits.device))


def samples(vocabulary: int, batch: int, words: int, sampled: int) -> tuple[Tensor, Tensor, Tensor]:
    """Random text by Zipf's law: words and those that follow [batch, words], and sampled words [sampled]."""
    text = zipf(vocabulary, batch, words + 1)
    return text[:, :-1].contiguous(), text[:, 1:].contiguous(), zipf(vocabulary, sampled)


def step(vocabulary: int, width: int, state: int, batch: int, words: int, sampled: int, sparse: bool) -> Step:
    """One training step on random text."""
    model = EmbeddingLanguageModel(vocabulary, width, state, sparse)
    return model, samples(vocabulary, batch, words, sampled), sampled_loss


def billion_words(*, batch: int = 128, sparse: bool = True) -> Step:
    """834,551,296 parameters: an LSTM of 2048 projected to 512; 793,471 words of width 512 read and predicted."""
    return step(793_471, 512, 2048, batch, 20, 8192, sparse)


def reduced(*, batch: int = 16, sparse: bool = True) -> Step:
    """3,877,440 parameters: 30,000 words of width 64."""
    return step(REDUCED, 64, 64, batch, 20, 256, sparse)


def tiny(*, batch: int = 4, sparse: bool = True) -> Step:
    """200 words of width 8."""
    return step(200, 8, 12, batch, 5, 10, sparse)


def tiny_dense() -> Step:
    """`tiny` with dense gradients of its tables, which a capture needs."""
    return tiny(sparse=False)
