"""Models that cannot be fitted, each refused with what to do, before anything is captured."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from treadle.fitting.settings import WHERE
from treadle.planner.errors import InputError
from treadle.runtime.wrappers import require_unwrapped


def require_fittable(model: object) -> nn.Module:
    """`model`. Raises InputError for what is no model, and for one that is compiled, wrapped, sharded, without memory,
    frozen or in evaluation mode."""
    if not isinstance(model, nn.Module):
        raise InputError(f"found a model of type {type(model).__name__}, expected a torch.nn.Module", where=WHERE)
    require_unwrapped(model, WHERE)
    for fault in _faults(model):
        raise InputError(fault, where=WHERE)
    return model


def _faults(model: nn.Module) -> Iterator[str]:
    if isinstance(model, torch.jit.ScriptModule):
        yield "the model is a ScriptModule, expected the module it was made from"
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            yield f"{name!r} has no shape yet; call the model once before it is fitted"
        if tensor.is_meta:
            yield f"{name!r} is on the meta device; call model.to_empty(device=...) and initialise it first"
    devices = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    if len(devices) > 1:
        found = " and ".join(sorted(map(str, devices)))
        yield f"the model is on {found}, expected one device"
    if unsupported := [device.type for device in devices if device.type not in ("cpu", "cuda")]:
        yield f"the model is on {unsupported[0]}, expected cpu or cuda"
    if not any(parameter.requires_grad for parameter in model.parameters()):
        yield "no parameter of the model requires a gradient; a model that is not trained needs no plan"
    if not model.training:
        yield "the model is in evaluation mode, expected training mode; call model.train() first"
