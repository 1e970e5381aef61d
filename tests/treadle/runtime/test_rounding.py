"""Gradients are judged each by its own size; what is nothing but rounding is found by double precision."""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from treadle.capture.load import ModelStep
from treadle.runtime.rounding import in_double, wrong_gradients

SEED = 3
NARROW = torch.autocast("cpu", torch.bfloat16)


def backward(outputs: Tensor) -> None:
    outputs.float().square().mean().backward()


def plain(step: ModelStep, autocast: AbstractContextManager[Any] = NARROW) -> dict[str, Tensor | None]:
    """Gradients of one step, which stay in the model too."""
    torch.manual_seed(SEED)
    with autocast:
        outputs = step.run()
    backward(outputs)
    return {name: parameter.grad for name, parameter in step.model.named_parameters()}


def step_of(*layers: nn.Module) -> ModelStep:
    torch.manual_seed(0)
    for layer in layers:
        if isinstance(layer, nn.Linear):
            layer.reset_parameters()
    return ModelStep(nn.Sequential(*layers), (torch.randn(64, 16),), {}, None)


def wrong(step: ModelStep, ours: dict[str, Tensor | None], theirs: dict[str, Tensor | None], narrow: bool) -> list[str]:
    autocast = NARROW if narrow else nullcontext()
    pairs = {name: (gradient, theirs[name]) for name, gradient in ours.items()}
    return wrong_gradients(pairs, step, SEED, backward, autocast, narrow=narrow)[0]


@pytest.mark.parametrize("narrow", [True, False])
@pytest.mark.parametrize("drop", [0.0, 0.5])
def test_a_small_gradient_that_is_zero_is_wrong(narrow: bool, drop: float) -> None:
    """Its distance is far below the tolerance of the largest gradient."""
    last = nn.Linear(16, 4)
    step = step_of(nn.Linear(16, 16), nn.Tanh(), *[nn.Dropout(drop)] * bool(drop), last)
    with torch.no_grad():
        last.weight.mul_(1e-3 if narrow else 1e-4)
    ours = plain(step, NARROW if narrow else nullcontext())
    theirs = {**ours, "0.weight": torch.zeros(16, 16)}
    assert float(ours["0.weight"].abs().max()) < 1e-2 * float(ours[f"{len(step.model) - 1}.bias"].abs().max())
    assert wrong(step, ours, ours, narrow) == []
    assert wrong(step, ours, theirs, narrow) == ["0.weight"]
    assert wrong(step, ours, {**ours, "0.weight": None}, narrow) == ["0.weight"]


@pytest.mark.parametrize("narrow", [True, False])
@pytest.mark.parametrize("drop", [0.0, 0.5])
def test_a_gradient_that_is_nothing_but_rounding_is_not_wrong(narrow: bool, drop: float) -> None:
    """That of a bias before a batch norm is 0 in exact numbers; the order of rows changes what it is instead."""
    step = step_of(*[nn.Dropout(drop)] * bool(drop), nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 4))
    name = f"{len(step.model) - 4}.bias"
    autocast = NARROW if narrow else nullcontext()
    ours = plain(step, autocast)
    theirs = {**ours, name: -ours[name]}
    assert float(ours[name].abs().max()) > 0
    assert wrong(step, ours, theirs, narrow) == []
    assert wrong(step, ours, {**ours, name: ours[name] + 1}, narrow) == [name]


def test_gradients_in_double_precision_are_those_of_plain_pytorch() -> None:
    step = step_of(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 4))
    step.inputs[0].requires_grad_(True)
    exact = in_double(step, SEED, backward)
    assert step.inputs[0].grad is None
    ours = plain(copy.deepcopy(step), nullcontext())
    assert list(exact) == ["input 0", *ours]
    for name, gradient in ours.items():
        assert exact[name].dtype == torch.float64
        torch.testing.assert_close(exact[name].float(), gradient, rtol=1e-4, atol=1e-6)


def test_a_step_with_random_numbers_has_no_double() -> None:
    """Dropout would drop other elements in double precision, so nothing could be said."""
    assert in_double(step_of(nn.Linear(16, 8), nn.Dropout(0.5)), SEED, backward) == {}


def test_a_step_that_needs_single_precision_has_no_double() -> None:
    class Single(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) @ torch.ones(4, 4)

    assert in_double(step_of(Single(16, 4)), SEED, backward) == {}
