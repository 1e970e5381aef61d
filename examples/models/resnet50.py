"""ResNet-50, "Deep Residual Learning for Image Recognition", with the stride on the 3x3 convolution (v1.5)."""

from __future__ import annotations

from torch import Tensor, nn

from .common import Step, classification_step, conv_bn_relu


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions around a shortcut; the shortcut projects where the shape changes."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.reduce = conv_bn_relu(inputs, width, 1)
        self.spatial = conv_bn_relu(width, width, 3, stride)
        self.expand = nn.Sequential(nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs))
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = self.expand(self.spatial(self.reduce(x)))
        return self.relu(y + self.shortcut(x))


class ResNet(nn.Module):
    """Images [N, 3, H, W] to logits [N, classes]; `blocks` bottlenecks in each of the stages."""

    def __init__(self, blocks: tuple[int, ...] = (3, 4, 6, 3), width: int = 64, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv_bn_relu(3, width, 7, stride=2), nn.MaxPool2d(3, stride=2, padding=1))
        stages: list[nn.Module] = []
        inputs = width
        for stage, count in enumerate(blocks):
            for block in range(count):
                stages.append(Bottleneck(inputs, width << stage, stride=2 if stage and not block else 1))
                inputs = (width << stage) * Bottleneck.expansion
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.pool(self.stages(self.stem(images))).flatten(1))


def resnet50(*, batch: int = 184, image_size: int = 224, classes: int = 1000) -> Step:
    """25,557,032 parameters with 1000 classes."""
    return classification_step(ResNet(classes=classes), batch, image_size, classes)


def tiny(*, batch: int = 4, image_size: int = 32, classes: int = 10) -> Step:
    """Two stages of two bottlenecks, 8 wide: the same operators in milliseconds."""
    return classification_step(ResNet((2, 2), width=8, classes=classes), batch, image_size, classes)
