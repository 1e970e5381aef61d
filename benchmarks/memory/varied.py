"""Seven networks of different kinds in plain PyTorch, at sizes for two cores: one training step each.

`each_block` puts every block under `torch.utils.checkpoint`, as is done by hand. Batch normalisations keep no running
statistics, as AOT autograd alone cannot train a model whose saved buffers it writes back.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

Step = tuple[nn.Module, tuple[Tensor, ...], Callable[..., Tensor]]


class Blocks(nn.Module):
    """A network that runs its blocks through `block`, each under a checkpoint with `each_block`."""

    def __init__(self, each_block: bool) -> None:
        super().__init__()
        self.each_block = each_block

    def block(self, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        if not self.each_block:
            return function(*inputs)
        result: Tensor = checkpoint(function, *inputs, use_reentrant=False)
        return result


def classified(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(model(x), labels)


class Tower(Blocks):
    """Bags of words through residual layers to unit vectors."""

    def __init__(self, words: int, width: int, layers: int, each_block: bool) -> None:
        super().__init__(each_block)
        self.words = nn.EmbeddingBag(words, width, mode="mean")
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(layers)
        )

    def forward(self, bags: Tensor) -> Tensor:
        x: Tensor = self.words(bags)
        for layer in self.layers:
            x = x + self.block(layer, x)
        return F.normalize(x, dim=-1)


class TwoTower(nn.Module):
    """Retrieval: queries against items, the others of the batch as negatives."""

    def __init__(self, each_block: bool) -> None:
        super().__init__()
        self.query, self.item = (Tower(2000, 128, 4, each_block) for _ in range(2))

    def forward(self, queries: Tensor, items: Tensor) -> Tensor:
        return self.query(queries) @ self.item(items).T / 0.05


def two_tower(each_block: bool = False) -> Step:
    """Two towers of 4 layers of width 128; 1,024 pairs of bags of 16 words."""
    pairs = torch.randint(2000, (1024, 16)), torch.randint(2000, (1024, 16))
    return TwoTower(each_block), pairs, lambda model, q, i: F.cross_entropy(model(q, i), torch.arange(1024))


class T5Attention(nn.Module):
    """Attention without scale and with a bias by the distance of two places, which all layers of a stack share."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: Tensor, context: Tensor, bias: Tensor | None) -> Tensor:
        q, k, v = (
            layer(t).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer, t in ((self.q, x), (self.k, context), (self.v, context))
        )
        scores = q @ k.transpose(-2, -1)
        weights = (scores if bias is None else scores + bias).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class T5Layer(nn.Module):
    def __init__(self, width: int, heads: int, cross: bool) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(3))
        self.own, self.other = T5Attention(width, heads), T5Attention(width, heads) if cross else None
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor, bias: Tensor, context: Tensor | None = None) -> Tensor:
        h = self.norms[0](x)
        x = x + self.own(h, h, bias)
        if self.other is not None and context is not None:
            x = x + self.other(self.norms[1](x), context, None)
        return x + self.down(F.relu(self.up(self.norms[2](x))))


class T5(Blocks):
    """Encoder and decoder; the embedding also computes the logits."""

    def __init__(self, words: int, width: int, heads: int, layers: int, tokens: int, each_block: bool) -> None:
        super().__init__(each_block)
        self.words = nn.Embedding(words, width)
        nn.init.normal_(self.words.weight, std=width**-0.5)
        self.encoder = nn.ModuleList(T5Layer(width, heads, False) for _ in range(layers))
        self.decoder = nn.ModuleList(T5Layer(width, heads, True) for _ in range(layers))
        self.distances = nn.ModuleList(nn.Embedding(2 * tokens - 1, heads) for _ in range(2))
        places = torch.arange(tokens)
        self.register_buffer("distance", places[:, None] - places[None, :] + tokens - 1)
        self.register_buffer("later", torch.full((tokens, tokens), -math.inf).triu(1))

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        both, left = (table(self.distance).permute(2, 0, 1) for table in self.distances)
        x, y = self.words(source), self.words(target)
        for layer in self.encoder:
            x = self.block(layer, x, both)
        for layer in self.decoder:
            y = self.block(layer, y, left + self.later, x)
        return y @ self.words.weight.T


def t5(each_block: bool = False) -> Step:
    """3 + 3 layers of width 128, 4 heads; 8 pairs of texts of 64 tokens, 500 words."""
    words, texts = 500, (8, 64)
    model = T5(words, 128, 4, 3, texts[1], each_block)
    inputs = tuple(torch.randint(words, texts) for _ in range(3))
    return model, inputs, lambda m, x, y, labels: F.cross_entropy(m(x, y).flatten(0, 1), labels.flatten())


class DLRM(Blocks):
    """Recommendation: numbers and categories as vectors, the products of all pairs, and layers above them."""

    def __init__(self, tables: int, rows: int, width: int, each_block: bool) -> None:
        super().__init__(each_block)
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.bottom = nn.ModuleList(self.layer(a, b) for a, b in ((13, 256), (256, 128), (128, width)))
        pairs = (tables + 1) * tables // 2
        self.top = nn.ModuleList(self.layer(a, b) for a, b in ((pairs + width, 256), (256, 128)))
        self.last = nn.Linear(128, 1)
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, -1))

    @staticmethod
    def layer(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(nn.Linear(inputs, outputs), nn.ReLU())

    def interact(self, dense: Tensor, *vectors: Tensor) -> Tensor:
        every = torch.stack([dense, *vectors], 1)
        products = every @ every.transpose(1, 2)
        return torch.cat([dense, products[:, self.pairs[0], self.pairs[1]]], 1)

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        x = numbers
        for layer in self.bottom:
            x = self.block(layer, x)
        vectors = [table(categories[:, place]) for place, table in enumerate(self.tables)]
        x = self.block(self.interact, x, *vectors)
        for layer in self.top:
            x = self.block(layer, x)
        return self.last(x).squeeze(1)


def dlrm(each_block: bool = False) -> Step:
    """8 tables of 1,000 rows of width 32, 13 numbers; 2,048 examples with 4 entries of each table."""
    model = DLRM(8, 1000, 32, each_block)
    inputs = torch.randn(2048, 13), torch.randint(1000, (2048, 8, 4)), torch.randint(2, (2048,)).float()
    return model, inputs, lambda m, x, c, y: F.binary_cross_entropy_with_logits(m(x, c), y)


class ConvNeXtBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise, self.norm = nn.Conv2d(width, width, 7, padding=3, groups=width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 1e-2))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.down(F.gelu(self.up(h)))).permute(0, 3, 1, 2)


class ChannelNorm(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNeXt(Blocks):
    def __init__(self, depths: tuple[int, ...], widths: tuple[int, ...], each_block: bool) -> None:
        super().__init__(each_block)
        between = zip((3, *widths), widths, strict=False)
        self.shrinking = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 4, 4), ChannelNorm(b))
            if a == 3
            else nn.Sequential(ChannelNorm(a), nn.Conv2d(a, b, 2, 2))
            for a, b in between
        )
        self.stages = nn.ModuleList(
            nn.ModuleList(ConvNeXtBlock(width) for _ in range(depth))
            for depth, width in zip(depths, widths, strict=True)
        )
        self.norm, self.last = nn.LayerNorm(widths[-1]), nn.Linear(widths[-1], 10)

    def forward(self, x: Tensor) -> Tensor:
        for shrink, stage in zip(self.shrinking, self.stages, strict=True):
            x = shrink(x)
            for block in stage:
                x = self.block(block, x)
        return self.last(self.norm(x.mean((2, 3))))


def convnext_t(each_block: bool = False) -> Step:
    """ConvNeXt-T, 18 blocks at half the width (48 to 384); 8 images of 96x96."""
    model = ConvNeXt((3, 3, 9, 3), (48, 96, 192, 384), each_block)
    return model, (torch.randn(8, 3, 96, 96), torch.randint(10, (8,))), classified


class MambaBlock(nn.Module):
    """A gated selective state space, h = a(x) h + b(x) x and y = c(x) h, by a loop over the tokens."""

    def __init__(self, width: int, inner: int, state: int) -> None:
        super().__init__()
        self.norm, self.into, self.out = nn.RMSNorm(width), nn.Linear(width, 2 * inner), nn.Linear(inner, width)
        self.mix = nn.Conv1d(inner, inner, 4, padding=3, groups=inner)
        self.select, self.state = nn.Linear(inner, 1 + 2 * state), state
        self.rate = nn.Parameter(torch.arange(1.0, state + 1).log().repeat(inner, 1))

    def forward(self, x: Tensor) -> Tensor:
        u, gate = self.into(self.norm(x)).chunk(2, -1)
        u = F.silu(self.mix(u.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        step, b, c = self.select(u).split([1, self.state, self.state], -1)
        step = F.softplus(step)
        decay = torch.exp(-step[..., None] * self.rate.exp())
        drive = (step * u)[..., None] * b[:, :, None]
        h = torch.zeros_like(drive[:, 0])
        states = []
        for a, d in zip(decay.unbind(1), drive.unbind(1), strict=True):
            h = a * h + d
            states.append(h)
        y = (torch.stack(states, 1) @ c[..., None]).squeeze(-1)
        return x + self.out(y * F.silu(gate))


class Mamba(Blocks):
    def __init__(self, words: int, width: int, layers: int, each_block: bool) -> None:
        super().__init__(each_block)
        self.words, self.last = nn.Embedding(words, width), nn.Linear(width, words)
        self.layers = nn.ModuleList(MambaBlock(width, 2 * width, 8) for _ in range(layers))

    def forward(self, text: Tensor) -> Tensor:
        x: Tensor = self.words(text)
        for layer in self.layers:
            x = self.block(layer, x)
        return self.last(x)


def mamba(each_block: bool = False) -> Step:
    """4 layers of width 96 and 8 states for each of 192 channels; 16 texts of 24 tokens, 200 words."""
    model = Mamba(200, 96, 4, each_block)
    inputs = torch.randint(200, (16, 24)), torch.randint(200, (16, 24))
    return model, inputs, lambda m, x, y: F.cross_entropy(m(x).flatten(0, 1), y.flatten())


def normed(inputs: int, outputs: int, size: int, **settings: Any) -> list[nn.Module]:
    """Batch normalisation, ReLU and a convolution."""
    norm = nn.BatchNorm2d(inputs, track_running_stats=False)
    return [norm, nn.ReLU(), nn.Conv2d(inputs, outputs, size, padding=size // 2, bias=False, **settings)]


class DenseLayer(nn.Module):
    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*normed(inputs, 4 * growth, 1), *normed(4 * growth, growth, 3))

    def forward(self, *found: Tensor) -> Tensor:
        result: Tensor = self.layers(torch.cat(found, 1))
        return result


class DenseNet(Blocks):
    """Each layer reads the results of all layers before it in its block."""

    def __init__(self, depths: tuple[int, ...], growth: int, each_block: bool) -> None:
        super().__init__(each_block)
        width = 2 * growth
        self.first = nn.Sequential(nn.Conv2d(3, width, 7, 2, 3, bias=False), *normed(width, width, 1), nn.MaxPool2d(2))
        self.stages, self.between = nn.ModuleList(), nn.ModuleList()
        for depth in depths:
            self.stages.append(nn.ModuleList(DenseLayer(width + growth * place, growth) for place in range(depth)))
            width += growth * depth
            self.between.append(nn.Sequential(*normed(width, width // 2, 1), nn.AvgPool2d(2)))
            width //= 2
        self.last = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for stage, between in zip(self.stages, self.between, strict=True):
            found = [x]
            for layer in stage:
                found.append(self.block(layer, *found))
            x = between(torch.cat(found, 1))
        return self.last(x.mean((2, 3)))


def densenet121(each_block: bool = False) -> Step:
    """DenseNet-121; 8 images of 64x64. Checkpoints go around each dense layer, as in memory-efficient DenseNets."""
    model = DenseNet((6, 12, 24, 16), 32, each_block)
    return model, (torch.randn(8, 3, 64, 64), torch.randint(10, (8,))), classified


class Double(nn.Sequential):
    """Two convolutions with batch normalisation and ReLU, over the concatenation of several maps."""

    def __init__(self, inputs: int, outputs: int) -> None:
        layers: list[nn.Module] = []
        for a in (inputs, outputs):
            norm = nn.BatchNorm2d(outputs, track_running_stats=False)
            layers += [nn.Conv2d(a, outputs, 3, padding=1, bias=False), norm, nn.ReLU()]
        super().__init__(*layers)

    def forward(self, *maps: Tensor) -> Tensor:
        result: Tensor = super().forward(torch.cat(maps, 1))
        return result


class UNetPlusPlus(Blocks):
    """Nested U-Nets: map (row, column) reads all maps of its row before it and the next row's, interpolated."""

    def __init__(self, widths: tuple[int, ...], each_block: bool) -> None:
        super().__init__(each_block)
        self.rows = len(widths)
        self.nodes = nn.ModuleDict()
        for row, width in enumerate(widths):
            self.nodes[f"{row}_0"] = Double(widths[row - 1] if row else 3, width)
            for column in range(1, self.rows - row):
                self.nodes[f"{row}_{column}"] = Double(column * width + widths[row + 1], width)
        self.last = nn.Conv2d(widths[0], 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        maps: list[list[Tensor]] = []
        for row in range(self.rows):
            x = self.block(self.nodes[f"{row}_0"], F.max_pool2d(x, 2) if row else x)
            maps.append([x])
        for column in range(1, self.rows):
            for row in range(self.rows - column):
                above = F.interpolate(maps[row + 1][column - 1], scale_factor=2, mode="bilinear", align_corners=True)
                maps[row].append(self.block(self.nodes[f"{row}_{column}"], *maps[row], above))
        return self.last(maps[0][-1])


def unet_plus_plus(each_block: bool = False) -> Step:
    """U-Net++ of 5 rows, 16 to 256 channels; 2 images of 96x96, one of two classes for each pixel."""
    model = UNetPlusPlus((16, 32, 64, 128, 256), each_block)
    return model, (torch.randn(2, 3, 96, 96), torch.randint(2, (2, 96, 96))), classified


MODELS: dict[str, Callable[..., Step]] = {
    "two-tower": two_tower,
    "T5-like": t5,
    "DLRM": dlrm,
    "ConvNeXt-T": convnext_t,
    "Mamba-like": mamba,
    "DenseNet-121": densenet121,
    "U-Net++": unet_plus_plus,
}
