"""A small step of every kind of operator that passes treat apart, `adam.json` and `step.json` with and without updates."""

import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))
        self.last = nn.Linear(64, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.conv(x))), 2).flatten(1)
        for layer in self.layers:
            x = F.dropout(F.gelu(layer(x)), 0.1)
        return self.last(x)


def step():
    inputs = torch.randn(128, 3, 8, 8), torch.randint(0, 10, (128,))
    return Net(), inputs, lambda model, x, y: F.cross_entropy(model(x), y)
