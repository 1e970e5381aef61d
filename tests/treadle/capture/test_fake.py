"""Models that deep-copy layers while they are built can be captured."""

from __future__ import annotations

import copy

import torch
from torch import nn

from treadle.capture.graph import capture


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
