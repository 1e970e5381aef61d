"""What a generated step covers: another model, other inputs or another mode are refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from treadle.planner.errors import InputError


class Named(Protocol):
    """A step by what errors call it."""

    @property
    def name(self) -> str: ...


class Expected(Named, Protocol):
    """What a call must be like, in the terms of `treadle.runtime.planned_step.PlannedStep`."""

    @property
    def inputs(self) -> list[list[Any]]: ...
    @property
    def places(self) -> list[str]: ...
    @property
    def frozen(self) -> list[str]: ...
    @property
    def evaluating(self) -> list[str]: ...
    @property
    def autocast(self) -> str | None: ...


def require_alike(step: Named, kind: str, found: Mapping[str, Tensor], expected: Mapping[str, list[Any]]) -> None:
    """Raises InputError unless the model's parameters or buffers have the names, types and shapes of the step's."""
    for name in sorted(found.keys() ^ expected.keys()):
        text = f"no {kind} {name!r}" if name in expected else f"{kind} {name!r}, which the plan does not know"
        raise InputError(f"found {text}, expected the model that was captured", where=step.name)
    for name, tensor in found.items():
        _require_like(step, f"{kind} {name!r}", tensor, expected[name])


def require_covered(step: Expected, model: nn.Module, parameters: Mapping[str, Tensor], inputs: Sequence[Any]) -> None:
    """Raises InputError for a call with other inputs, or in another mode, than the step was captured for."""
    _require_modes(step, model)
    if len(inputs) != len(step.inputs):
        raise InputError(f"found {len(inputs)} inputs, expected {len(step.inputs)}", where=step.name)
    for place, tensor, (dtype, shape, stride) in zip(step.places, inputs, step.inputs, strict=True):
        if not isinstance(tensor, Tensor):
            raise InputError(f"found {place} of type {type(tensor).__name__}, expected a tensor", where=step.name)
        _require_like(step, place, tensor, [dtype, shape])
        if any(n > 1 and a != b for n, a, b in zip(shape, tensor.stride(), stride, strict=True)):
            expected = f"expected {stride} as when the step was captured{_how_to_get(shape, stride)}"
            raise InputError(f"found {place} of strides {list(tensor.stride())}, {expected}", where=step.name)
    leaves = {**parameters, **{f"input {index}": tensor for index, tensor in enumerate(inputs)}}
    places = {f"input {index}": place for index, place in enumerate(step.places)}
    first = next(iter(leaves))
    device = leaves[first].device
    for name, tensor in leaves.items():
        shown = places.get(name, name)
        if tensor.device != device:
            expected = f"expected {device} as {places.get(first, first)!r}"
            raise InputError(f"found {shown!r} on {tensor.device}, {expected}", where=step.name)
        if tensor.requires_grad and torch.is_grad_enabled() and name in step.frozen:
            expected = "expected it frozen as when the step was captured; capture and plan again"
            raise InputError(f"found {shown!r} requiring a gradient, {expected}", where=step.name)
    dtype = str(torch.get_autocast_dtype(device.type)).removeprefix("torch.")
    autocast = dtype if torch.is_autocast_enabled(device.type) else None
    if autocast != step.autocast:
        found, expected = (f"autocast to {dtype}" if dtype else "autocast off" for dtype in (autocast, step.autocast))
        raise InputError(f"found {found}, expected {expected} as when the step was captured", where=step.name)


def _require_modes(step: Expected, model: nn.Module) -> None:
    for name, module in model.named_modules():
        if module.training == (name in step.evaluating):
            modes = ("training", "evaluation") if module.training else ("evaluation", "training")
            what = f"module {name!r} in {modes[0]} mode" if name else f"{modes[0]} mode"
            advice = "capture and plan again" if name or module.training else "evaluate with `.model`"
            text = f"found {what}, expected {modes[1]} mode as when the step was captured; {advice}"
            raise InputError(text, where=step.name)


def _how_to_get(shape: list[int], stride: list[int]) -> str:
    """Advice on how a tensor gets these strides, if a memory format has them."""
    for memory_format in (torch.contiguous_format, torch.channels_last, torch.channels_last_3d):
        if torch.empty_strided(shape, stride, device="meta").is_contiguous(memory_format=memory_format):
            argument = "" if memory_format == torch.contiguous_format else f"memory_format={memory_format}"
            return f"; try .contiguous({argument})"
    return "; capture and plan again"


def _require_like(step: Named, what: str, tensor: Tensor, expected: list[Any]) -> None:
    found = [str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
    if found != expected:
        text = f"found {what} of {found[0]} {found[1]}, expected {expected[0]} {expected[1]}; capture and plan again"
        raise InputError(text, where=step.name)
