"""WResNet-152-k: ResNet-152 with k times the channels in every convolution, "Wide Residual Networks", on images as
large as ImageNet's (SwapAdvisor, section 5.1)."""

from __future__ import annotations

from .common import Step, classification_step
from .resnet50 import ResNet
from .resnet152 import BLOCKS


def training(*, wide: int = 10, batch: int = 64, image_size: int = 224, classes: int = 1000) -> Step:
    """WResNet-152-10; 5,820,386,920 parameters with 1000 classes."""
    return classification_step(ResNet(BLOCKS, 64 * wide, classes), batch, image_size, classes)


def training_4(*, batch: int = 64, image_size: int = 224, classes: int = 1000) -> Step:
    """WResNet-152-4; 936,563,944 parameters with 1000 classes."""
    return training(wide=4, batch=batch, image_size=image_size, classes=classes)


def tiny(*, batch: int = 2, image_size: int = 32, classes: int = 10) -> Step:
    """Two stages of two bottlenecks, 16 wide: the same operators in milliseconds."""
    return classification_step(ResNet((2, 2), 16, classes), batch, image_size, classes)
