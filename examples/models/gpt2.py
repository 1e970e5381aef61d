"""GPT-2, "Language Models are Unsupervised Multitask Learners", four published sizes and a tiny one.

Dropout is off unless asked for, as is usual for pre-training today.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .common import Step


@dataclass(frozen=True)
class Config:
    """Sizes of one GPT-2; `context` is the longest sequence, in tokens."""

    layers: int
    heads: int
    width: int
    vocabulary: int = 50257
    context: int = 1024
    dropout: float = 0.0


SMALL = Config(layers=12, heads=12, width=768)
MEDIUM = Config(layers=24, heads=16, width=1024)
LARGE = Config(layers=36, heads=20, width=1280)
XL = Config(layers=48, heads=25, width=1600)
TINY = Config(layers=2, heads=4, width=64, vocabulary=256, context=64)


class Attention(nn.Module):
    """Causal self-attention, [N, T, width] to [N, T, width]."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads, self.dropout = config.heads, config.dropout
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.output = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        return self.output(y.transpose(1, 2).reshape(batch, tokens, width))


class Block(nn.Module):
    """Attention and feed-forward, each behind a layer norm and around a shortcut."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.norm2 = nn.LayerNorm(config.width)
        self.expand = nn.Linear(config.width, 4 * config.width)
        self.contract = nn.Linear(4 * config.width, config.width)
        self.dropout = nn.Dropout(config.dropout) if config.dropout else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.contract(F.gelu(self.expand(self.norm2(x)), approximate="tanh")))


class GPT2(nn.Module):
    """Tokens [N, T] to logits [N, T, vocabulary]; the output layer shares the token embedding."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(config.vocabulary, config.width)
        self.position_embedding = nn.Embedding(config.context, config.width)
        self.dropout = nn.Dropout(config.dropout) if config.dropout else nn.Identity()
        self.blocks = nn.Sequential(*[Block(config) for _ in range(config.layers)])
        self.norm = nn.LayerNorm(config.width)
        self.output = nn.Linear(config.width, config.vocabulary, bias=False)
        self.output.weight = self.token_embedding.weight
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif "norm" not in name:
                # The layers that write to the residual stream start smaller, by the square root of their number.
                writes = name.endswith(("attention.output.weight", "contract.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * config.layers) if writes else 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.token_embedding(tokens) + self.position_embedding(positions))
        return self.output(self.norm(self.blocks(x)))


def language_model_loss(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy of every token's prediction; `targets` [N, T] are the tokens shifted by one."""
    return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


def step(config: Config, batch: int, tokens: int) -> Step:
    """One training step on random text of `tokens` tokens a sequence."""
    text = torch.randint(config.vocabulary, (batch, tokens + 1))
    return GPT2(config), (text[:, :-1].contiguous(), text[:, 1:].contiguous()), language_model_loss


def small(*, batch: int = 8, tokens: int = 1024) -> Step:
    """124,439,808 parameters."""
    return step(SMALL, batch, tokens)


def medium(*, batch: int = 4, tokens: int = 1024) -> Step:
    """354,823,168 parameters."""
    return step(MEDIUM, batch, tokens)


def large(*, batch: int = 2, tokens: int = 1024) -> Step:
    """774,030,080 parameters."""
    return step(LARGE, batch, tokens)


def xl(*, batch: int = 1, tokens: int = 1024) -> Step:
    """1,557,611,200 parameters."""
    return step(XL, batch, tokens)


def tiny(*, batch: int = 2, tokens: int = 32) -> Step:
    """120,576 parameters: two layers, 64 wide, over bytes."""
    return step(TINY, batch, tokens)
