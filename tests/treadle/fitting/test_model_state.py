"""Attributes and hooks of modules that change after a model was fitted: what runs is never what was there before."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import treadle
from tests.treadle.fitting.models import Deep, batch_of, loss_of
from treadle.capture.live import capture_model
from treadle.fitting import programs
from treadle.fitting.fitted import FittedModule
from treadle.fitting.model_state import attributes_of, first_difference, hooks_of, key_of
from treadle.fitting.programs import PlannedForm

SCALE = 1.0


class Settable(Deep):
    """Its attributes are those that users change: a number, a flag, settings of layers, a configuration, a function."""

    def __init__(self) -> None:
        super().__init__()
        self.k = 1.0
        self.config = SimpleNamespace(scale=1.0, sizes=[1, 2])
        self.activation: Callable[[Tensor], Tensor] = torch.sin

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(super().forward(x) * self.k * self.config.scale * self.config.sizes[0])


def fitted_and_plain() -> tuple[FittedModule, Settable]:
    return treadle.fit(Settable(), batch_of(), budget="0.6x", loss=loss_of), Settable()


def same_step(fitted: FittedModule, plain: nn.Module, loss: Callable[..., Tensor] = loss_of) -> bool:
    losses = []
    for step in (fitted, lambda *batch: loss(plain, *batch)):
        torch.manual_seed(1)
        losses.append(step(*batch_of()))
        losses[-1].backward()
    gradients = zip(fitted.parameters(), plain.parameters(), strict=True)
    same = all(torch.allclose(a.grad, b.grad, rtol=1e-4, atol=1e-7) for a, b in gradients)
    fitted.zero_grad()
    plain.zero_grad()
    return same and torch.allclose(*losses, rtol=1e-5)


def is_planned(fitted: FittedModule) -> bool:
    return isinstance(next(reversed(fitted.programs.known.values())), PlannedForm)


def test_a_changed_attribute_gets_a_plan_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    fitted, plain = fitted_and_plain()
    for change in (
        lambda model: setattr(model, "k", 2.0),
        lambda model: setattr(model.dropout, "p", 0.5),
        lambda model: setattr(model.config, "scale", 3.0),
        lambda model: model.config.sizes.__setitem__(0, 2),
        lambda model: setattr(model, "activation", torch.cos),
    ):
        count = len(fitted.programs.known)
        change(fitted)
        change(plain)
        assert same_step(fitted, plain)
        assert len(fitted.programs.known) == count + 1
        assert is_planned(fitted)
        assert same_step(fitted, plain)
        assert len(fitted.programs.known) == count + 1
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_an_attribute_set_on_the_fitted_module_reaches_the_model() -> None:
    fitted, _ = fitted_and_plain()
    fitted.k, fitted.new, fitted._private = 5.0, "word", 1
    assert (fitted.model.k, fitted.model.new, fitted.k, fitted.new, fitted._private) == (5.0, "word", 5.0, "word", 1)
    assert not hasattr(fitted.model, "_private")
    fitted.dropout = nn.Dropout(0.2)
    assert fitted.model.dropout.p == 0.2
    assert list(fitted.state_dict()) == list(Settable().state_dict())


def test_a_number_that_the_loss_takes_from_outside_is_part_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = [1.0]
    factor = 1.0

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return loss_of(model, x, y) * weights[0] * factor * SCALE

    fitted, plain = treadle.fit(Deep(), batch_of(), budget="0.6x", loss=loss), Deep()
    weights[0] = 2.0
    assert same_step(fitted, plain, loss)
    factor = 3.0
    assert same_step(fitted, plain, loss)
    monkeypatch.setitem(globals(), "SCALE", 4.0)
    assert same_step(fitted, plain, loss)
    assert len(fitted.programs.known) == 4


def test_an_attribute_that_always_changes_runs_as_the_model_itself(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "MOST_STATES", 2)
    fitted, plain = fitted_and_plain()
    for step in range(5):
        fitted.k = plain.k = float(step)
        assert same_step(fitted, plain)
    assert len(fitted.programs.known) == 2
    assert caplog.text.count("k has another value in each call") == 1


class Completing(Settable):
    """Its first call completes the configuration, as that of some models of Transformers."""

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self.config, "kind"):
            self.config.kind = "regression"
        return super().forward(x)


def test_a_configuration_that_the_first_call_completes_needs_no_second_plan() -> None:
    fitted = treadle.fit(Completing(), batch_of(), budget="0.6x", loss=loss_of)
    assert same_step(fitted, Completing())
    assert len(fitted.programs.known) == 1


class Counting(Deep):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.seen: dict[str, int] = {}

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        self.seen["rows"] = len(x)
        self.constant = 1
        return super().forward(x)


def test_attributes_that_the_step_sets_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    fitted = treadle.fit(Counting(), batch_of(), budget="0.6x", loss=loss_of)
    fitted(*batch_of()).backward()
    assert caplog.text.count("the step sets ") == 1
    (line,) = [record.getMessage() for record in caplog.records if "the step sets" in record.getMessage()]
    assert sorted(line.split("sets ")[1].split(", which")[0].split(", ")) == ["constant", "count", "seen"]
    assert fitted.count == 0
    assert not fitted.seen


def test_a_recurrent_layer_sets_nothing_that_a_plan_leaves_out() -> None:
    names: list[str] = []
    capture_model(nn.GRU(4, 4), (torch.ones(2, 3, 4),), note=names.append)
    assert not names


@pytest.mark.parametrize(
    ("register", "kind"),
    [
        (lambda module, seen: module.register_forward_hook(lambda m, i, o: seen.append(1) or o * 2), "forward hook"),
        (lambda module, seen: module.register_forward_pre_hook(lambda m, i: seen.append(1)), "forward pre-hook"),
        (lambda module, seen: module.register_full_backward_hook(lambda m, i, o: seen.append(1)), "backward hook"),
        (lambda module, seen: module.register_full_backward_pre_hook(lambda m, o: seen.append(1)), "backward pre-hook"),
    ],
)
def test_a_hook_is_reported_once_and_its_operators_are_planned(
    register: Callable[..., Any], kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[int] = []
    fitted, plain = fitted_and_plain()
    handles = [register(model.layers[2], seen) for model in (fitted, plain)]
    assert same_step(fitted, plain)
    assert is_planned(fitted)
    seen.clear()
    fitted(*batch_of()).backward()
    assert not seen
    fitted.zero_grad()
    assert caplog.text.count(f"found a {kind} on module 'layers.2'") == 1
    for handle in handles:
        handle.remove()
    assert same_step(fitted, plain)
    assert len(fitted.programs.known) == 2


def test_hooks_are_reported_before_training_starts(caplog: pytest.LogCaptureFixture) -> None:
    model = Deep()
    nn.utils.spectral_norm(model.layers[2])
    assert not hooks_of(model)
    model.register_forward_hook(lambda module, args, output: None)
    treadle.fit(model, batch_of(), budget="0.6x", loss=loss_of)
    assert "found a forward hook on the model: a plan has what hooks compute on tensors" in caplog.text


def test_keys_are_equal_for_equal_values_only() -> None:
    def number(k: float) -> Callable[[], float]:
        return lambda: k

    different: list[Any] = [
        1,
        1.0,
        True,
        None,
        "1",
        [1],
        (1,),
        (True,),
        (1.0,),
        ([1],),
        {"a": 1},
        {"a": 2},
        {1},
        torch.float32,
        torch.float16,
        torch.sin,
        torch.cos,
        number(1.0),
        number(2.0),
        functools.partial(torch.sin, 1),
        functools.partial(torch.sin, 2),
        Deep,
    ]
    assert len({key_of(value) for value in different}) == len(different)
    assert key_of(number(1.0)) == key_of(number(1.0))
    assert key_of([torch.ones(1), object()]) == key_of([torch.zeros(2), object()])


def test_the_name_of_a_changed_attribute_is_found() -> None:
    model = Settable()
    before = attributes_of(model)
    model.layers[1].approximate = "tanh"
    assert first_difference(before, attributes_of(model)) == "layers.1.approximate"
    del model.k
    model.layers[1].approximate = "none"
    assert first_difference(before, attributes_of(model)) == "k"


def test_an_object_that_refers_to_itself_has_a_key() -> None:
    model = Settable()
    model.config.own = model.config
    model.config.all = [model.config, {"config": model.config}]
    hash(attributes_of(model))
