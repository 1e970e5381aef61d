"""U-Net, "U-Net: Convolutional Networks for Biomedical Image Segmentation", in the padded form with batch
normalisation that is in common use: the output is as large as the input, and both sides must divide by 2^depth.

Parameters at width 64, depth 4, 3 channels in and 2 classes out. A block from i to o channels has two 3x3 convolutions
without bias and two batch normalisations, 9io + 9oo + 4o:

    down  3-64 38,848   64-128 221,696   128-256 885,760   256-512 3,540,992   512-1024 14,159,872
    up    1024-512 7,079,936   512-256 1,770,496   256-128 442,880   128-64 110,848
    up-convolutions 2x2 with bias, 4io + o:  2,097,664 + 524,544 + 131,200 + 32,832
    output 1x1 with bias 130                                                        sum 31,037,698
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .common import Step, conv_bn_relu


def double_conv(inputs: int, outputs: int) -> nn.Sequential:
    """Two 3x3 convolutions, each with batch normalisation and ReLU."""
    return nn.Sequential(conv_bn_relu(inputs, outputs, 3), conv_bn_relu(outputs, outputs, 3))


class UNet(nn.Module):
    """Images [N, channels, H, W] to logits [N, classes, H, W]."""

    def __init__(self, channels: int = 3, classes: int = 2, width: int = 64, depth: int = 4) -> None:
        super().__init__()
        widths = [width << level for level in range(depth + 1)]
        self.down = nn.ModuleList([double_conv(i, o) for i, o in zip([channels, *widths], widths, strict=False)])
        self.pool = nn.MaxPool2d(2)
        steps = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.upsample = nn.ModuleList([nn.ConvTranspose2d(i, o, 2, stride=2) for i, o in steps])
        self.up = nn.ModuleList([double_conv(i, o) for i, o in steps])
        self.output = nn.Conv2d(width, classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        x = self.down[0](images)
        skips = []
        for block in list(self.down)[1:]:
            skips.append(x)
            x = block(self.pool(x))
        for upsample, block in zip(self.upsample, self.up, strict=True):
            x = block(torch.cat([skips.pop(), upsample(x)], 1))
        return self.output(x)


def segmentation_loss(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Mean cross entropy over the pixels; `labels` [N, H, W]."""
    return F.cross_entropy(model(images), labels)


def unet(*, batch: int = 11, height: int = 608, width: int = 416, classes: int = 2) -> Step:
    """31,037,698 parameters with 2 classes; the default sizes are those of MONeT, section 4.5."""
    images = torch.randn(batch, 3, height, width)
    labels = torch.randint(classes, (batch, height, width))
    return UNet(classes=classes), (images, labels), segmentation_loss


def tiny(*, batch: int = 2, height: int = 32, width: int = 48, classes: int = 2) -> Step:
    """Two levels, 8 channels at the top."""
    _, inputs, loss = unet(batch=batch, height=height, width=width, classes=classes)
    return UNet(classes=classes, width=8, depth=2), inputs, loss
