"""What the image classifiers share."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Step = tuple[nn.Module, tuple[Tensor, ...], Callable[..., Tensor] | None]


def classification_loss(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Mean cross entropy of `model(images)` [N, classes] against `labels` [N]."""
    return F.cross_entropy(model(images), labels)


def classification_step(model: nn.Module, batch: int, image_size: int, classes: int) -> Step:
    """One training step of an image classifier on a random batch of RGB images [batch, 3, image_size, image_size]."""
    images = torch.randn(batch, 3, image_size, image_size)
    labels = torch.randint(classes, (batch,))
    return model, (images, labels), classification_loss


def conv_bn_relu(
    inputs: int,
    outputs: int,
    kernel: int,
    stride: int = 1,
    groups: int = 1,
    eps: float = 1e-5,
    activation: nn.Module | None = None,
) -> nn.Sequential:
    """Convolution without bias, batch normalisation, activation (ReLU unless given); stride 1 keeps the size."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs, eps=eps),
        activation or nn.ReLU(inplace=True),
    )
