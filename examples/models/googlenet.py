"""GoogLeNet, "Going Deeper with Convolutions", as commonly trained today: batch normalisation after every convolution
and 3x3 convolutions in place of the 5x5 ones."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .common import Step, classification_step, conv_bn_relu

EPS = 1e-3

# inputs, 1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5, pool projection ("Going Deeper with Convolutions", table 1)
INCEPTION = {
    "3a": (192, 64, 96, 128, 16, 32, 32),
    "3b": (256, 128, 128, 192, 32, 96, 64),
    "4a": (480, 192, 96, 208, 16, 48, 64),
    "4b": (512, 160, 112, 224, 24, 64, 64),
    "4c": (512, 128, 128, 256, 24, 64, 64),
    "4d": (512, 112, 144, 288, 32, 64, 64),
    "4e": (528, 256, 160, 320, 32, 128, 128),
    "5a": (832, 256, 160, 320, 32, 128, 128),
    "5b": (832, 384, 192, 384, 48, 128, 128),
}


class Inception(nn.Module):
    """Four branches side by side, joined along the channels."""

    def __init__(self, inputs: int, c1: int, r3: int, c3: int, r5: int, c5: int, pool: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            [
                conv_bn_relu(inputs, c1, 1, eps=EPS),
                nn.Sequential(conv_bn_relu(inputs, r3, 1, eps=EPS), conv_bn_relu(r3, c3, 3, eps=EPS)),
                nn.Sequential(conv_bn_relu(inputs, r5, 1, eps=EPS), conv_bn_relu(r5, c5, 3, eps=EPS)),
                nn.Sequential(nn.MaxPool2d(3, 1, padding=1), conv_bn_relu(inputs, pool, 1, eps=EPS)),
            ]
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def auxiliary(inputs: int, classes: int) -> nn.Sequential:
    """Classifier on an intermediate feature map, used during training only."""
    return nn.Sequential(
        nn.AdaptiveAvgPool2d(4),
        conv_bn_relu(inputs, 128, 1, eps=EPS),
        nn.Flatten(),
        nn.Linear(128 * 4 * 4, 1024),
        nn.ReLU(inplace=True),
        nn.Dropout(0.7),
        nn.Linear(1024, classes),
    )


class GoogLeNet(nn.Module):
    """Images [N, 3, H, W] to logits [N, classes]; with `aux` to (logits, logits after 4a, logits after 4d)."""

    def __init__(self, classes: int = 1000, aux: bool = False, dropout: float = 0.2) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            conv_bn_relu(3, 64, 7, stride=2, eps=EPS),
            nn.MaxPool2d(3, 2, ceil_mode=True),
            conv_bn_relu(64, 64, 1, eps=EPS),
            conv_bn_relu(64, 192, 3, eps=EPS),
            nn.MaxPool2d(3, 2, ceil_mode=True),
        )
        self.inception = nn.ModuleDict({name: Inception(*widths) for name, widths in INCEPTION.items()})
        self.pool3 = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.pool4 = nn.MaxPool2d(2, 2, ceil_mode=True)
        self.aux = nn.ModuleDict({"4a": auxiliary(512, classes), "4d": auxiliary(528, classes)} if aux else {})
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(dropout), nn.Linear(1024, classes))

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, ...]:
        x = self.stem(images)
        extra = []
        for name, block in self.inception.items():
            x = block(x)
            if name in self.aux:
                extra.append(self.aux[name](x))
            if name == "3b":
                x = self.pool3(x)
            elif name == "4e":
                x = self.pool4(x)
        logits = self.head(x)
        return (logits, *extra) if extra else logits


def auxiliary_loss(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of the main output plus 0.3 times that of each auxiliary one (section 5 of the paper)."""
    logits, *extra = model(images)
    return F.cross_entropy(logits, labels) + 0.3 * sum(F.cross_entropy(x, labels) for x in extra)


def googlenet(*, batch: int = 320, image_size: int = 224, classes: int = 1000, aux: bool = False) -> Step:
    """6,624,904 parameters with 1000 classes; 13,004,888 with the auxiliary classifiers."""
    model, inputs, loss = classification_step(GoogLeNet(classes, aux), batch, image_size, classes)
    return model, inputs, auxiliary_loss if aux else loss
