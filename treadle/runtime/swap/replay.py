"""The same step without a limit on memory: its calls in the order of the model, each result in memory of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from treadle.runtime.swap.step import SwapStep, tensors_of


def replay(
    step: SwapStep, persistent: Mapping[str, Tensor], inputs: Sequence[Tensor], device: torch.device
) -> tuple[list[Tensor], dict[str, Tensor]]:
    """The outputs of one iteration and the gradients by parameter; `persistent` storages are updated in place. A value
    is freed after its last use, as PyTorch does."""
    calls = step.calls(device)
    values: dict[str, Any] = {**persistent, **dict(zip(step.inputs, inputs, strict=True))}
    values.update({name: torch.ones_like(step.storages[name].empty(device)) for name in step.tangents})
    last = {name: call.name for call in calls.values() for name in (*tensors_of(call), *_made(call.outputs))}
    held = {*values, *step.outputs, *step.gradients.values(), *(value for _, value in step.updates)}
    with torch.no_grad():
        for call in calls.values():
            for name, result in zip(call.outputs, call.run(values), strict=True):
                if name is not None:
                    values[name] = result
            for name in {*tensors_of(call), *_made(call.outputs)} - held:
                if last[name] == call.name:
                    del values[name]
        for buffer, value in step.updates:
            values[buffer].copy_(values[value])
    return [values[name] for name in step.outputs], {name: values[key] for name, key in step.gradients.items()}


def _made(outputs: Sequence[str | None]) -> list[str]:
    return [name for name in outputs if name is not None]
