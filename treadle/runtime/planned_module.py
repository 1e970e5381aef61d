"""A model as a module that runs a generated step in its place.

What runs is the generated text itself. Autograd sees a chain of small nodes: one that starts from the outputs'
gradients, then one for each group of gradients that are handed over together
(`treadle.codegen.memory.handing_over`), in the order in which they become ready. Each node lets the generated backward
pass run until its gradients are there, so gradients reach `.grad`, accumulate, and set off hooks
(DistributedDataParallel's, an optimizer's) while the rest of the backward pass is still to come. By then no call of the
backward pass reads the parameters any more, so that a hook may change them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import ActivationWrapper

from treadle.planner.errors import InputError
from treadle.runtime.called import inputs_of
from treadle.runtime.coverage import require_alike, require_covered
from treadle.runtime.inverting import require_invertible
from treadle.runtime.planned_step import PlannedStep
from treadle.runtime.versions import UnchangedInputs, UnchangedNames, changed, version
from treadle.runtime.wrappers import require_uncast


class PlannedModule(ActivationWrapper):
    """A model and the generated step that computes it. Its `state_dict` is that of the model."""

    def __init__(self, model: nn.Module, step: PlannedStep) -> None:
        super().__init__(model)  # type: ignore[no-untyped-call]
        self.step = step
        self.verified: str | None = None
        """What `apply` saw with `verify`, in one line."""
        parameters, _ = self.leaves()
        require_invertible(step, parameters)

    @property
    def model(self) -> nn.Module:
        """The wrapped model, for evaluation."""
        model: nn.Module = self._checkpoint_wrapped_module
        return model

    def leaves(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Parameters and buffers by name. Raises InputError where they are not what the trace has."""
        parameters = dict[str, Tensor](self.model.named_parameters())
        buffers = dict[str, Tensor](self.model.named_buffers())
        require_alike(self.step, "parameter", parameters, self.step.parameters)
        require_alike(self.step, "buffer", buffers, self.step.buffers)
        return parameters, buffers

    def flight(self, parameters: dict[str, Tensor], buffers: dict[str, Tensor], inputs: list[Tensor]) -> Flight:
        return Flight(self.step, parameters, buffers, inputs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.computed(inputs_of(self.step.called, len(self.step.inputs), args, kwargs, self.step.name))

    def computed(self, inputs: list[Any]) -> Any:
        """What the step returns of `inputs`. Raises InputError for those that the plan does not cover."""
        require_uncast(self, {dtype for dtype, _ in self.step.parameters.values()}, self.step.name)
        parameters, buffers = self.leaves()
        require_covered(self.step, self.model, parameters, inputs)
        flight = self.flight(parameters, buffers, inputs)
        leaves = {**parameters, **{f"input {index}": tensor for index, tensor in enumerate(inputs)}}
        token = torch.empty(0, device=next(iter(leaves.values())).device)
        if torch.is_grad_enabled():
            for group in reversed(self.step.together):
                if names := [name for name in group if leaves[name].requires_grad]:
                    token = _Gradients.apply(flight, names, token, *(leaves[name] for name in names))  # type: ignore[no-untyped-call]
        return self.step.returned(_Outputs.apply(flight, token))  # type: ignore[no-untyped-call]


@dataclass(eq=False)
class Flight:
    """One step between its forward pass and the end of its backward pass."""

    step: PlannedStep
    parameters: dict[str, Tensor]
    buffers: dict[str, Tensor]
    inputs: list[Tensor]
    saved: dict[str, Tensor] = field(default_factory=dict)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    returned: dict[str, tuple[str, int | None]] = field(default_factory=dict)
    """Saved values in the memory of outputs: the output, and its version."""
    zeros: list[Callable[[], Tensor]] = field(default_factory=list)
    """Makes the gradient of an output of which none comes."""
    absent: set[str] = field(default_factory=set)
    """Leaves whose gradients come from no output that has one: they get none, as in plain PyTorch."""
    running: Iterator[str] | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        self.device = next(iter((*self.parameters.values(), *self.inputs))).device.type

    def forward(self) -> list[Tensor]:
        with self._as_written():
            outputs, self.saved = self.step.forward(self.parameters, self.buffers, self.inputs)
        where = self.step.name
        self.parameters = UnchangedNames(self.parameters, self.parameters, "parameter", where)
        self.buffers = UnchangedNames(self.buffers, self.step.reread, "buffer", where)
        self.inputs = UnchangedInputs(self.inputs, self.step.places, where)
        places = {x.untyped_storage()._cdata: f"output {index}" for index, x in enumerate(outputs)}
        for name, value in self.saved.items():
            place = places.get(value.untyped_storage()._cdata) if isinstance(value, Tensor) else None
            if place is not None:
                self.returned[name] = place, version(value)
        self.zeros = [partial(torch.zeros, x.shape, dtype=x.dtype, device=x.device) for x in outputs]
        return outputs

    def start(self, gradients: Sequence[Tensor | None]) -> None:
        """Begin the backward pass from the gradients of the outputs, None for one that is not used."""
        if not self.parameters and not self.inputs:
            raise InputError("found a second backward pass after one forward pass, expected one", where=self.step.name)
        for name, (output, before) in self.returned.items():
            if version(self.saved[name]) != before:
                raise changed(output, self.step.name)
        used = {place for place, gradient in enumerate(gradients) if gradient is not None}
        self.absent = {name for name, places in self.step.partial.items() if used.isdisjoint(places)}
        given = ((place, gradients[place]) for place in self.step.tangents)
        tangents = [self.zeros[place]() if gradient is None else gradient for place, gradient in given]
        self.running = self.step.backward(
            self.saved, self.parameters, self.buffers, self.inputs, tangents, self.gradients
        )

    def up_to(self, names: Sequence[str]) -> list[Tensor | None]:
        """Run on until the gradients `names` are there, the last one last. Others belong to leaves that do not want
        theirs. None stands for an absent one."""
        found: dict[str, Tensor] = {}
        with self._as_written():
            for ready in self.running or ():
                gradient = self.gradients.pop(ready)
                if ready in names and ready not in self.absent:
                    found[ready] = gradient
                if ready == names[-1]:
                    break
        return [found.get(name) for name in names]

    def finish(self) -> None:
        with self._as_written():
            for ready in self.running or ():
                del self.gradients[ready]
        self.running, self.parameters, self.buffers, self.inputs, self.saved = None, {}, {}, [], {}

    def _as_written(self) -> AbstractContextManager[Any]:
        """The step has its conversions of types in it; autocast would add others."""
        on = torch.is_autocast_enabled(self.device)
        return torch.autocast(self.device, enabled=False) if on else nullcontext()


class _Outputs(torch.autograd.Function):
    """From a token, which only orders the nodes, to the outputs; backward hands their gradients to the flight."""

    @staticmethod
    def forward(ctx: Any, flight: Flight, token: Tensor) -> tuple[Tensor, ...]:
        ctx.flight = flight
        ctx.set_materialize_grads(False)
        outputs = flight.forward()
        graded = {*flight.step.tangents, *flight.step.untrained}
        ctx.mark_non_differentiable(*(x for i, x in enumerate(outputs) if i not in graded))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        flight: Flight = ctx.flight
        if torch.is_grad_enabled():  # so in a backward pass that is recorded to be differentiated again
            raise InputError("found create_graph=True, expected first derivatives only", where=flight.step.name)
        if any(gradients[place] is not None for place in flight.step.untrained):
            raise InputError(
                "found a backward pass from an output next to `loss`, expected one from `loss` alone, from which the "
                "plan starts; give a loss function that returns all that is differentiated",
                where=flight.step.name,
            )
        flight.start(gradients)
        return None, next(gradient for gradient in gradients if gradient is not None).new_empty(0)


class _Gradients(torch.autograd.Function):
    """One link of the chain: in the backward pass it hands `leaves` their gradients, then lets the next link run."""

    @staticmethod
    def forward(ctx: Any, flight: Flight, names: list[str], token: Tensor, *leaves: Tensor) -> Tensor:
        ctx.flight, ctx.names, ctx.last = flight, names, not token.requires_grad
        return token.new_empty(0)

    @staticmethod
    def backward(ctx: Any, token: Tensor) -> tuple[Any, ...]:
        gradients = ctx.flight.up_to(ctx.names)
        if ctx.last:
            ctx.flight.finish()
        return None, None, token, *gradients
