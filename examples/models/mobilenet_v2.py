"""MobileNet-V2, "MobileNetV2: Inverted Residuals and Linear Bottlenecks", width multiplier 1.

ReLU6 works out of place: in place, PyTorch saves a copy of its input for the backward pass.
"""

from __future__ import annotations

from torch import Tensor, nn

from .common import Step, classification_step, conv_bn_relu

# expansion, channels, blocks, stride of the first block (table 2 of the paper)
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


class InvertedResidual(nn.Module):
    """Widen with 1x1, filter each channel with 3x3, narrow with a linear 1x1; a shortcut where shapes agree."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        widen = [conv_bn_relu(inputs, hidden, 1, activation=nn.ReLU6())] if expansion != 1 else []
        self.body = nn.Sequential(
            *widen,
            conv_bn_relu(hidden, hidden, 3, stride, groups=hidden, activation=nn.ReLU6()),
            nn.Conv2d(hidden, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.residual else self.body(x)


class MobileNetV2(nn.Module):
    """Images [N, 3, H, W] to logits [N, classes]."""

    def __init__(self, classes: int = 1000, dropout: float = 0.2) -> None:
        super().__init__()
        layers: list[nn.Module] = [conv_bn_relu(3, 32, 3, stride=2, activation=nn.ReLU6())]
        inputs = 32
        for expansion, channels, count, stride in STAGES:
            for block in range(count):
                layers.append(InvertedResidual(inputs, channels, 1 if block else stride, expansion))
                inputs = channels
        layers.append(conv_bn_relu(inputs, 1280, 1, activation=nn.ReLU6()))
        self.features = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(dropout), nn.Linear(1280, classes))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images))


def mobilenet_v2(*, batch: int = 256, image_size: int = 224, classes: int = 1000) -> Step:
    """3,504,872 parameters with 1000 classes."""
    return classification_step(MobileNetV2(classes), batch, image_size, classes)
