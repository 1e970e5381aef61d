"""Run a trace op by op from its recorded arguments: the plainest executor there is, for comparison with PyTorch."""

from __future__ import annotations

from typing import Any

import torch

from treadle.capture.load import ModelStep
from treadle.capture.operator_calls import call
from treadle.planner.documents.trace import Trace


def replay(trace: Trace, step: ModelStep) -> dict[str, Any]:
    """Every tensor of the trace by id, from the weights and inputs of `step`; tangents are ones."""
    named = dict(step.model.named_parameters()) | dict(step.model.named_buffers())
    values: dict[str, Any] = dict(zip(trace.inputs, step.inputs, strict=True))
    for tensor in trace.tensors:
        if tensor.role in ("parameter", "buffer"):
            values[tensor.id] = named[tensor.name].detach().clone()
        elif tensor.role == "tangent":
            values[tensor.id] = torch.ones(tensor.shape, dtype=getattr(torch, tensor.dtype))
    with torch.no_grad():
        for op in trace.ops:
            for key, result in zip(op.outputs, call(op, values), strict=True):
                if key is not None:
                    values[key] = result
    return values
