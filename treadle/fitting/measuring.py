"""A captured step as it is planned: other implementations of its ops, and costs measured on this machine."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from msgspec.structs import replace
from torch import nn

from treadle.capture.costs import with_measured, with_measured_in_step
from treadle.capture.costs.cache import kept
from treadle.capture.costs.in_step import without_losers
from treadle.planner.documents.trace import Op, Trace
from treadle.planner.graph.implementations.convolution import with_reading


def device_of(model: nn.Module) -> torch.device:
    """The device of a model, which has parameters."""
    return next(parameter.device for parameter in model.parameters())


def plannable(captured: Trace) -> Trace:
    """A captured step with implementations that only measurements judge, and without the number of its device: ranks of
    one machine have one plan."""
    trace = with_reading(captured)
    return replace(trace, ops=tuple(map(_on_any_device, trace.ops)))


def measured(trace: Trace, device: torch.device, *, in_step: bool, report: Callable[[str], None]) -> Trace:
    """`trace` with costs of this machine, those that were measured before from the cache.

    With `in_step` calls are timed in the order of the step as well, which takes its memory and up to a minute.
    `report` is called with a line where the cache cannot be used. Raises InputError where a call of the step cannot
    run here.
    """
    place: AbstractContextManager[Any] = torch.cuda.device(device) if device.type == "cuda" else nullcontext()
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), place, kept(device.type, report=report) as known:
        if in_step:
            timed = with_measured_in_step(trace, device=device.type, known=known)
        else:
            timed = without_losers(with_measured(trace, device=device.type, known=known))
        if device.type == "cuda":
            torch.cuda.empty_cache()
        return timed


def _on_any_device(op: Op) -> Op:
    variants = tuple(replace(v, args=_placed(v.args), kwargs=_placed(v.kwargs)) for v in op.implementations)
    return replace(op, args=_placed(op.args), kwargs=_placed(op.kwargs), implementations=variants)


def _placed(tree: Any) -> Any:
    """An argument tree with `cuda` for `cuda:1`, which PyTorch takes as the current device."""
    if isinstance(tree, list | tuple):
        return tuple(map(_placed, tree)) if isinstance(tree, tuple) else list(map(_placed, tree))
    if isinstance(tree, dict):
        return {
            key: value.partition(":")[0] if key == "device" and isinstance(value, str) else _placed(value)
            for key, value in tree.items()
        }
    return tree
