"""Inception-v4, "Inception-v4, Inception-ResNet and the Impact of Residual Connections on Learning", and Inception-k
with k times the channels in every convolution (SwapAdvisor, section 5.1)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .common import Step, classification_step

# outputs, kernel, stride, padding
Layer = tuple[int, tuple[int, int], int, tuple[int, int]]


def conv(outputs: int, *kernel: int, stride: int = 1, same: bool = True) -> Layer:
    """A convolution of a square kernel or of `kernel` rows and columns; with `same` it keeps the size at stride 1."""
    rows, columns = kernel if len(kernel) == 2 else (*kernel, *kernel)
    return outputs, (rows, columns), stride, (rows // 2, columns // 2) if same else (0, 0)


class Builder:
    """Makes layers `wide` times as wide as they say; images have 3 channels all the same."""

    def __init__(self, wide: int) -> None:
        self.wide = wide

    def layers(self, inputs: int, *layers: Layer) -> nn.Sequential:
        """Convolutions one after the other, each with batch normalisation and ReLU."""
        found: list[nn.Module] = []
        for outputs, kernel, stride, padding in layers:
            before = inputs if inputs == 3 else inputs * self.wide
            after = outputs * self.wide
            found += [
                nn.Conv2d(before, after, kernel, stride, padding, bias=False),
                nn.BatchNorm2d(after, eps=1e-3),
                nn.ReLU(inplace=True),
            ]
            inputs = outputs
        return nn.Sequential(*found)

    def pooled(self, inputs: int, outputs: int) -> nn.Sequential:
        """Mean of the neighbours, then a convolution of one pixel."""
        return nn.Sequential(
            nn.AvgPool2d(3, 1, padding=1, count_include_pad=False), self.layers(inputs, conv(outputs, 1))
        )


class Side(nn.Module):
    """Branches side by side, joined along the channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def half() -> nn.MaxPool2d:
    return nn.MaxPool2d(3, 2)


def stem(make: Builder) -> nn.Sequential:
    """Images to [N, 384 k, 35, 35] for 299 pixels (figure 3)."""
    return nn.Sequential(
        make.layers(3, conv(32, 3, stride=2, same=False), conv(32, 3, same=False), conv(64, 3)),
        Side(half(), make.layers(64, conv(96, 3, stride=2, same=False))),
        Side(
            make.layers(160, conv(64, 1), conv(96, 3, same=False)),
            make.layers(160, conv(64, 1), conv(64, 1, 7), conv(64, 7, 1), conv(96, 3, same=False)),
        ),
        Side(make.layers(192, conv(192, 3, stride=2, same=False)), half()),
    )


def inception_a(make: Builder) -> nn.Module:
    """Figure 4, 384 channels to 384."""
    return Side(
        make.layers(384, conv(96, 1)),
        make.layers(384, conv(64, 1), conv(96, 3)),
        make.layers(384, conv(64, 1), conv(96, 3), conv(96, 3)),
        make.pooled(384, 96),
    )


def reduction_a(make: Builder) -> nn.Module:
    """Figure 7, 384 channels to 1024 of half the size."""
    return Side(
        make.layers(384, conv(384, 3, stride=2, same=False)),
        make.layers(384, conv(192, 1), conv(224, 3), conv(256, 3, stride=2, same=False)),
        half(),
    )


def inception_b(make: Builder) -> nn.Module:
    """Figure 5, 1024 channels to 1024."""
    return Side(
        make.layers(1024, conv(384, 1)),
        make.layers(1024, conv(192, 1), conv(224, 1, 7), conv(256, 7, 1)),
        make.layers(1024, conv(192, 1), conv(192, 7, 1), conv(224, 1, 7), conv(224, 7, 1), conv(256, 1, 7)),
        make.pooled(1024, 128),
    )


def reduction_b(make: Builder) -> nn.Module:
    """Figure 8, 1024 channels to 1536 of half the size."""
    return Side(
        make.layers(1024, conv(192, 1), conv(192, 3, stride=2, same=False)),
        make.layers(1024, conv(256, 1), conv(256, 1, 7), conv(320, 7, 1), conv(320, 3, stride=2, same=False)),
        half(),
    )


def inception_c(make: Builder) -> nn.Module:
    """Figure 6, 1536 channels to 1536."""

    def split(inputs: int) -> nn.Module:
        return Side(make.layers(inputs, conv(256, 1, 3)), make.layers(inputs, conv(256, 3, 1)))

    return Side(
        make.layers(1536, conv(256, 1)),
        nn.Sequential(make.layers(1536, conv(384, 1)), split(384)),
        nn.Sequential(make.layers(1536, conv(384, 1), conv(448, 3, 1), conv(512, 1, 3)), split(512)),
        make.pooled(1536, 256),
    )


class InceptionV4(nn.Module):
    """Images [N, 3, H, W] to logits [N, classes]; `blocks` of the kinds A, B and C (figure 9)."""

    def __init__(self, wide: int, classes: int, blocks: tuple[int, int, int] = (4, 7, 3)) -> None:
        super().__init__()
        make = Builder(wide)
        a, b, c = blocks
        self.features = nn.Sequential(
            stem(make),
            *(inception_a(make) for _ in range(a)),
            reduction_a(make),
            *(inception_b(make) for _ in range(b)),
            reduction_b(make),
            *(inception_c(make) for _ in range(c)),
        )
        self.head = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(1536 * wide, classes)
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images))


def training(*, wide: int = 4, batch: int = 64, image_size: int = 299, classes: int = 1000) -> Step:
    """Inception-4."""
    return classification_step(InceptionV4(wide, classes), batch, image_size, classes)


def inception_v4(*, batch: int = 64, image_size: int = 299, classes: int = 1000) -> Step:
    """42,679,816 parameters with 1000 classes."""
    return training(wide=1, batch=batch, image_size=image_size, classes=classes)


def tiny(*, batch: int = 2, image_size: int = 96, classes: int = 10) -> Step:
    """One block of each kind."""
    return classification_step(InceptionV4(1, classes, (1, 1, 1)), batch, image_size, classes)
