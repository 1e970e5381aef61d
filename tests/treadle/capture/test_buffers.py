"""Buffers that a step sets to other tensors are updated as PyTorch updates them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.treadle.capture.replay import replay
from treadle.capture.graph import capture
from treadle.capture.load import build_step
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import InputError

Forward = Callable[[Any, Tensor], Any]


class Averages(nn.Module):
    def __init__(self, step: Forward) -> None:
        super().__init__()
        self.layer, self.step = nn.Linear(4, 4), step
        self.register_buffer("a", torch.ones(4))
        self.register_buffer("b", torch.full((4,), 2.0))

    def forward(self, x: Tensor) -> Any:
        return self.step(self, x)


def function(step: Forward) -> Callable[[], Any]:
    return lambda: (Averages(step), (torch.linspace(-1, 1, 12).view(3, 4),))


def average(self: Any, x: Tensor) -> Tensor:
    y = self.layer(x)
    self.a = self.a * 0.9 + y.detach().mean(0) * 0.1
    return y - self.a


def swap(self: Any, x: Tensor) -> Tensor:
    y = self.layer(x)
    self.a, self.b = self.b, self.a
    return y * self.a + self.b


def shift(self: Any, x: Tensor) -> Tensor:
    y = self.layer(x)
    self.a = self.b
    self.b = self.b * 0.5 + y.detach().mean(0)
    return y * self.a + self.b


def one_for_both(self: Any, x: Tensor) -> Tensor:
    y = self.layer(x)
    self.b = self.a = y.detach().mean(0)
    return y * self.a


def views(self: Any, x: Tensor) -> Tensor:
    y = self.layer(x)
    self.a, self.b = x[0], y.detach()[1]
    return y + self.a


def expanded(self: Any, x: Tensor) -> Tensor:
    y = self.layer(x)
    self.a = y.detach().mean().expand(4)
    return y * self.a


def in_place_first(self: Any, x: Tensor) -> Tensor:
    y = self.layer(x)
    self.a.mul_(0.5).add_(1)
    self.a = self.a * 2
    self.b.add_(1)
    return y * self.a + self.b


def returned(self: Any, x: Tensor) -> Any:
    y, old = self.layer(x), self.a
    self.a = y.detach()[0]
    return old.view(2, 2), self.a, y


@pytest.mark.parametrize(
    "step", [average, swap, shift, one_for_both, views, expanded, in_place_first, returned], ids=lambda s: s.__name__
)
def test_a_buffer_that_is_set_to_another_tensor_is_an_update(step: Forward) -> None:
    trace = capture(function(step), "averages")
    plain, replayed = (build_step(function(step), "averages") for _ in range(2))
    plain.model.load_state_dict(replayed.model.state_dict())
    for _ in range(3):
        values = replay(trace, replayed)
        results = plain.model(*plain.inputs)
        results = results if isinstance(results, tuple) else (results,)
        for key, result in zip(trace.outputs, results, strict=True):
            torch.testing.assert_close(values[key], result.detach(), rtol=0, atol=0)
        write_back(trace, values, replayed.model)
        for name, buffer in plain.model.named_buffers():
            assert torch.equal(replayed.model.get_buffer(name), buffer), name
    assert trace.updates


def write_back(trace: Trace, values: dict[str, Tensor], model: nn.Module) -> None:
    names = {tensor.id: tensor.name for tensor in trace.tensors}
    for buffer, value in trace.updates:
        model.get_buffer(names[buffer] or "").copy_(values[value])


def test_the_new_value_is_not_copied() -> None:
    trace = capture(function(average), "averages")
    assert not [op.target for op in trace.ops if "clone" in op.target or "copy" in op.target]


def with_history(self: Any, x: Tensor) -> Tensor:
    self.a = self.layer(x).mean(0)
    return self.layer(x)


def other_shape(self: Any, x: Tensor) -> Tensor:
    self.a = self.layer(x).detach()
    return self.layer(x)


def added(self: Any, x: Tensor) -> Tensor:
    self.register_buffer("c", x)
    return self.layer(x)


def removed(self: Any, x: Tensor) -> Tensor:
    del self.a
    return self.layer(x)


def parameter(self: Any, x: Tensor) -> Tensor:
    y = self.layer(x)
    self.layer.bias = nn.Parameter(y.detach()[0])
    return y


REFUSED = {
    "with history": (with_history, r"into buffer a; write its detach\(\) instead"),
    "other shape": (other_shape, r"sets buffer 'a' of float32 \[4\] to a tensor of float32 \[3, 4\]"),
    "added": (added, "adds buffer 'c'; do it before the step"),
    "removed": (removed, "removes buffer 'a'; keep it"),
    "parameter": (parameter, "sets parameter 'layer.bias' to another tensor; do it outside the step"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_update_is_refused_by_name(name: str) -> None:
    step, message = REFUSED[name]
    with pytest.raises(InputError, match=f"^models:step: .*{message}"):
        capture(function(step), "models:step")


def test_buffers_of_one_tensor_stay_one() -> None:
    def apart(self: Any, x: Tensor) -> Tensor:
        self.a = self.a + 1
        return self.layer(x)

    def tied() -> Any:
        model, inputs = function(apart)()
        model.b = model.a
        return model, inputs

    with pytest.raises(InputError, match="one of the buffers 'a' and 'b', which were one tensor"):
        capture(tied, "models:step")
