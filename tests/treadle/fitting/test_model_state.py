"""Attributes and hooks of modules that change after a model was fitted: what runs is never what was there before."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import treadle
from tests.treadle.fitting.models import Deep, batch_of, loss_of
from treadle.capture.live import capture_model
from treadle.fitting import programs
from treadle.fitting.call_form import call_of, form_of
from treadle.fitting.fitted import FittedModule
from treadle.fitting.model_state import attributes_of, first_difference, hooks_of, not_compared
from treadle.fitting.programs import PlannedForm
from treadle.fitting.value_key import key_of

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


@dataclass
class Inner:
    beta: float = 1.0


class Criterion:
    """A loss with state, and a counter that it does not read."""

    rate = 1.0

    def __init__(self) -> None:
        self.inner, self.steps = [Inner()], 0

    @property
    def beta(self) -> float:
        return self.inner[0].beta * self.rate

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return loss_of(model, x, y) * self.beta

    __call__ = loss


class CriterionModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.beta = 1.0

    def forward(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return loss_of(model, x, y) * self.beta


SETTINGS = SimpleNamespace(beta=1.0)


def scaled(loss: Tensor) -> Tensor:
    return loss * SETTINGS.beta


def with_helper(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return sum((scaled(loss) for loss in [loss_of(model, x, y)]), torch.zeros(()))


def test_the_state_of_the_loss_is_part_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    criterion, module = Criterion(), CriterionModule()
    losses: list[Callable[..., Tensor]] = [
        criterion.loss,
        criterion,
        module,
        lambda model, x, y: criterion.loss(model, x, y),
        with_helper,
        functools.partial(criterion.loss),
    ]
    model = Deep()
    before = [attributes_of(model, loss) for loss in losses]
    assert not any([*not_compared(each)] for each in before)
    criterion.steps += 1
    assert before == [attributes_of(model, loss) for loss in losses]
    for part in (criterion.inner[0], module, SETTINGS):
        monkeypatch.setattr(part, "beta", 2.0)
    after = [attributes_of(model, loss) for loss in losses]
    assert all(old != new for old, new in zip(before, after, strict=True))
    monkeypatch.setattr(Criterion, "rate", 3.0)
    assert attributes_of(model, criterion) not in (before[1], after[1])


def test_a_loss_that_changes_is_never_the_one_before() -> None:
    criterion = Criterion()
    fitted, plain = treadle.fit(Deep(), batch_of(), budget="0.6x", loss=criterion.loss), Deep()
    criterion.inner[0].beta = 5.0
    criterion.steps += 1
    assert same_step(fitted, plain, criterion.loss)
    assert len(fitted.programs.known) == 2


class Slotted:
    __slots__ = ("a",)

    def __init__(self) -> None:
        self.a = 1.0


class Nested(Deep):
    alpha = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(inner=Inner(), all=[Inner()], slotted=Slotted())
        self.array = np.ones(2)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * SCALE


def test_attributes_are_compared_at_every_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Nested()
    found = [attributes_of(model)]
    for thing, name in (
        (model.config.inner, "beta"),
        (model.config.all[0], "beta"),
        (model.config.slotted, "a"),
        (Nested, "alpha"),
    ):
        monkeypatch.setattr(thing, name, 5.0)
        found.append(attributes_of(model))
    model.array[0] = 5
    found.append(attributes_of(model))
    monkeypatch.setitem(globals(), "SCALE", 4.0)
    found.append(attributes_of(model))
    assert len(set(found)) == len(found)
    assert attributes_of(model) == found[-1]


def test_what_cannot_be_compared_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    model = Deep()
    model.table = np.zeros(5000)
    model.places = iter([1])
    treadle.fit(model, batch_of(), budget="0.6x", loss=loss_of)
    assert caplog.text.count("table, places cannot be compared in each call") == 1


def test_a_buffer_of_another_size_is_another_call() -> None:
    model = Deep()
    model.register_buffer("mask", torch.ones(1))
    call = call_of(batch_of(2))
    before = form_of(model, call)
    model.mask.fill_(2.0)
    assert form_of(model, call) == before
    model.mask = torch.ones(2)
    assert form_of(model, call) != before


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
    model.config.all += [model.config.all] * 100
    hash(attributes_of(model))
    assert not [*not_compared(attributes_of(model))]


def test_a_value_of_very_many_objects_is_reported() -> None:
    model = Settable()
    model.config.rows = [[[i, j] for j in range(100)] for i in range(100)]
    assert [*not_compared(attributes_of(model))] == ["config"]
