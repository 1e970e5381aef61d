"""VGG-16 (configuration D), "Very Deep Convolutional Networks for Large-Scale Image Recognition"."""

from __future__ import annotations

from torch import Tensor, nn

from .common import Step, classification_step

STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))


class VGG(nn.Module):
    """Images [N, 3, H, W] to logits [N, classes]; `stages` lists (channels, convolutions) between poolings."""

    def __init__(
        self,
        stages: tuple[tuple[int, int], ...] = STAGES,
        hidden: int = 4096,
        pooled: int = 7,
        classes: int = 1000,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for channels, count in stages:
            for _ in range(count):
                layers += [nn.Conv2d(inputs, channels, 3, padding=1), nn.ReLU(inplace=True)]
                inputs = channels
            layers.append(nn.MaxPool2d(2, 2))
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(pooled)
        self.classifier = nn.Sequential(
            nn.Linear(inputs * pooled * pooled, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(hidden, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(hidden, classes),
        )
        for module in self.features:
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                nn.init.zeros_(module.bias)

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.pool(self.features(images)).flatten(1))


def vgg16(*, batch: int = 176, image_size: int = 224, classes: int = 1000, dropout: float = 0.5) -> Step:
    """138,357,544 parameters with 1000 classes."""
    return classification_step(VGG(classes=classes, dropout=dropout), batch, image_size, classes)


def tiny(*, batch: int = 4, image_size: int = 32, classes: int = 10, dropout: float = 0.0) -> Step:
    """Three stages, 8 to 32 channels."""
    model = VGG(((8, 1), (16, 2), (32, 2)), hidden=64, pooled=2, classes=classes, dropout=dropout)
    return classification_step(model, batch, image_size, classes)
