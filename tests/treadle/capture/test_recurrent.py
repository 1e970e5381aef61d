"""Recurrent layers are captured with a backward pass that runs, and with the dropout between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.treadle.capture.replay import replay
from treadle.capture.graph import capture
from treadle.capture.load import build_step

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "lstm": lambda: nn.LSTM(4, 6),
    "lstm, bidirectional": lambda: nn.LSTM(4, 6, bidirectional=True, batch_first=True),
    "lstm, projected": lambda: nn.LSTM(4, 6, proj_size=3),
    "lstm, dropout": lambda: nn.LSTM(4, 6, 2, dropout=0.5, bidirectional=True),
    "gru, dropout": lambda: nn.GRU(4, 6, 2, dropout=0.5, bias=False),
    "rnn, dropout, batch first": lambda: nn.RNN(4, 6, 2, dropout=0.5, batch_first=True),
    "lstm, dropout, evaluating": lambda: nn.LSTM(4, 6, 2, dropout=0.5).eval(),
}


def loss(model: nn.Module, x: Tensor) -> Tensor:
    y, last = model(x)
    return y.square().sum() + sum(part.sin().sum() for part in (last if isinstance(last, tuple) else (last,)))


@pytest.mark.parametrize("name", LAYERS)
def test_replay_equals_pytorch(name: str) -> None:
    def function() -> Any:
        torch.manual_seed(0)
        return LAYERS[name](), (torch.randn(2, 2, 4),), loss

    trace = capture(function, name)
    step = build_step(function, name)
    torch.manual_seed(6)
    values = replay(trace, step)
    torch.manual_seed(6)
    expected = loss(step.model, *step.inputs)
    expected.backward()
    torch.testing.assert_close(values[trace.outputs[0]], expected.detach())
    names = {tensor.id: tensor.name for tensor in trace.tensors}
    gradients = {names[t.gradient_of]: values[t.id] for t in trace.tensors if t.gradient_of is not None}
    for key, parameter in step.model.named_parameters():
        torch.testing.assert_close(gradients[key], parameter.grad)
