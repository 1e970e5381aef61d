"""Calls of a model, and what of them a plan depends on.

Two calls have one form if everything that a captured step fixes is the same: the tree of arguments, shapes, dtypes,
strides and devices of tensors, the other values, and of the model its parameters' layout, modes, autocast, attributes
and hooks.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from treadle.capture.load import ModelStep, name_of, parameters_of
from treadle.fitting.model_state import Attributes, attributes_of, hooks_of
from treadle.fitting.settings import WHERE
from treadle.planner.errors import InputError
from treadle.runtime.values import EXPECTED, take_apart, tensors_of

NAMED_TENSORS = 4
"""Tensors that the text of a form lists."""


class ModelCall(NamedTuple):
    """One call of the model: positional and keyword arguments."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def call_of(example: object) -> ModelCall:
    """An example batch as a call: a tensor, a tuple or list of positional arguments, or a mapping of keywords."""
    if isinstance(example, Tensor):
        return ModelCall((example,), {})
    if isinstance(example, tuple | list) and example:
        return ModelCall(tuple(example), {})
    if isinstance(example, Mapping) and example:
        for name in example:
            if not isinstance(name, str):
                text = f"found the key {name!r} in the example batch, expected names of keyword arguments"
                raise InputError(text, where=WHERE)
        return ModelCall((), dict(example))
    expected = "expected a tensor, a tuple of positional arguments or a dict of keyword arguments"
    found = "an empty" if isinstance(example, tuple | list | Mapping) else "an example batch of type"
    advice = "; torch.as_tensor makes a tensor of an array" if type(example).__module__ == "numpy" else ""
    raise InputError(f"found {found} {type(example).__name__}, {expected}{advice}", where=WHERE)


@dataclass(frozen=True)
class CallForm:
    """`fixed` has everything but the sizes of tensors, which `sizes` has in order, and the `attributes` and hooks of
    model and loss; `text` is for people."""

    fixed: Hashable
    attributes: Attributes
    sizes: tuple[tuple[int, ...], ...]
    text: str = field(compare=False)

    @property
    def is_empty(self) -> bool:
        """Whether no tensor of the call has an element, as in a batch without rows."""
        return bool(self.sizes) and all(0 in size for size in self.sizes)

    def within(self, other: CallForm) -> bool:
        """Whether it is `other` with sizes that are no larger."""
        pairs = zip(self.sizes, other.sizes, strict=False)
        return (self.fixed, self.attributes) == (other.fixed, other.attributes) and all(
            len(mine) == len(theirs) and all(a <= b for a, b in zip(mine, theirs, strict=True))
            for mine, theirs in pairs
        )


def form_of(model: nn.Module, call: ModelCall, loss: Callable[..., Any] | None = None) -> CallForm:
    """The form of a call of `model`, or of `loss(model, ...)`, as both are now; arguments by place and by keyword have
    one form. Raises InputError for an argument that no capture can hold."""

    def refuse(place: str, kind: str) -> None:
        raise InputError(f"found {place} with {kind}, {EXPECTED}", where=WHERE)

    if "_flat_param" in model._parameters:
        advice = "call FullyShardedDataParallel(fitted, use_orig_params=True), or fully_shard(fitted)"
        raise InputError(f"found the parameters of the model inside one flat parameter; {advice}", where=WHERE)
    tensors: list[Tensor] = []
    arguments = _by_name(call, parameters_of(ModelStep(model, *call, loss)))
    tree = [[name, take_apart(arguments[name], tensors, refuse, name)] for name in sorted(arguments)]
    layouts = tuple((t.dtype, t.layout, t.device, t.requires_grad, _order(t)) for t in tensors)
    attributes = (*attributes_of(model, loss), *hooks_of(model))
    sizes = tuple(tuple(tensor.shape) for tensor in tensors)
    return CallForm((repr(tree), layouts, *_state(model)), attributes, sizes, _text(arguments))


def _by_name(call: ModelCall, names: Sequence[str]) -> dict[str, Any]:
    """The arguments by name. A name that is given twice, which no function takes, has two entries."""
    by_place = {name_of(index, names): value for index, value in enumerate(call.args)}
    return by_place | {f"{name} again" if name in by_place else name: value for name, value in call.kwargs.items()}


def _text(arguments: Mapping[str, Any]) -> str:
    found = [
        (name if tensor is value else "", tensor) for name, value in arguments.items() for tensor in tensors_of(value)
    ]
    texts = [f"{name} {str(t.dtype).removeprefix('torch.')} {list(t.shape)}".lstrip() for name, t in found]
    more = f" and {len(texts) - NAMED_TENSORS} more" if len(texts) > NAMED_TENSORS else ""
    return ", ".join(texts[:NAMED_TENSORS]) + more


def _order(tensor: Tensor) -> Hashable:
    """The strides of a tensor without its sizes where it is contiguous in a memory format, else its strides."""
    if tensor.is_contiguous():
        return "contiguous"
    channels_last = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    return "channels last" if channels_last else tensor.stride()


def _state(model: nn.Module) -> tuple[Hashable, ...]:
    parameters = tuple((name, p.dtype, p.shape, p.requires_grad) for name, p in model.named_parameters())
    buffers = tuple((name, b.dtype, b.shape, b.requires_grad) for name, b in model.named_buffers())
    evaluating = tuple(name for name, module in model.named_modules() if not module.training)
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    on = torch.is_autocast_enabled(device.type)
    return parameters, buffers, evaluating, device, str(torch.get_autocast_dtype(device.type)) if on else None
