"""A small transformer over tokens, and the placements that people write by hand for it: Megatron-style tensor
parallelism, and data parallelism with FSDP2 or with whole weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F

Step = tuple[nn.Module, tuple[Tensor, ...], Callable[..., Tensor]]
LAYERS, HEADS, VOCABULARY = 2, 8, 1024


class Size(NamedTuple):
    """Width of the model, sequences of a batch, tokens of each."""

    width: int
    sequences: int
    tokens: int


SIZES = {"many tokens": Size(128, 64, 64), "few tokens": Size(256, 4, 16)}
"""Where activations outweigh the weights, and where they do not."""


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.head = width // HEADS
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        parts = (each(x).view(batch, tokens, -1, self.head) for each in (self.query, self.key, self.value))
        q, k, v = (each.transpose(1, 2) for each in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        made: Tensor = self.output(y.transpose(1, 2).reshape(batch, tokens, -1))
        return made


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width)
        self.expand, self.contract = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        made: Tensor = x + self.contract(F.gelu(self.expand(self.norm2(x))))
        return made


class Transformer(nn.Module):
    """Tokens [N, T] to logits [N, T, VOCABULARY]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.Sequential(*[Block(width) for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        made: Tensor = self.output(self.norm(self.blocks(self.embedding(tokens))))
        return made


def loss_of_tokens(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy of every token's prediction; `targets` [N, T]."""
    return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


def step(size: Size) -> Step:
    """One training step on random text."""
    text = torch.randint(VOCABULARY, (size.sequences, size.tokens + 1))
    return Transformer(size.width), (text[:, :-1].contiguous(), text[:, 1:].contiguous()), loss_of_tokens


def megatron(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Columns, then rows of each pair of layers; heads of attention, vocabulary of embedding and output are cut."""
    plan = {
        "embedding": RowwiseParallel(input_layouts=Replicate()),
        "output": ColwiseParallel(output_layouts=Replicate()),
    }
    for block in range(LAYERS):
        for name in ("attention.query", "attention.key", "attention.value", "expand"):
            plan[f"blocks.{block}.{name}"] = ColwiseParallel()
        for name in ("attention.output", "contract"):
            plan[f"blocks.{block}.{name}"] = RowwiseParallel()
    return parallelize_module(model, mesh, plan)


def fsdp2(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Weights are gathered block by block, once for each direction, and gradients scattered."""
    assert isinstance(model, Transformer)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model
