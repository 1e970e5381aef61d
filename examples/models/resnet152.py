"""ResNet-152, "Deep Residual Learning for Image Recognition", for inference."""

from __future__ import annotations

import torch

from .common import Step
from .resnet50 import ResNet

BLOCKS = (3, 8, 36, 3)


def inference(*, batch: int = 1, image_size: int = 224, classes: int = 1000) -> Step:
    """60,192,808 parameters with 1000 classes; the step gives the logits of a batch of images."""
    return ResNet(BLOCKS, classes=classes), (torch.randn(batch, 3, image_size, image_size),), None


def tiny(*, batch: int = 2, image_size: int = 32, classes: int = 10) -> Step:
    """Two stages of two bottlenecks, 8 wide: the same operators in milliseconds."""
    return ResNet((2, 2), 8, classes), (torch.randn(batch, 3, image_size, image_size),), None
