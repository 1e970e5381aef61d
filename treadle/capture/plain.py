"""Memory of a step in plain PyTorch: its peak of live tensor bytes, with what autograd itself saves.

The step runs as a user's script runs it, forward and `backward()`, on fake tensors under the meter that measures real
steps, so the figure is exact and needs no memory. Checkpointing that the model has is left out, as in the plan.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from treadle.capture.checkpoints import without_checkpoints
from treadle.runtime.meter import Meter
from treadle.runtime.values import differentiated


class _Exact(Meter):
    """Refuses calls whose results have another size on fake tensors: recurrent layers with a workspace of their own."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "rnn" in func.name():
            raise NotImplementedError(f"{func} has a workspace that only a real call makes")
        return super().__torch_dispatch__(func, types, args, kwargs)


def plain_peak(run: Callable[[], Any], existing: list[Tensor]) -> int | None:
    """Peak in bytes of one training step that starts with `run`, which returns what the step returns.

    `existing` are parameters, buffers and inputs; they count, and so do gradients. None where the step cannot run on
    fake tensors.
    """
    try:
        with without_checkpoints(), _Exact(existing) as meter:
            outputs = differentiated(run())
            tangents = [torch.ones_like(output) for output in outputs]
            with torch.autocast(outputs[0].device.type, enabled=False):
                torch.autograd.backward(outputs, tangents)
    except Exception:  # whatever a user's code raises: the figure is only for comparison
        return None
    return meter.peak_bytes
