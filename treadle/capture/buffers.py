"""Buffers that a step sets to another tensor, as in `self.average = 0.9 * self.average + y.mean(0)`.

Each step of PyTorch leaves such a module with a new tensor; here its value counts as the buffer's new one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from treadle.planner.errors import InputError


@contextmanager
def new_values(model: nn.Module, where: str) -> Iterator[dict[str, Tensor]]:
    """Filled as the block ends: the tensors, without history, to which the block set buffers of `model`, by the first
    name of each buffer.

    Raises InputError, naming what it is about, where the block adds or removes buffers or parameters, sets a parameter,
    or sets a buffer to a tensor of another shape or dtype, or to one that requires a gradient.
    """
    found: dict[str, Tensor] = {}
    parameters, buffers = _named(model)
    yield found
    later_parameters, later = _named(model)
    for kind, old, new in (("parameter", parameters, later_parameters), ("buffer", buffers, later)):
        for name in sorted(old.keys() ^ new.keys()):
            what = (
                f"removes {kind} {name!r}; keep it" if name in old else f"adds {kind} {name!r}; do it before the step"
            )
            raise InputError(f"the step {what}", where=where)
    for name, tensor in parameters.items():
        if later_parameters[name] is not tensor:
            raise InputError(f"the step sets parameter {name!r} to another tensor; do it outside the step", where=where)
    first: dict[int, str] = {}
    for name, tensor in buffers.items():
        owner, value = first.setdefault(id(tensor), name), later[name]
        if value is tensor and owner not in found:
            continue
        if found.setdefault(owner, value) is not value:
            text = f"the step sets one of the buffers {owner!r} and {name!r}, which were one tensor; set both to one"
            raise InputError(text, where=where)
        if value.requires_grad:
            text = f"the step writes a value that requires a gradient into buffer {name}; write its detach() instead"
            raise InputError(text, where=where)
        if (value.dtype, value.shape) != (tensor.dtype, tensor.shape):
            was, now = (f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)}" for t in (tensor, value))
            raise InputError(f"the step sets buffer {name!r} of {was} to a tensor of {now}; keep its type", where=where)


def _named(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    named = model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)
    return dict[str, Tensor](named[0]), dict[str, Tensor](named[1])
