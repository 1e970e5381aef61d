"""`treadle.swapped` in a training loop: state in and out, and what is refused."""

from __future__ import annotations

import copy
import io

import msgspec
import pytest
import torch
from torch import nn

import treadle
from tests.codegen.swap.swap_plans import plan_with, swapped, timed
from tests.treadle.runtime.models import plan_of as memory_plan_of
from tests.treadle.runtime.swap.steps import Free, batch, model_of, plan_of, step_of, trace_of
from treadle.capture.graph import capture
from treadle.capture.optimizer import with_optimizer
from treadle.codegen import targets
from treadle.codegen.emit import write
from treadle.planner.documents import store
from treadle.planner.errors import CheckFailed, InputError
from treadle.runtime.swap.swapped import SwappedStep

NAME, OPTIMIZER = "tiny", "adam"


@pytest.fixture
def step() -> SwappedStep:
    return treadle.swapped(model_of(NAME), plan_of(NAME, OPTIMIZER), trace_of(NAME, OPTIMIZER), backend="cpu")


def run(step: SwappedStep, seed: int) -> torch.Tensor:
    inputs = batch(NAME, seed)
    torch.manual_seed(seed)
    return step(*inputs)


def test_a_plan_its_file_and_a_folder_do_the_same(step, tmp_path):
    store.save(plan_of(NAME, OPTIMIZER), tmp_path / "tiny.plan.json")
    store.save(trace_of(NAME, OPTIMIZER), tmp_path / "step.trace.json")
    made = targets.generate(plan_of(NAME, OPTIMIZER), "tiny.plan.json", trace_of(NAME, OPTIMIZER))
    assert made.target == "torch-swap"
    write(made, tmp_path / "made")
    losses = [run(step, seed) for seed in range(2)]
    for place in (tmp_path / "tiny.plan.json", str(tmp_path / "made")):
        again = treadle.swapped(model_of(NAME), place, backend="cpu")
        assert [run(again, seed) for seed in range(2)] == losses


def test_the_state_dict_of_the_model_is_that_of_the_last_iteration(step):
    free = Free(NAME, step.step)
    for seed in range(2):
        run(step, seed)
        free.run(seed)
    assert step.step.initial, "some are on the device between iterations"
    expected = free.model.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in step.model.state_dict().items())
    torch.save(step.model, file := io.BytesIO())
    assert file.tell()
    assert copy.deepcopy(step.model).state_dict().keys() == expected.keys()


def test_training_goes_on_from_a_saved_state(step):
    run(step, 0)
    saved = copy.deepcopy(step.state_dict())
    expected = [run(step, seed) for seed in (1, 2)]
    other = treadle.swapped(model_of(NAME), plan_of(NAME, OPTIMIZER), trace_of(NAME, OPTIMIZER), backend="cpu")
    other.load_state_dict(saved)
    assert [run(other, seed) for seed in (1, 2)] == expected
    step.load_state_dict(saved)
    assert [run(step, seed) for seed in (1, 2)] == expected, "what is on the device is replaced too"
    with pytest.raises(InputError, match="found other optimizer states"):
        step.load_state_dict({**saved, "optimizer": {}})


def test_models_that_share_a_device_do_not_disturb_each_other():
    """Each has its share of the memory and a plan of its own; residents stay while the other one runs."""
    names = ("tiny", "gpt2")
    steps = {name: SwappedStep(model_of(name), step_of(name, OPTIMIZER), "cpu", poison=True) for name in names}
    free = {name: Free(name, step_of(name, OPTIMIZER)) for name in names}
    assert all(step.step.initial for step in steps.values())
    for seed in range(3):
        for name in names:
            inputs = batch(name, seed)
            torch.manual_seed(seed)
            outputs, _ = steps[name].run(*inputs)
            expected, _ = free[name].run(seed)
            assert all(map(torch.equal, outputs, expected))


def test_values_that_the_caller_changes_are_taken_over(step):
    run(step, 0)
    name = next(step.step.persistent[key] for key in step.step.initial if key in step.step.parameters.values())
    parameter = dict(step.model.named_parameters())[name]
    with torch.no_grad():
        parameter.zero_()
    with pytest.raises(InputError, match=f"found '{name}' changed while its value is on the device; call synchronize"):
        run(step, 1)
    fresh = treadle.swapped(model_of(NAME), plan_of(NAME, OPTIMIZER), trace_of(NAME, OPTIMIZER), backend="cpu")
    run(fresh, 0)
    fresh.synchronize()
    free = Free(NAME, fresh.step)
    free.run(0)
    for model in (fresh.model, free.model):
        with torch.no_grad():
            dict(model.named_parameters())[name].mul_(0.5)
    assert torch.equal(run(fresh, 1), free.run(1)[0][0])
    fresh.model.load_state_dict(free.model.state_dict())
    assert torch.equal(run(fresh, 2), free.run(2)[0][0])


def test_what_does_not_belong_together_is_refused(step, tmp_path):
    model, plan, trace = model_of(NAME), plan_of(NAME, OPTIMIZER), trace_of(NAME, OPTIMIZER)
    with pytest.raises(InputError, match=r"treadle.swapped: found no trace, expected trace="):
        treadle.swapped(model, plan)
    with pytest.raises(InputError, match=r"found a trace other than 'step.trace.json' that the plan was made from"):
        treadle.swapped(model, plan, trace_of(NAME, "sgd"))
    with pytest.raises(InputError, match=r"treadle.swapped: found a memory plan, expected a swap plan"):
        treadle.swapped(model, memory_plan_of("mlp"))
    with pytest.raises(InputError, match=r"found a model of type int, expected a torch.nn.Module"):
        treadle.swapped(3, plan, trace)
    with pytest.raises(InputError, match="backend: found 'tpu', expected cpu or cuda"):
        treadle.swapped(model, plan, trace, backend="tpu")
    wrong = msgspec.structs.replace(plan, decisions=msgspec.structs.replace(plan.decisions, time_ns=1))
    with pytest.raises(CheckFailed, match=r"treadle.swapped: the plan fails its check"):
        treadle.swapped(model, wrong, trace)


def test_a_step_without_a_loss_is_refused():
    with pytest.raises(InputError, match="outputs: found a step without a loss, expected one"):
        SwappedStep(model_of("outputs"), step_of("outputs", "sgd"), "cpu")


class Windows(nn.Module):
    """The gradient of the convolution comes channels last, that of the window is a write into part of a storage."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.last = nn.Conv2d(3, 8, 3), nn.Linear(4, 5)
        self.turned = nn.Parameter(torch.rand(3, 2, 4).permute(2, 0, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.image(x).permute(0, 2, 3, 1).reshape(2, -1, 4) + self.turned.sum((1, 2))
        return self.last(y.as_strided((2, 3, 4), (60, 8, 1)).sin() * self.turned[0, 0, 0])


def windows():
    torch.manual_seed(0)
    x = torch.randn(2, 3, 6, 6).to(memory_format=torch.channels_last)
    return Windows(), (x,), lambda model, x: model(x).square().sum()


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_updates_are_those_of_pytorch_whatever_the_strides_of_gradients(optimizer):
    trace = timed(with_optimizer(capture(windows, "windows"), optimizer))
    model, inputs, loss = windows()
    plain = copy.deepcopy(model)
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
    updates = kinds[optimizer](plain.parameters(), lr=1e-3, fused=True)
    step = treadle.swapped(model, plan_with(swapped(trace, 1.5)), trace, backend="cpu")
    for _ in range(3):
        updates.zero_grad()
        loss(plain, *inputs).backward()
        updates.step()
        step(*inputs)
    step.synchronize()
    for a, b in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-6, atol=1e-7)
