"""Checkpointing of a model is left out of its capture, with either value of `use_reentrant`."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.utils import checkpoint

from treadle.capture.live import capture_model
from treadle.planner.errors import InputError


class Checkpointed(nn.Module):
    """Rows [N, 8] to rows [N, 8]; the middle is under a checkpoint unless `reentrant` is None."""

    def __init__(self, reentrant: bool | None, frozen: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(8, 8).requires_grad_(not frozen)
        self.middle = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 8))
        self.last = nn.Linear(8, 8)
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.reentrant is None:
            return self.last(self.middle(x))
        return self.last(checkpoint.checkpoint(self.middle, x, use_reentrant=self.reentrant))


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_is_left_out(reentrant: bool) -> None:
    before = checkpoint.CheckpointFunction, checkpoint._checkpoint_without_reentrant_generator
    x = torch.randn(64, 8)
    found = capture_model(Checkpointed(reentrant), (x,))
    assert found == capture_model(Checkpointed(None), (x,))
    assert found.plain_peak_bytes
    assert before == (checkpoint.CheckpointFunction, checkpoint._checkpoint_without_reentrant_generator)


def test_a_reentrant_checkpoint_without_a_gradient_among_its_arguments_has_none() -> None:
    """As in plain PyTorch, which warns of it."""
    model, x = Checkpointed(reentrant=True, frozen=True), torch.randn(64, 8)
    with warnings.catch_warnings(action="ignore"):
        model(x).sum().backward()
    trained = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    trace = capture_model(model, (x,))
    names = {tensor.id: tensor.name for tensor in trace.tensors}
    assert {names[tensor.gradient_of] for tensor in trace.tensors if tensor.gradient_of} == trained
    assert trained == {"last.weight", "last.bias"}


class Raising(Checkpointed):
    def forward(self, x: Tensor) -> Tensor:
        def fails(x: Tensor) -> Tensor:
            raise ValueError("out of luck")

        result: Tensor = checkpoint.checkpoint(fails, x, use_reentrant=False)
        return result


def test_an_error_inside_a_checkpoint_is_that_of_the_model() -> None:
    with pytest.raises(InputError, match="ValueError: out of luck"):
        capture_model(Raising(None), (torch.randn(2, 8),))
