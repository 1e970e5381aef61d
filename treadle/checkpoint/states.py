"""The states of a training process: what a checkpoint has so that training goes on with the same bits."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn, optim
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from treadle.checkpoint.layout import CALLER, LocalShard
from treadle.planner.errors import CheckFailed, InputError
from treadle.runtime import rng


class Stateful(Protocol):
    """A scheduler, a sampler, a data loader: anything that saves and loads its state."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None: ...


class TrainingStates:
    """Weights, buffers, optimizer states and settings, generators of random numbers, and the states of `also`.

    Raises InputError where the optimizer has a parameter that is none of the model.
    """

    def __init__(self, model: nn.Module, optimizer: optim.Optimizer, also: Mapping[str, Stateful]) -> None:
        self.module: nn.Module = model.module if isinstance(model, DistributedDataParallel) else model
        self.optimizer, self.also = optimizer, dict(also)
        known = {id(each) for each in self.module.parameters()}
        if any(id(each) not in known for each in self._trained()):
            raise InputError("found a parameter of the optimizer that is none of the model's", where=CALLER)

    @property
    def device(self) -> torch.device:
        return next((each.device for each in self.module.parameters()), torch.device("cpu"))

    def tree(self, step: int) -> dict[str, Any]:
        """All states after update `step`. Weights and optimizer states are the tensors themselves, which stay as they
        are until the next update; all others are copies, since the iteration may change them."""
        return {
            "weights": dict(self.module.named_parameters(remove_duplicate=False)),
            "optimizer": {
                "states": [dict(self.optimizer.state.get(each, {})) for each in self._trained()],
                "groups": self.groups(),
            },
            **self.remainder(step),
        }

    def remainder(self, step: int) -> dict[str, Any]:
        """What is neither weights nor the optimizer's."""
        return {
            "step": step,
            "buffers": {name: _copied(each) for name, each in self.module.named_buffers(remove_duplicate=False)},
            "modules": {name: _copied(each.get_extra_state()) for name, each in self._with_extra_state()},
            "random": random_states(self.device),
            "also": {name: _copied(each.state_dict()) for name, each in self.also.items()},
        }

    def groups(self) -> list[dict[str, Any]]:
        """The settings of the optimizer."""
        return [_without_parameters(group) for group in self.optimizer.param_groups]

    def changes(self) -> int:
        """A count that grows with each change of weights and optimizer states."""
        tensors = [*self.module.parameters(), *self._state_tensors()]
        return sum(_local(each)._version for each in tensors)

    def load(self, tree: Mapping[str, Any]) -> None:
        """Go on from the states that `tree` made. Raises CheckFailed where they are those of another model."""
        weights, own = tree["weights"], dict(self.module.named_parameters(remove_duplicate=False))
        _require_same_names("parameters", weights, own)
        states, parameters = tree["optimizer"]["states"], list(self._trained())
        if len(states) != len(parameters):
            raise CheckFailed(f"found the states of {len(states)} parameters, the optimizer has {len(parameters)}")
        for name, parameter in own.items():
            _fill(name, parameter, weights[name])
        placed = (
            {key: _placed(value, parameter) for key, value in state.items()}
            for parameter, state in zip(parameters, states, strict=True)
        )
        self._load_optimizer(dict(zip(parameters, placed, strict=True)), tree["optimizer"]["groups"])
        self.load_remainder(tree)

    def load_named(self, states: Mapping[str, dict[str, Any]], remainder: Mapping[str, Any]) -> None:
        """Go on from weights that are here already, the optimizer's states by names of parameters, and what `remainder`
        and `groups` made."""
        parameters = self.module.named_parameters()
        self._load_optimizer({each: states.get(name, {}) for name, each in parameters}, remainder["groups"])
        self.load_remainder(remainder)

    def _load_optimizer(
        self, states: Mapping[nn.Parameter, dict[str, Any]], groups: Sequence[Mapping[str, Any]]
    ) -> None:
        if len(groups) != len(self.optimizer.param_groups):
            text = f"found {len(groups)} groups of parameters, the optimizer has {len(self.optimizer.param_groups)}"
            raise CheckFailed(text)
        for settings in groups:
            if missing := sorted(self.optimizer.defaults.keys() - settings.keys()):
                raise CheckFailed(f"found the states of another optimizer, without {missing[0]!r}")
        self.optimizer.state.clear()
        self.optimizer.state.update({each: state for each, state in states.items() if state})
        for group, settings in zip(self.optimizer.param_groups, groups, strict=True):
            group.update(_copied(settings))

    def load_remainder(self, tree: Mapping[str, Any]) -> None:
        """Go on from what `remainder` made."""
        buffers = dict(self.module.named_buffers(remove_duplicate=False))
        _require_same_names("buffers", tree["buffers"], buffers)
        for name, buffer in buffers.items():
            _fill(name, buffer, tree["buffers"][name])
        for name, module in self._with_extra_state():
            module.set_extra_state(_copied(tree["modules"][name]))
        _require_same_names("states", tree["also"], self.also)
        for name, each in self.also.items():
            each.load_state_dict(_copied(tree["also"][name]))
        restore_random(tree["random"], self.device)

    def _trained(self) -> Iterator[nn.Parameter]:
        return (each for group in self.optimizer.param_groups for each in group["params"])

    def _state_tensors(self) -> Iterator[Tensor]:
        values = (value for each in self._trained() for value in self.optimizer.state.get(each, {}).values())
        return (value for value in values if isinstance(value, Tensor))

    def _with_extra_state(self) -> Iterator[tuple[str, nn.Module]]:
        plain = nn.Module.get_extra_state
        return (pair for pair in self.module.named_modules() if type(pair[1]).get_extra_state is not plain)


def random_states(device: torch.device) -> dict[str, Any]:
    """Those of the generators of Python, PyTorch and, where it is loaded, NumPy."""
    version, words, spare = random.getstate()
    found: dict[str, Any] = {"python": (version, torch.tensor(words), spare), "cpu": rng.state(torch.device("cpu"))}
    if device.type != "cpu":
        found["device"] = rng.state(device)
    if "numpy" in sys.modules:
        kind, keys, *rest = sys.modules["numpy"].random.get_state()
        found["numpy"] = (kind, torch.from_numpy(keys.copy()), *rest)
    return found


def restore_random(states: Mapping[str, Any], device: torch.device) -> None:
    version, words, spare = states["python"]
    random.setstate((version, tuple(words.tolist()), spare))
    rng.restore(states["cpu"].clone(), torch.device("cpu"))
    if "device" in states:
        rng.restore(states["device"].clone(), device)
    if "numpy" in states:
        import numpy as np

        kind, keys, *rest = states["numpy"]
        np.random.set_state((kind, keys.numpy().copy(), *rest))


def _without_parameters(group: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _copied(value) for name, value in group.items() if name != "params"}


def _copied(value: Any) -> Any:
    """Plain values as they are, tensors copied."""
    match value:
        case LocalShard(tensor):
            return tensor.clone()
        case Tensor():
            return value.detach().clone()
        case dict():
            return {key: _copied(each) for key, each in value.items()}
        case list():
            return [_copied(each) for each in value]
        case tuple() if type(value) is tuple:
            return tuple(_copied(each) for each in value)
    return value


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _fill(name: str, into: Tensor, saved: Tensor | LocalShard) -> None:
    values, local = saved.tensor if isinstance(saved, LocalShard) else saved, _local(into.detach())
    if (values.shape, values.dtype) != (local.shape, local.dtype):
        found = f"found {name!r} of {values.dtype} {tuple(values.shape)}"
        raise CheckFailed(f"{found}, this one is {local.dtype} {tuple(local.shape)}")
    with torch.no_grad():
        local.copy_(values)


def _placed(value: Any, parameter: nn.Parameter) -> Any:
    """A value of an optimizer's state: sharded as the parameter is where it was."""
    if not isinstance(value, LocalShard):
        copied = _copied(value)
        # PyTorch has counts of steps in host memory, and all that is as large as the parameter next to it.
        moves = isinstance(copied, Tensor) and copied.shape == _local(parameter).shape and copied.ndim > 0
        return copied.to(parameter.device) if moves else copied
    if not isinstance(parameter, DTensor):
        raise CheckFailed("found a sharded state of a parameter that is not sharded")
    return DTensor.from_local(
        value.tensor.clone().to(parameter.device),
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def _require_same_names(what: str, found: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    if found.keys() != own.keys():
        first = min(found.keys() ^ own.keys())
        raise CheckFailed(f"found other {what} in the checkpoint than here: {first!r} is only in one of them")
