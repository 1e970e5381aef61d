"""The one step that fit makes to verify a plan: what it finds, and what it leaves as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import treadle
from tests.treadle.fitting.models import Deep, batch_of, loss_of
from treadle.planner.errors import CheckFailed
from treadle.runtime.memory import verify
from treadle.runtime.planned_module import PlannedModule


def without_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """No room for a copy of the model: fit compares the outputs of the model's own step."""
    monkeypatch.setattr("treadle.fitting.verifying.free_bytes", lambda device: 0)


class Counting(Deep):
    """Returns a large whole number too, of which one is within the tolerance of floating point."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(x).square().mean(), (x > -100).sum() * 1_000_000


@pytest.mark.parametrize("room", [True, False])
def test_a_whole_number_that_is_nearly_right_is_wrong(room: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not room:
        without_room(monkeypatch)
    x, _ = batch_of()
    real = PlannedModule.forward

    def off_by_one(self: PlannedModule, *args: Any, **kwargs: Any) -> Any:
        loss, count = real(self, *args, **kwargs)
        return loss, count + 1

    treadle.fit(Counting(), x, budget="0.6x")
    monkeypatch.setattr(PlannedModule, "forward", off_by_one)
    with pytest.raises(CheckFailed, match=r"output 1 differs from plain PyTorch's by 1, its largest is 6\.55e\+10"):
        treadle.fit(Counting(), x, budget="0.61x")


def test_layers_without_gradients_are_found_under_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their gradients are within the tolerance of bfloat16 of the model's largest one."""
    model, real = Deep(), verify._planned
    with torch.no_grad():
        model.layers[2].weight.mul_(0.05)

    def stopped(text: str, trace: Any) -> Any:
        def program(copied: nn.Module) -> Any:
            copied.layers[0].weight.register_hook(torch.zeros_like)
            return real(text, trace)(copied)

        return program

    monkeypatch.setattr(verify, "_planned", stopped)
    wanted = r"the gradient of 'layers\.0\.weight' differs"
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(CheckFailed, match=wanted):
        # bfloat16 kernels of some processors have work memory, so that 0.6x is not reached everywhere
        treadle.fit(model, batch_of(), budget="0.75x", loss=lambda m, x, y: F.mse_loss(m(x).float(), y))


@pytest.mark.parametrize("room", [True, False])
def test_the_batch_has_no_gradient_afterwards(room: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not room:
        without_room(monkeypatch)
    x, y = batch_of()
    x.requires_grad_(True)
    planned = treadle.fit(Deep(), (x, y), budget="0.6x", loss=loss_of)
    assert "one step verified" in planned.summary
    assert x.grad is None
