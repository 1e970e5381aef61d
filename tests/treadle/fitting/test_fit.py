"""A fitted model trains as the model does, within its budget."""

from __future__ import annotations

import copy
import io
import logging
import random
import re

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import treadle
from examples import train_in_half
from tests.torch_versions import COMPILES_PAST_BREAKS
from tests.treadle.fitting.models import BATCH, WIDTH, Deep, batch_of, loss_of
from treadle.fitting.call_form import call_of
from treadle.fitting.fitted import FittedModule
from treadle.fitting.verifying import verified
from treadle.planner.errors import CheckFailed, InfeasibleError, InputError
from treadle.runtime.meter import Meter

SHARE = "0.6x"


def fitted(model: nn.Module, budget: str | int = SHARE, **settings: object) -> FittedModule:
    return treadle.fit(model, batch_of(), budget=budget, loss=loss_of, **settings)


def peak_of(model: nn.Module, step: object, batch: tuple[torch.Tensor, ...]) -> int:
    for parameter in model.parameters():
        parameter.grad = None
    with Meter(model, batch) as meter:
        step(*batch).backward()
    return meter.peak_bytes


def budget_of(model: FittedModule) -> int:
    budget = model.programs.settings.budget
    assert isinstance(budget, int)
    return budget


def test_it_trains_as_plain_pytorch_within_the_budget(caplog: pytest.LogCaptureFixture) -> None:
    plain, model = Deep(), Deep()
    with caplog.at_level(logging.INFO, "treadle.fit"):
        planned = fitted(model)
    assert planned.summary in caplog.text
    for words in ("within the budget of", "of plain PyTorch's", "one step verified", "plan in"):
        assert words in planned.summary
    optimizers = [torch.optim.Adam(each.parameters(), lr=0.01) for each in (plain, planned)]
    for seed in range(3):
        losses = []
        steps = ((plain, lambda *b: loss_of(plain, *b)), (planned, planned))
        for (_, step), optimizer in zip(steps, optimizers, strict=True):
            torch.manual_seed(seed)
            losses.append(step(*batch_of(seed=seed)))
            losses[-1].backward()
            optimizer.step()
            optimizer.zero_grad()
        assert torch.allclose(*losses, rtol=1e-5)
    for name, value in plain.state_dict().items():
        assert torch.allclose(value, planned.state_dict()[name], rtol=1e-4, atol=1e-6)
    assert peak_of(model, planned, batch_of()) <= budget_of(planned)
    assert peak_of(plain, lambda *b: loss_of(plain, *b), batch_of()) > budget_of(planned)


def test_the_model_and_the_random_numbers_are_as_before() -> None:
    model = Deep()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(3)
    random.seed(3)
    states = torch.get_rng_state(), random.getstate()
    fitted(model)
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.training


def test_parameters_state_and_attributes_are_those_of_the_model() -> None:
    model = Deep()
    planned = fitted(model)
    assert list(planned.state_dict()) == list(model.state_dict())
    assert [name for name, _ in planned.named_parameters()] == [name for name, _ in model.named_parameters()]
    assert all(a is b for a, b in zip(planned.parameters(), model.parameters(), strict=True))
    assert planned.layers is model.layers
    planned.load_state_dict(Deep().state_dict())


def test_copies_and_pickles_train_on_their_own() -> None:
    planned = fitted(Deep())
    file = io.BytesIO()
    torch.save(planned, file)
    file.seek(0)
    for other in (copy.deepcopy(planned), torch.load(file, weights_only=False)):
        torch.manual_seed(1)
        loss = other(*batch_of())
        loss.backward()
        assert peak_of(other.model, other, batch_of()) <= budget_of(other)
        assert all(parameter.grad is None for parameter in planned.parameters())


class Checkpointed(Deep):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        middle = checkpoint(self.layers[1:-1], self.layers[0](x), use_reentrant=self.reentrant)
        return self.dropout(self.layers[-1](middle))


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_in_the_model_is_left_to_the_plan(reentrant: bool) -> None:
    plain = Checkpointed(reentrant)
    planned = fitted(Checkpointed(reentrant))
    assert "of plain PyTorch's 3.827 MiB" in planned.summary
    assert "gradients and buffers of plain PyTorch equal" in planned.summary
    for step in (lambda *b: loss_of(plain, *b), planned):
        torch.manual_seed(1)
        step(*batch_of()).backward()
    for a, b in zip(plain.parameters(), planned.parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad, rtol=1e-4, atol=1e-6)


def test_gradients_accumulate() -> None:
    plain, model = Deep(), Deep()
    planned = fitted(model, hold_gradients=True, budget="0.7x")
    for seed in range(3):
        for step in (lambda *b: loss_of(plain, *b), planned):
            torch.manual_seed(seed)
            step(*batch_of(seed=seed)).backward()
    for a, b in zip(plain.parameters(), planned.parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad, rtol=1e-4, atol=1e-6)


def test_a_budget_that_plain_pytorch_keeps_needs_no_plan() -> None:
    planned = fitted(Deep(), budget="8GiB")
    assert "the model runs as it is" in planned.summary
    planned(*batch_of()).backward()


def test_an_infeasible_budget_names_the_least_one() -> None:
    with pytest.raises(InfeasibleError, match=r"\d+ bytes.*x of plain PyTorch") as raised:
        fitted(Deep(), budget=300_000)
    least = raised.value.minimum.budget_bytes
    assert fitted(Deep(), budget=least).summary


def test_evaluation_runs_the_model_itself(caplog: pytest.LogCaptureFixture) -> None:
    model = Deep()
    planned = treadle.fit(model, batch_of()[0], budget=SHARE)
    x = batch_of(rows=7)[0]
    with caplog.at_level(logging.INFO, "treadle.fit"):
        planned.eval()
        assert torch.equal(planned(x), model(x))
        assert not model.training
        planned.train()
        with torch.no_grad():
            assert planned(x).shape == x.shape
    assert not [record for record in caplog.records if record.name.startswith("treadle")]


def test_a_fitted_module_under_torch_compile_runs_its_plan() -> None:
    planned = fitted(Deep())
    expected = []
    for module in (planned, torch.compile(planned, backend="eager")):
        torch.manual_seed(1)
        expected.append(module(*batch_of()))
    assert torch.equal(*expected)
    assert peak_of(planned.model, torch.compile(planned, backend="eager"), batch_of()) <= budget_of(planned)
    if not COMPILES_PAST_BREAKS:
        with pytest.raises(RuntimeError, match=r"torch\.compile"):
            torch.compile(planned, backend="eager", fullgraph=True)(*batch_of())


def test_a_step_is_verified_where_plain_pytorch_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.fitting.verifying.free_bytes", lambda device: 1000)
    model = Deep()
    torch.manual_seed(3)
    before = torch.get_rng_state()
    planned = fitted(model)
    assert "outputs of plain PyTorch's forward pass" in planned.summary
    assert "gradients were not compared: plain PyTorch's step next to it needs" in planned.summary
    assert torch.equal(before, torch.get_rng_state())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_batch_that_is_a_slice_is_fitted_and_verified_in_its_strides() -> None:
    model = Deep()
    wide = torch.randn(BATCH, 2 * WIDTH)
    planned = treadle.fit(model, wide[:, 1::2], budget=SHARE)
    assert "outputs, gradients and buffers of plain PyTorch equal" in planned.summary
    torch.manual_seed(1)
    found = planned(wide[:, 1::2])
    torch.manual_seed(1)
    torch.testing.assert_close(found, model(wide[:, 1::2]))


def test_a_step_over_its_budget_fails_its_verification(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = fitted(Deep())
    ((_, found),) = planned.programs.known.items()
    for free in (2**40, 0):
        monkeypatch.setattr("treadle.fitting.verifying.free_bytes", lambda device, free=free: free)
        with pytest.raises(CheckFailed, match=r"peak of .* exceeds the"):
            verified(found.module, call_of(batch_of()), loss_of, found.trace, 1000)


def _compiled(model: nn.Module) -> nn.Module:
    model.compile(backend="eager")
    return model


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: torch.relu, "found a model of type builtin_function_or_method, expected a torch.nn.Module"),
        (lambda: Deep().eval(), "evaluation mode, expected training mode"),
        (lambda: Deep().to("meta"), "'layers.0.weight' is on the meta device"),
        (lambda: Deep().requires_grad_(False), "no parameter of the model requires a gradient"),
        (lambda: nn.DataParallel(Deep()), "under DataParallel"),
        (lambda: torch.compile(Deep(), backend="eager"), "under torch.compile"),
        (lambda: _compiled(Deep()), "compiled by .compile()"),
        (lambda: nn.LazyLinear(4), "'weight' has no shape yet"),
        (lambda: fitted(Deep(), budget="8GiB"), "as a fitted module, expected it plain; pass its `.model`"),
    ],
)
def test_what_cannot_be_fitted_is_refused_by_name(model: object, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        fitted(model())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"budget": "half"}, "budget: found 'half', expected a size such as 8GiB, or a share"),
        ({"budget": 0}, "budget: found 0, expected a size"),
        ({"budget": 0.5}, "budget: found 0.5, expected a size such as '8GiB', a share such as '0.5x'"),
        ({"budget": "1GiB", "reserve": "-1"}, "reserve: found '-1', which is negative"),
        ({"budget": "1GiB", "time_limit": 0}, "time_limit: found 0, expected seconds above 0"),
        ({"budget": "1GiB", "hold_gradients": 1}, "hold_gradients: found 1, expected True or False"),
        ({"budget": "1GiB", "loss": "mse"}, "loss: found a str, expected a function or None"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as raised:
        treadle.fit(Deep(), batch_of(BATCH)[0], **settings)
    assert message in str(raised.value)


class Detached(Deep):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return super().forward(x)


def test_a_step_without_gradients_is_refused() -> None:
    x = batch_of()[0]
    with torch.no_grad(), pytest.raises(InputError, match=r"found gradients disabled, as under torch.no_grad; call"):
        treadle.fit(Deep(), x, budget=SHARE)
    with pytest.raises(
        InputError, match=r"depends on a parameter by gradient, as under torch.no_grad or after"
    ) as raised:
        treadle.fit(Detached(), x, budget=SHARE)
    assert "--infer" not in str(raised.value)


X, Y = batch_of()


@pytest.mark.parametrize(
    ("example", "loss", "message"),
    [
        (batch_of(0), loss_of, "found no rows in the example batch, x float32 [0, 16], y float32 [0, 16]"),
        ({"x": X, 1: Y}, loss_of, "found the key 1 in the example batch, expected names of keyword arguments"),
        (X.numpy(), None, "found an example batch of type ndarray, expected a tensor"),
        (X.numpy(), None, "; torch.as_tensor makes a tensor of an array"),
        ((X, Y.numpy()), loss_of, "found y with a value of type ndarray, of which torch.as_tensor makes a tensor"),
        ({"x": X.numpy()}, None, "found x with a value of type ndarray, of which torch.as_tensor makes a tensor"),
        ((X, Y), F.mse_loss, "; the call was loss(model, target float32 [4096, 16], "),
        ((X, Y), lambda output: output.sum(), "expected a function loss(model, *args, **kwargs)"),
        ((X, Y), lambda model, x, y: model(x), "the loss returned tensors of shape (4096, 16), expected one scalar"),
        ((X, Y), None, "; the call was model(x float32 [4096, 16], "),
    ],
)
def test_a_call_that_is_none_is_refused_by_name(example: object, loss: object, message: str) -> None:
    with pytest.raises(InputError) as raised:
        treadle.fit(Deep(), example, budget=SHARE, loss=loss)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_list_is_taken_as_a_tuple() -> None:
    model = treadle.fit(Deep(), list(batch_of()), budget=SHARE, loss=loss_of)
    assert list(model.programs.known) == list(fitted(Deep()).programs.known)
    model(*list(batch_of())).backward()
    assert len(model.programs.known) == 1


def test_a_share_is_taken_of_plain_pytorch_and_the_reserve() -> None:
    model, reserve = Deep(), 300 * 1024
    whole, reserved = fitted(Deep(), "0.7x"), fitted(model, "0.7x", reserve=reserve)
    assert budget_of(reserved) - budget_of(whole) == pytest.approx(0.7 * reserve, abs=1)
    assert peak_of(model, reserved, batch_of()) <= budget_of(reserved) - reserve


@pytest.mark.parametrize("example", [None, (), {}, iter([])])
def test_an_example_batch_of_another_kind_is_refused(example: object) -> None:
    with pytest.raises(InputError, match="expected a tensor, a tuple of positional arguments or a dict"):
        treadle.fit(Deep(), example, budget=SHARE)


@pytest.mark.slow
def test_a_model_that_is_called_by_keyword_trains_in_half_of_its_memory(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, size in {"LAYERS": 3, "TOKENS": 64}.items():
        monkeypatch.setattr(train_in_half, name, size)
    train_in_half.main(steps=4)
    plain, planned = (line.split("losses ")[1] for line in capsys.readouterr().out.splitlines())
    assert plain.partition(",")[0] == planned.partition(",")[0]
    peaks = [float(line.split("peak ")[1].split()[0]) for line in (plain, planned)]
    assert peaks[1] <= peaks[0] / 2
