"""Parameters of a model as keys of a server: which is which, and where gradients and weights of each lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn, optim
from torch.nn.parallel import DistributedDataParallel

from treadle.planner.errors import InputError
from treadle.runtime.server.messages import LayoutKey
from treadle.runtime.server.worker import Worker
from treadle.server.optimizers import CALLER


class ServedParameter(NamedTuple):
    """A parameter, its group in the optimizer, and views of the worker's buffers in its shape."""

    name: str
    parameter: nn.Parameter
    group: int
    gradient: Tensor
    value: Tensor

    def put(self, gradient: Tensor | None) -> bool:
        """Copy a gradient into the buffer that is sent; False for None. Raises InputError for a sparse one."""
        if gradient is None:
            return False
        if gradient.layout != torch.strided:
            raise InputError(f"found a sparse gradient of {self.name!r}, expected dense ones", where=CALLER)
        self.gradient.copy_(gradient)
        return True

    def use_value(self) -> None:
        """Have the parameter lie in the buffer of values, without a change of its numbers there; one that cannot, on
        another device or with other strides, is copied in each step."""
        if self.parameter.device.type == "cpu" and self.parameter.is_contiguous():
            self.parameter.data = self.value

    def take_value(self) -> None:
        """The new weights, where the parameter does not lie in the buffer. What autograd saved of the old ones is
        refused from now on."""
        with torch.no_grad():
            if self.parameter.data_ptr() != self.value.data_ptr():
                self.parameter.copy_(self.value)
            else:
                torch.autograd.graph.increment_version(self.parameter)

    def leave_value(self) -> None:
        """Give the parameter memory of its own."""
        if self.parameter.data_ptr() == self.value.data_ptr():
            self.parameter.data = self.value.clone()


def trained_parameters(model: nn.Module, optimizer: optim.Optimizer) -> dict[str, tuple[nn.Parameter, int]]:
    """The parameters that both train, by their names inside the model, each with its group in the optimizer.

    Raises InputError for one that only one of them has.
    """
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    groups = {parameter: number for number, group in enumerate(optimizer.param_groups) for parameter in group["params"]}
    found = {}
    for name, parameter in inner.named_parameters():
        group = groups.pop(parameter, None)
        if group is not None and parameter.requires_grad:
            found[name] = parameter, group
        elif parameter.requires_grad and isinstance(model, DistributedDataParallel):
            raise InputError(f"found no {name!r} in the optimizer, expected every parameter of the model", where=CALLER)
    if any(parameter.requires_grad for parameter in groups):
        raise InputError("found a parameter in the optimizer that the model lacks", where=CALLER)
    return found


def require_keys(found: Mapping[str, tuple[nn.Parameter, int]], keys: Sequence[LayoutKey]) -> None:
    """Raises InputError that names the first parameter that is not as the plan's key."""
    for key in keys:
        if key.name not in found:
            raise InputError(
                f"found no parameter {key.name!r} that is trained, expected that of the plan", where=CALLER
            )
        parameter, _ = found[key.name]
        if parameter.numel() != key.elements:
            shape = list(parameter.shape)
            raise InputError(f"found {key.name!r} of shape {shape}, expected {key.elements} elements", where=CALLER)
        dtype = str(parameter.dtype).removeprefix("torch.")
        if dtype != key.dtype:
            raise InputError(f"found {dtype} in {key.name!r}, expected {key.dtype} as in the plan", where=CALLER)
    if others := set(found) - {key.name for key in keys}:
        name = next(name for name in found if name in others)
        raise InputError(f"found a parameter {name!r} that the plan lacks; plan again with this model", where=CALLER)


def served_parameters(worker: Worker, found: dict[str, tuple[nn.Parameter, int]]) -> list[ServedParameter]:
    """By the numbers of their keys. Raises InputError as `require_keys`."""
    require_keys(found, worker.layout.keys)
    served = []
    for number, key in enumerate(worker.layout.keys):
        parameter, group = found[key.name]
        gradient, value = (
            torch.from_numpy(buffer).view(parameter.dtype).view(parameter.shape)
            for buffer in (worker.gradient(number), worker.value(number))
        )
        served.append(ServedParameter(key.name, parameter, group, gradient, value))
    return served
