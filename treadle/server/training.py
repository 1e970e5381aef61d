"""A model and its optimizer whose parameters are on servers: what their steps, states and settings become."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from types import MethodType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn, optim
from torch.nn.parallel import DistributedDataParallel

from treadle.planner.errors import InputError
from treadle.runtime.server.worker import ServerState, Worker
from treadle.server.optimizers import CALLER, STATE_NAMES, name_of, numbers_of, server_state, torch_state
from treadle.server.parameters import ServedParameter


class ServedTraining:
    """A model whose optimizer's steps are those of servers, until `close`.

    `optimizer.step` sends gradients that were not sent yet and waits for the weights. The optimizer has no state of
    its own meanwhile: `state_dict` reads that of the servers, and what `load_state_dict` of the optimizer or the model
    loaded goes to them with the next step.
    """

    def __init__(
        self, model: nn.Module, optimizer: optim.Optimizer, worker: Worker, parameters: list[ServedParameter]
    ) -> None:
        self.optimizer, self.worker, self.parameters = optimizer, worker, parameters
        self.name = name_of(optimizer)
        self.closed = False
        self.pushed: set[int] = set()
        """Keys of this step that were sent."""
        self._watched: list[tuple[Tensor, int]] = []
        """Gradients that were sent, with their versions."""
        self._model = model.module if isinstance(model, DistributedDataParallel) else model
        self._loaded = False
        """Whether the model or the optimizer have loaded what the servers do not have yet."""
        self._members = members_of(optimizer)
        self._groups = groups_of_settings(worker, parameters)
        self._sizes = [each.parameter.numel() for each in parameters]
        self._settings = self._numbers()

    def start(self) -> None:
        """Take part from now on: with the weights of the servers if they have some, else those of worker 0."""
        if self.worker.loads:
            self.worker.await_first_load()  # of several servers others may not have them yet
            self._take_weights()
        else:
            self._share_weights()
        for each in self.parameters:
            each.use_value()
        self._hooks = [
            self.optimizer.register_state_dict_pre_hook(lambda _: self._read_states()),
            self.optimizer.register_state_dict_post_hook(lambda *_: self._after_saving()),
            self.optimizer.register_load_state_dict_post_hook(lambda _: self._after_loading()),
            self._model.register_load_state_dict_post_hook(lambda *_: self._after_loading_weights()),
        ]
        self._hooked = optim.Optimizer.profile_hook_step(lambda _, closure=None: self._do_step(closure))
        self._step_before = self.optimizer.__dict__.get("step")
        self._step = self.optimizer.step = _patched(self.optimizer, self._called)  # type: ignore[method-assign]

    @property
    def step(self) -> int:
        """The version of the weights that the model has."""
        return self.worker.step - 1

    def push(self, key: int, gradient: Tensor | None) -> None:
        """Send the gradient of a key in this step; None if it has none."""
        if not self.pushed:
            self._begin_step()
        self.pushed.add(key)
        self.worker.push_pull(key, empty=not self.parameters[key].put(gradient))

    def watch_gradients(self) -> None:
        """Gradients that were sent must not change any more before the step."""
        found = (self.parameters[key].parameter.grad for key in self.pushed)
        self._watched = [(each, each._version) for each in found if each is not None]

    def close(self) -> None:
        """Give model and optimizer back: weights in memory of their own, states in the optimizer, whose `step` is its
        own again. All workers call it after the same step. Raises CheckFailed where the states cannot be read."""
        if self.closed:
            return
        self.closed = True
        for hook in self._hooks:
            hook.remove()
        if self.optimizer.__dict__.get("step") is self._step:
            del self.optimizer.step
            if self._step_before is not None:
                self.optimizer.step = self._step_before  # type: ignore[method-assign]
        for each in self.parameters:
            each.leave_value()
        try:
            self._read_states()
        finally:
            self.worker.close()

    def _called(self, *given: Any, **named: Any) -> Any:
        """`optimizer.step`, also where a scheduler has wrapped it since."""
        optimizer = self.optimizer
        if not self.closed:
            optimizer._opt_called = True  # type: ignore[attr-defined]
            return self._hooked(optimizer, *given, **named)
        if self._step_before is not None:
            return self._step_before(*given, **named)
        return type(optimizer).step(optimizer, *given, **named)

    def _do_step(self, closure: Callable[[], Any] | None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if not self.pushed:
            self._begin_step()
        self._require_unchanged()
        for key, each in enumerate(self.parameters):
            if key not in self.pushed:
                self.push(key, each.parameter.grad)
        self.worker.finish()
        self.pushed.clear()
        self._watched = []
        for each in self.parameters:
            each.take_value()
        return loss

    def _begin_step(self) -> None:
        """What the servers need before the first gradient of a step."""
        if self._loaded:
            self._share_weights()
            self._loaded = False
        self._settings = self._numbers()
        self.worker.settings(self._settings)

    def _share_weights(self) -> None:
        """Weights and states of worker 0 become those of the servers, and its weights those of all workers. All of them
        call it."""
        if self.worker.worker == 0:
            self._give()
        else:
            self.worker.await_load()
        self._take_weights()

    def _take_weights(self) -> None:
        """Weights of the servers become those of this model, whose optimizer has no state from now on."""
        weights = torch.from_numpy(self.worker.read().weights)
        for each, values in zip(self.parameters, weights.split(self._sizes), strict=True):
            each.value.copy_(values.view(each.value.shape))
            each.take_value()
        self.optimizer.state.clear()

    def _give(self) -> None:
        found = [server_state(self.name, self.optimizer.state.get(each.parameter, {})) for each in self.parameters]
        states = [self._flat([tensors[place] for _, tensors in found]) for place in range(len(STATE_NAMES[self.name]))]
        updates = np.array([count for count, _ in found], np.uint64)
        self.worker.load(ServerState(self._flat([each.parameter for each in self.parameters]), states, updates))

    def _flat(self, tensors: list[Tensor | None]) -> NDArray[np.float32]:
        """Values of all parameters in one row; None are zeros."""
        row = torch.zeros(sum(self._sizes))
        for into, tensor in zip(row.split(self._sizes), tensors, strict=True):
            if tensor is not None:
                into.copy_(tensor.detach().reshape(-1))
        return row.numpy()

    def _numbers(self) -> NDArray[np.float64]:
        """The settings of each group of the servers."""
        groups = self.optimizer.param_groups
        return np.stack([numbers_of(self.optimizer, group) for group in groups])[self._groups]

    def _require_unchanged(self) -> None:
        """Raises InputError for what changed since the backward pass sent gradients, and can no longer be heeded."""
        if members_of(self.optimizer) != self._members:
            raise InputError("found other parameters in the optimizer than when it was attached", where=CALLER)
        if not np.array_equal(self._settings, self._numbers()):
            found = "found settings of the optimizer that changed after gradients were sent"
            raise InputError(f"{found}; change them before the backward pass", where=CALLER)
        if any(each._version != version for each, version in self._watched):
            found = "found gradients that changed after they were sent"
            raise InputError(f"{found}; DistributedDataParallel sends them in the backward pass", where=CALLER)

    def _read_states(self) -> None:
        """The states of the servers, into the optimizer."""
        if self._loaded:
            return
        read = self.worker.read()
        rows = [torch.from_numpy(each).split(self._sizes) for each in read.states]
        groups = self.optimizer.param_groups
        for each, updates, *values in zip(self.parameters, read.updates.tolist(), *rows, strict=True):
            like = each.parameter
            tensors = [value.view(like.shape).to(like, copy=True) for value in values]
            state = torch_state(self.name, groups[each.group], updates, tensors)
            if state:
                self.optimizer.state[like] = state

    def _after_saving(self) -> None:
        if not self._loaded:
            self.optimizer.state.clear()

    def _after_loading(self) -> None:
        """The optimizer has loaded states."""
        self._loaded = True

    def _after_loading_weights(self) -> None:
        """The model has loaded weights; the states stay what they are."""
        self._read_states()
        self._loaded = True


def members_of(optimizer: optim.Optimizer) -> list[int]:
    """How many parameters each group has."""
    return [len(group["params"]) for group in optimizer.param_groups]


def groups_of_settings(worker: Worker, parameters: Iterable[ServedParameter]) -> list[int]:
    """For each group of settings on the servers that of the optimizer. Raises InputError where they differ."""
    found: dict[int, int] = {}
    for key, each in zip(worker.layout.keys, parameters, strict=True):
        if found.setdefault(key.group, each.group) != each.group:
            raise InputError(f"found {key.name!r} in another group of the optimizer than of the plan", where=CALLER)
    return [found[group] for group in range(worker.layout.groups)]


def _patched(optimizer: optim.Optimizer, called: Callable[..., Any]) -> MethodType:
    """A `step` for the optimizer that schedulers take for its own."""

    @wraps(optimizer.step)
    def step(_: optim.Optimizer, *given: Any, **named: Any) -> Any:
        return called(*given, **named)

    return MethodType(step, optimizer)
