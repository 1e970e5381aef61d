"""Models that deep-copy layers while they are built can be captured."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest
import torch
from torch import nn

from treadle.capture.graph import capture
from treadle.planner.errors import InputError


def copied():
    first = nn.Linear(4, 4)
    second = copy.deepcopy(first)
    second.bias.requires_grad_(False)
    return nn.Sequential(first, second, copy.deepcopy(second)), (torch.randn(2, 4),)


def encoder():
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return nn.TransformerEncoder(layer, 2), (torch.randn(2, 4, 16),)


def test_copies_are_parameters_of_their_own():
    trace = capture(copied, "copied")
    names = [tensor.name for tensor in trace.tensors if tensor.role == "parameter"]
    assert names == ["0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias"]
    assert len(trace.gradient_order) == 4


def test_the_encoder_of_pytorch_is_captured():
    trace = capture(encoder, "encoder")
    assert sum(tensor.role == "parameter" for tensor in trace.tensors) == 24
    assert len(trace.gradient_order) == 24


def test_deepcopy_is_as_before_afterwards():
    before = torch.Tensor.__deepcopy__
    capture(copied, "copied")
    assert torch._subclasses.fake_tensor.FakeTensor.__deepcopy__ is before


def layers():
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))


with torch.device("meta"):
    MADE_BEFORE = layers(), (torch.empty(3, 4),)


def on_meta():
    with torch.device("meta"):
        return layers(), (torch.randn(3, 4),)


BUILT = {
    "under a device": on_meta,
    "by argument": lambda: (nn.Sequential(nn.Linear(4, 6, device="meta"), *layers()[1:]), (torch.empty(3, 4),)),
    "moved": lambda: (layers().to("meta"), (torch.empty(3, 4, device=torch.device("meta")),)),
    "before": lambda: MADE_BEFORE,
}


@pytest.mark.parametrize("how", BUILT)
def test_a_model_on_the_meta_device_is_captured_as_on_the_cpu(how):
    assert capture(BUILT[how], "x") == capture(lambda: (layers(), (torch.randn(3, 4),)), "x")


class Draws(nn.Module):
    """A branch by a number that does not come from PyTorch."""

    def __init__(self, draw):
        super().__init__()
        self.layer, self.draw, self.own = nn.Linear(4, 4), draw, np.random.default_rng(0)

    def forward(self, x):
        return self.layer(x) if self.draw(self) < 0.5 else x


DRAWS = {
    "Python's module random": lambda model: random.random(),
    "numpy.random": lambda model: np.random.rand(),
    "the attribute 1.own": lambda model: model.own.random(),
}


@pytest.mark.parametrize("name", DRAWS)
def test_random_numbers_from_elsewhere_are_refused_by_name(name):
    def function():
        return nn.Sequential(nn.Linear(4, 4), Draws(DRAWS[name])), (torch.randn(2, 4),)

    with pytest.raises(InputError, match=f"draws random numbers from {name}, which would be the same in every step"):
        capture(function, "x")
    assert capture(lambda: (Draws(lambda model: 0), (torch.randn(2, 4),)), "x").ops


@pytest.mark.parametrize("loss", ["mse_loss", "smooth_l1_loss", "binary_cross_entropy", "soft_margin_loss", "l1_loss"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_memory_of_a_loss_is_that_of_its_kernel(loss: str, reduction: str) -> None:
    function = getattr(nn.functional, loss)
    real = function(torch.rand(8, 4), torch.rand(8, 4), reduction=reduction)
    trace = capture(
        lambda: (nn.Sigmoid(), (torch.rand(8, 4, requires_grad=True), torch.rand(8, 4)), _with(loss, reduction)), loss
    )
    (output,) = [tensor for tensor in trace.tensors if tensor.id in trace.outputs]
    assert (output.storage_bytes or output.bytes) == real.untyped_storage().nbytes()
    (tangent,) = [tensor for tensor in trace.tensors if tensor.role == "tangent"]
    assert tangent.storage_bytes is None


def _with(loss: str, reduction: str):
    def reduced(model, x, y):
        return getattr(nn.functional, loss)(model(x), y, reduction=reduction)

    return reduced
