"""Recurrent layers as plain operators.

PyTorch traces them cell by cell, but for two things. On the CPU an LSTM becomes one fused call for inference, which
leaves no workspace behind, so its backward pass cannot run. And dropout between layers gets lost.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class CellByCell(TorchFunctionMode):
    """Within this mode an LSTM runs without oneDNN, and recurrent layers with dropout one after the other."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", "")
        if name not in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
            return function(*args, **(kwargs or {}))
        now = torch.backends.mkldnn
        enabled = now.enabled and name != "lstm"
        with now.flags(enabled=enabled, deterministic=now.deterministic, allow_tf32=now.allow_tf32):
            return _layer_by_layer(function, args)


def _layer_by_layer(function: Any, args: Any) -> Any:
    """What `function` returns, which has (input, state, weights, ...) or (data, batch sizes, state, weights, ...)."""
    place = 3 if isinstance(args[3], bool) else 4
    (data, *sizes), (states, weights) = args[: place - 2], args[place - 2 : place]
    biases, layers, dropout, train, bidirectional, *rest = args[place:]
    if layers == 1 or not dropout or not train:
        return function(*args)
    last = []
    for layer in range(layers):
        sides = slice(layer * (1 + bidirectional), (layer + 1) * (1 + bidirectional))
        state = states[sides] if isinstance(states, torch.Tensor) else [part[sides] for part in states]
        own = weights[layer * len(weights) // layers : (layer + 1) * len(weights) // layers]
        data = torch.dropout(data, dropout, train) if layer else data
        data, *after = function(data, *sizes, state, own, biases, 1, 0.0, train, bidirectional, *rest)
        last.append(after)
    return (data, *(torch.cat(parts) for parts in zip(*last, strict=True)))
