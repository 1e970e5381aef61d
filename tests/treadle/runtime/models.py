"""Steps that the runtime's tests train, and plans for them."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from typing import Literal

import msgspec
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from examples.models import gpt2, lstm_lm, unet
from tests.planner.plans import memory_plan
from treadle.capture.costs import with_roofline
from treadle.capture.graph import capture
from treadle.planner import resources
from treadle.planner.documents import store
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.trace import Trace
from treadle.planner.passes.memory.check import check
from treadle.planner.passes.memory.minimum import least_budget
from treadle.planner.passes.memory.planning import MemoryOptions, decide


class ConvNet(nn.Module):
    """Batch normalisation, dropout and a shortcut; one module is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.block = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.dropout = nn.Dropout(0.3)
        self.output = nn.Linear(8 * 4 * 4, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.stem(images))
        x = x + self.dropout(self.block(x))
        x = x + self.dropout(self.block(F.max_pool2d(x, 2)).repeat_interleave(2, -1).repeat_interleave(2, -2))
        return self.output(self.dropout(F.max_pool2d(x, 4).flatten(1)))


def classify(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(model(images), labels)


def convnet():
    return ConvNet(), (torch.randn(4, 3, 16, 16), torch.randint(10, (4,))), classify


def mlp():
    """Without a loss: the caller makes it from two outputs, one of which the backward pass reads."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4), nn.Sigmoid())
    return model, (torch.randn(5, 6),)


def gpt2_dropout():
    return gpt2.step(gpt2.Config(layers=2, heads=2, width=32, vocabulary=64, context=16, dropout=0.2), 2, 16)


def lstm():
    return lstm_lm.tiny(words=3)


STEPS = {
    "gpt2": gpt2.tiny,
    "gpt2_dropout": gpt2_dropout,
    "convnet": convnet,
    "lstm": lstm,
    "unet": unet.tiny,
    "mlp": mlp,
}


@cache
def trace_of(name: str) -> Trace:
    hardware = store.load(resources.locate("profiles", "cpu-2x2"), Hardware)
    return with_roofline(capture(STEPS[name], name), hardware)


@cache
def plan_of(name: str, share: Fraction | Literal["least"] = Fraction(1)) -> Plan:
    """A plan within a share of the store-all peak, or one of the least feasible peak."""
    if share != "least":
        return memory_plan(trace_of(name), share, options=MemoryOptions(gap=0.1))
    everything = plan_of(name)
    minimum = least_budget(everything.decisions.problem)
    problem = msgspec.structs.replace(everything.decisions.problem, budget_bytes=minimum.budget_bytes)
    decisions = decide(problem, minimum.schedule)
    assert not check(decisions)
    return msgspec.structs.replace(everything, decisions=decisions)
