"""The peak of a plain step, found on fake tensors, is the one that the meter measures in a real step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from examples.models import gpt2, lstm_lm, unet, vgg16
from treadle.capture.graph import capture
from treadle.runtime.meter import Meter


class Two(nn.Module):
    """Two outputs, one without history, dropout, and a buffer that the step writes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.drop(torch.relu(self.norm(self.first(x))))
        return y, y.detach().argmax(1)


def two() -> Any:
    return Two(), (torch.randn(64, 8),)


@pytest.mark.parametrize("make", [two, gpt2.tiny, unet.tiny, vgg16.tiny])
def test_the_peak_of_a_plain_step_is_what_a_real_one_takes(make: Any) -> None:
    model, inputs, *loss = make()
    with Meter(model, inputs) as meter:
        found = loss[0](model, *inputs) if loss else model(*inputs)[0]
        found.backward(torch.ones_like(found))
        del found
    assert capture(make, "step").plain_peak_bytes == meter.peak_bytes


def test_a_workspace_that_only_a_real_call_makes_leaves_it_unknown() -> None:
    assert capture(lstm_lm.tiny, "step").plain_peak_bytes is None
    assert capture(gpt2.tiny, "step", "infer").plain_peak_bytes is None
