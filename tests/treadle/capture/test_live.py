"""A live model is captured on example arguments and is as before afterwards."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from treadle.capture.graph import capture
from treadle.capture.live import capture_model, completed
from treadle.planner.documents import store
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import InputError


@dataclass
class Batch:
    pixels: Tensor
    scale: float


class Net(nn.Module):
    """Writes attributes and buffers, and draws random numbers, as real models do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.dropout = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)
        self.calls = 0
        self.seen: list[Tensor] = []

    def forward(self, batch: Batch, labels: Tensor | None = None, *, smooth: bool = False) -> Any:
        self.calls += 1
        hidden = self.dropout(self.norm(self.layer(batch.pixels))) * batch.scale
        self.seen.append(hidden)
        self.last = hidden
        if labels is None:
            return hidden
        return {"loss": (hidden - labels).square().mean(), "logits": hidden, "cache": object()}


def call() -> dict[str, Any]:
    return {"labels": torch.randn(4, 8), "batch": Batch(torch.randn(4, 8), 2.0)}


def test_the_model_is_as_before() -> None:
    torch.manual_seed(0)
    model, arguments = Net(), call()
    model.dropout.eval()
    before = {
        name: (tensor, tensor.clone(), tensor._version) for name, tensor in model.state_dict(keep_vars=True).items()
    }
    model.layer.weight.grad = torch.ones(8, 8)
    modes = [module.training for module in model.modules()]
    generator, python = torch.get_rng_state(), random.getstate()
    for mode in ("train", "infer"):
        capture_model(model, (), arguments, mode=mode)  # type: ignore[arg-type]
    assert torch.equal(generator, torch.get_rng_state())
    assert python == random.getstate()
    assert modes == [module.training for module in model.modules()]
    assert (model.calls, model.seen, hasattr(model, "last")) == (0, [], False)
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())
    assert torch.equal(model.layer.weight.grad, torch.ones(8, 8))
    for name, tensor in model.state_dict(keep_vars=True).items():
        held, values, version = before[name]
        assert tensor is held
        assert tensor._version == version
        assert torch.equal(tensor, values)


def test_an_error_leaves_the_model_as_before_too() -> None:
    model = Net()
    with pytest.raises(InputError, match="cannot be traced"):
        capture_model(model, (), {**call(), "labels": torch.randn(3, 8)}, name="net")
    assert (model.calls, model.seen, model.training) == (0, [], True)


def test_the_call_is_recorded_with_its_constants() -> None:
    trace = capture_model(Net(), (), call())
    assert trace.called is not None
    assert trace.called.args == ()
    assert trace.called.kwargs == {
        "labels": {"tensor": "input_0"},
        "batch": {"object": [f"{__name__}:Batch", [["pixels", {"tensor": "input_1"}], ["scale", 2.0]]]},
    }
    assert trace.called.parameters == ("batch", "labels")
    assert trace.entry is None
    assert store.loads(store.dumps(trace), "trace.json", Trace) == trace


def test_the_backward_pass_starts_from_the_loss_that_the_model_returns() -> None:
    """The other outputs have no tangents, and None is in the place of what no tree has."""
    trace = capture_model(Net(), (), call())
    assert len(trace.tangents) == 1
    assert trace.tangent_of == (0,)
    loss, logits = trace.outputs
    assert trace.returned == {"dict": [["loss", {"tensor": loss}], ["logits", {"tensor": logits}], ["cache", None]]}
    assert not any(op.target == "aten.clone.default" for op in trace.ops)


def test_a_live_model_is_captured_as_the_function_that_makes_it_is() -> None:
    def make() -> tuple[nn.Module, tuple[Tensor, ...]]:
        return nn.Sequential(nn.Linear(8, 4), nn.ReLU()), (torch.randn(2, 8),)

    model, inputs = make()
    live, made = capture_model(model, inputs, name="net"), completed(capture(make, "net"))
    assert (live.tensors, live.called) == (made.tensors, made.called)
    assert [op.target for op in live.ops] == [op.target for op in made.ops]


def test_a_tensor_given_twice_is_two_inputs() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x * self.weight + y

    same = torch.randn(3)
    trace = capture_model(Both(), (same,), {"y": same})
    assert trace.inputs == ("input_0", "input_1")
    assert trace.called is not None
    assert trace.called.kwargs == {"y": {"tensor": "input_1"}}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"batch": {"pixels": {1, 2}}}, r"batch\['pixels'\] with a value of type set"),
        ({"batch": [torch.ones(1), object()]}, r"batch\[1\] with a value of type object"),
        ({"labels": lambda: None}, "labels with a value of type function"),
    ],
)
def test_an_argument_that_no_tree_has_is_named(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        capture_model(Net(), (), arguments)
