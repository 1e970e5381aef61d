"""NASNet-A, "Learning Transferable Architectures for Scalable Image Recognition", and NasNet-R with R normal cells in
each of its three stages (SwapAdvisor, section 5.1).

The published network applies every separable convolution twice. NasNet-25 here applies it once: with two it would have
twice the operators that SwapAdvisor states.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .common import Step, classification_step

EPS = 1e-3


def pointwise(inputs: int, outputs: int) -> nn.Sequential:
    """ReLU, 1x1 convolution, batch normalisation."""
    return nn.Sequential(nn.ReLU(), nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs, eps=EPS))


def separable(inputs: int, outputs: int, kernel: int, stride: int, repeats: int) -> nn.Sequential:
    """ReLU, depthwise and pointwise convolution, batch normalisation; again `repeats` - 1 times at stride 1."""
    layers: list[nn.Module] = []
    for _ in range(repeats):
        layers += [
            nn.ReLU(),
            nn.Conv2d(inputs, inputs, kernel, stride, padding=kernel // 2, groups=inputs, bias=False),
            nn.Conv2d(inputs, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs, eps=EPS),
        ]
        inputs, stride = outputs, 1
    return nn.Sequential(*layers)


class Halving(nn.Module):
    """Half the size without losing a corner: every second pixel, and every second one from the next on, each through a
    1x1 convolution to half of the outputs."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.relu = nn.ReLU()
        self.pick = nn.AvgPool2d(1, 2)
        self.even = nn.Conv2d(inputs, outputs // 2, 1, bias=False)
        self.odd = nn.Conv2d(inputs, outputs // 2, 1, bias=False)
        self.norm = nn.BatchNorm2d(outputs, eps=EPS)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(x)
        shifted = F.pad(x, (-1, 1, -1, 1))
        return self.norm(torch.cat([self.even(self.pick(x)), self.odd(self.pick(shifted))], 1))


class Normal(nn.Module):
    """The normal cell (figure 4): two feature maps to 6 * filters channels of the size of the later one."""

    def __init__(self, previous: int, inputs: int, filters: int, halve: bool, repeats: int) -> None:
        super().__init__()
        self.fit_previous = Halving(previous, filters) if halve else pointwise(previous, filters)
        self.fit = pointwise(inputs, filters)
        self.convolutions = nn.ModuleList(separable(filters, filters, kernel, 1, repeats) for kernel in (5, 3, 5, 3, 3))
        self.mean = nn.AvgPool2d(3, 1, padding=1, count_include_pad=False)

    def forward(self, previous: Tensor, x: Tensor) -> Tensor:
        p, x = self.fit_previous(previous), self.fit(x)
        a, b, c, d, e = self.convolutions
        return torch.cat([p, a(x) + b(p), c(p) + d(p), self.mean(x) + p, self.mean(p) + self.mean(p), e(x) + x], 1)


class Reduction(nn.Module):
    """The reduction cell (figure 4): two feature maps to 4 * filters channels of half the size of the later one.

    The first cell of the network has one feature map, which it takes as it is for the earlier one.
    """

    def __init__(self, previous: int, inputs: int, filters: int, halve: bool, first: bool, repeats: int) -> None:
        super().__init__()
        self.fit_previous: nn.Module = nn.Identity()
        if not first:
            self.fit_previous = Halving(previous, filters) if halve else pointwise(previous, filters)
        self.fit = pointwise(inputs, filters)
        other = previous if first else filters
        self.convolutions = nn.ModuleList(
            separable(before, filters, kernel, stride, repeats)
            for before, kernel, stride in (
                (filters, 5, 2),
                (other, 7, 2),
                (other, 7, 2),
                (other, 5, 2),
                (filters, 3, 1),
            )
        )
        self.mean = nn.AvgPool2d(3, 1, padding=1, count_include_pad=False)
        self.smaller_mean = nn.AvgPool2d(3, 2, padding=1, count_include_pad=False)
        self.most = nn.MaxPool2d(3, 2, padding=1)

    def forward(self, previous: Tensor, x: Tensor) -> Tensor:
        p, x = self.fit_previous(previous), self.fit(x)
        a, b, c, d, e = self.convolutions
        first = a(x) + b(p)
        second = self.most(x) + c(p)
        third = self.smaller_mean(x) + d(p)
        return torch.cat([second, third, self.mean(first) + second, e(first) + self.most(x)], 1)


class NASNet(nn.Module):
    """Images [N, 3, H, W] to logits [N, classes]: a stem of two reductions, then three stages of `cells` normal cells
    with a reduction between them."""

    def __init__(self, cells: int, filters: int, stem: int, classes: int, repeats: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, stem, 3, 2, bias=False), nn.BatchNorm2d(stem, eps=EPS))
        quarter, half = filters // 4, filters // 2
        found: list[nn.Module] = [
            Reduction(stem, stem, quarter, halve=False, first=True, repeats=repeats),
            Reduction(stem, 4 * quarter, half, halve=True, first=False, repeats=repeats),
        ]
        previous, inputs, halve = 4 * quarter, 4 * half, True
        for stage in range(3):
            width = filters << stage
            if stage:
                found.append(Reduction(previous, inputs, width, halve=False, first=False, repeats=repeats))
                previous, inputs, halve = inputs, 4 * width, True
            for _ in range(cells):
                found.append(Normal(previous, inputs, width, halve, repeats))
                previous, inputs, halve = inputs, 6 * width, False
        self.cells = nn.ModuleList(found)
        self.head = nn.Sequential(
            nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.5), nn.Linear(inputs, classes)
        )

    def forward(self, images: Tensor) -> Tensor:
        previous = x = self.stem(images)
        for cell in self.cells:
            previous, x = x, cell(previous, x)
        return self.head(x)


def nasnet_a(*, batch: int = 64, image_size: int = 331, classes: int = 1000) -> Step:
    """NASNet-A (6 @ 4032), its largest published form; 88,753,150 parameters with 1000 classes."""
    return classification_step(NASNet(6, 168, 96, classes, repeats=2), batch, image_size, classes)


def training(*, batch: int = 64, image_size: int = 331, classes: int = 1000) -> Step:
    """NasNet-25: as wide as the published one, with 25 normal cells in each stage."""
    return classification_step(NASNet(25, 168, 96, classes, repeats=1), batch, image_size, classes)


def tiny(*, batch: int = 2, image_size: int = 64, classes: int = 10) -> Step:
    """One normal cell in each stage, 8 wide."""
    return classification_step(NASNet(1, 8, 8, classes, repeats=1), batch, image_size, classes)
