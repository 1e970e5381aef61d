"""Train a model under its memory plan: `treadle.apply(model, plan)`.

What runs is the generated text itself (`codegen.torch_module`). Autograd sees a chain of small nodes: one that starts
from the outputs' gradients, then one for each parameter in the order in which the gradients become ready. Each node
lets the generated backward pass run until its gradient is there, so gradients reach `.grad`, accumulate, and set off
hooks (DistributedDataParallel's too) one after the other while the rest of the backward pass is still to come.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import ActivationWrapper

from codegen.torch_module import FILE_NAME, generate
from planner import documents
from planner.errors import InputError
from planner.plan import Plan
from planner.trace import Trace

Outputs = Tensor | tuple[Tensor, ...]


def apply(model: nn.Module, plan: Plan | Path | str, trace: Trace | Path | str | None = None) -> PlannedModule:
    """`model` as a module that trains under `plan`, to be called like the step the plan's trace was captured from.

    Called with the step's inputs it returns the step's outputs: the loss where one was captured. `backward`,
    optimizers, gradient accumulation, `state_dict` and DistributedDataParallel work as with `model`, which it wraps.
    `plan` is a plan or its file. `trace` defaults to the file that the plan names, beside the plan's own file.

    Raises InputError when the trace is not the one the plan was made from, or when the model's parameters and buffers
    differ from the trace's; calls raise it for inputs and modes that the plan does not cover.
    """
    place = Path(plan).parent if isinstance(plan, str | Path) else None
    where = str(plan) if place is not None else "treadle.apply"
    document = documents.load(plan, Plan) if isinstance(plan, str | Path) else plan
    reference = document.inputs.get("trace")
    if trace is None:
        if place is None or reference is None:
            raise InputError("found no trace, expected trace=... beside a plan that is not a file", where=where)
        trace = place / reference.file
    known = documents.load(trace, Trace) if isinstance(trace, str | Path) else trace
    if reference is not None and documents.digest(known) != reference.digest:
        raise InputError(
            f"found a trace other than {reference.file!r} that the plan was made from; plan again",
            where=str(trace) if isinstance(trace, str | Path) else where,
        )
    return PlannedModule(model, load_step(generate(document, known)[FILE_NAME], known.name))


@dataclass(frozen=True)
class Step:
    """The names of a generated module."""

    name: str
    forward: Callable[..., tuple[list[Tensor], dict[str, Tensor]]]
    backward: Callable[..., Iterator[str]]
    parameters: dict[str, list[Any]]
    buffers: dict[str, list[Any]]
    inputs: list[list[Any]]
    tangents: list[int]
    gradients: list[str]
    frozen: list[str]


def load_step(text: str, name: str) -> Step:
    """Execute the text of a generated module; its lines show up in tracebacks under `name`."""
    file = f"<treadle step of {name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names: dict[str, Any] = {"__name__": "treadle_step"}
    exec(compile(text, file, "exec"), names)
    constants = (names[key] for key in ("PARAMETERS", "BUFFERS", "INPUTS", "TANGENTS", "GRADIENTS", "FROZEN"))
    return Step(name, names["forward"], names["backward"], *constants)


class PlannedModule(ActivationWrapper):
    """A model and the generated step that computes it. Its `state_dict` is that of the model."""

    def __init__(self, model: nn.Module, step: Step) -> None:
        super().__init__(model)
        self.step = step
        self._leaves()

    @property
    def model(self) -> nn.Module:
        """The wrapped model, for evaluation."""
        model: nn.Module = self._checkpoint_wrapped_module
        return model

    def forward(self, *inputs: Tensor) -> Outputs:
        parameters, buffers = self._leaves()
        self._require_covered(inputs, parameters)
        flight = _Flight(self.step, parameters, buffers, list(inputs))
        leaves = {**parameters, **{f"input {index}": tensor for index, tensor in enumerate(inputs)}}
        token = torch.empty(0, device=next(iter(leaves.values())).device)
        if torch.is_grad_enabled():
            for name in reversed(self.step.gradients):
                if leaves[name].requires_grad:
                    token = _Gradient.apply(flight, name, token, leaves[name])
        outputs: tuple[Tensor, ...] = _Outputs.apply(flight, token)
        return outputs[0] if len(outputs) == 1 else outputs

    def _leaves(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Parameters and buffers by the names of the trace. Raises InputError where they are not what it has."""
        parameters, buffers = dict(self.model.named_parameters()), dict(self.model.named_buffers())
        for kind, found, expected in (
            ("parameter", parameters, self.step.parameters),
            ("buffer", buffers, self.step.buffers),
        ):
            for name in sorted(found.keys() ^ expected.keys()):
                text = f"no {kind} {name!r}" if name in expected else f"{kind} {name!r}, which the plan does not know"
                raise InputError(f"found {text}, expected the model that was captured", where=self.step.name)
            for name, tensor in found.items():
                self._require_like(f"{kind} {name!r}", _describe(tensor), expected[name])
        return parameters, buffers

    def _require_covered(self, inputs: tuple[Any, ...], parameters: dict[str, Tensor]) -> None:
        where, expected = self.step.name, self.step.inputs
        if not self.model.training:
            raise InputError(
                "found the model in evaluation mode, expected training; evaluate with .model", where=where
            )
        if len(inputs) != len(expected):
            raise InputError(f"found {len(inputs)} inputs, expected {len(expected)}", where=where)
        for index, (tensor, wanted) in enumerate(zip(inputs, expected, strict=True)):
            if not isinstance(tensor, Tensor):
                raise InputError(f"found input {index} of type {type(tensor).__name__}, expected a tensor", where=where)
            self._require_like(f"input {index}", _describe(tensor), wanted[:2])
            strides = zip(tensor.shape, tensor.stride(), wanted[2], strict=True)
            if any(size > 1 and found != planned for size, found, planned in strides):
                found, planned = list(tensor.stride()), wanted[2]
                raise InputError(
                    f"found input {index} with strides {found}, expected {planned}; .contiguous() may help", where=where
                )
        tensors = {**parameters, **{f"input {index}": tensor for index, tensor in enumerate(inputs)}}
        first = next(iter(tensors), None)
        for name, tensor in tensors.items():
            device = tensors[first].device if first is not None else tensor.device
            if tensor.device != device:
                raise InputError(
                    f"found {name!r} on {tensor.device}, expected {device}, where {first!r} is", where=where
                )
            if tensor.requires_grad and torch.is_grad_enabled() and name in self.step.frozen:
                self._refuse_gradient(name)
            if torch.is_autocast_enabled(device.type):
                raise InputError("found autocast enabled, expected it off as when the step was captured", where=where)

    def _refuse_gradient(self, name: str) -> None:
        raise InputError(
            f"found {name!r} requiring a gradient, which the captured step does not compute", where=self.step.name
        )

    def _require_like(self, what: str, found: list[Any], expected: list[Any]) -> None:
        if found != expected:
            raise InputError(
                f"found {what} of {found[0]} {found[1]}, expected {expected[0]} {expected[1]}; capture and plan again",
                where=self.step.name,
            )


def _describe(tensor: Tensor) -> list[Any]:
    return [str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]


@dataclass(eq=False)
class _Flight:
    """One step between its forward pass and the end of its backward pass."""

    step: Step
    parameters: dict[str, Tensor]
    buffers: dict[str, Tensor]
    inputs: list[Tensor]
    saved: dict[str, Tensor] = field(default_factory=dict)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    versions: list[int] = field(default_factory=list)
    running: Iterator[str] | None = None

    def forward(self) -> list[Tensor]:
        outputs, self.saved = self.step.forward(self.parameters, self.buffers, self.inputs)
        self.versions = self._versions()
        return outputs

    def start(self, tangents: list[Tensor]) -> None:
        if not self.parameters and not self.inputs:
            raise InputError(
                "found a second backward pass after one forward pass, expected one", where=self.step.name
            )
        if self._versions() != self.versions:
            raise InputError(
                "found a parameter or input changed in place between forward and backward, expected none",
                where=self.step.name,
            )
        self.running = self.step.backward(
            self.saved, self.parameters, self.buffers, self.inputs, tangents, self.gradients
        )

    def gradient(self, name: str) -> Tensor:
        """Run on until gradient `name` is there. Gradients before it belong to leaves that do not want theirs."""
        for ready in self.running or ():
            found = self.gradients.pop(ready)
            if ready == name:
                break
        return found

    def finish(self) -> None:
        for ready in self.running or ():
            del self.gradients[ready]
        self.running, self.parameters, self.buffers, self.inputs, self.saved = None, {}, {}, [], {}

    def _versions(self) -> list[int]:
        tensors = (*self.parameters.values(), *self.inputs)
        return [tensor._version for tensor in tensors if not tensor.is_inference()]


class _Outputs(torch.autograd.Function):
    """From a token, which only orders the nodes, to the outputs; backward hands their gradients to the flight."""

    @staticmethod
    def forward(ctx: Any, flight: _Flight, token: Tensor) -> tuple[Tensor, ...]:
        ctx.flight = flight
        outputs = flight.forward()
        ctx.mark_non_differentiable(*(x for i, x in enumerate(outputs) if i not in flight.step.tangents))
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        flight: _Flight = ctx.flight
        flight.start([gradients[index] for index in flight.step.tangents])
        return None, gradients[0].new_empty(0)


class _Gradient(torch.autograd.Function):
    """One link of the chain: in the backward pass it hands `leaf` its gradient, then lets the next link run."""

    @staticmethod
    def forward(ctx: Any, flight: _Flight, name: str, token: Tensor, leaf: Tensor) -> Tensor:
        ctx.flight, ctx.name, ctx.last = flight, name, not token.requires_grad
        return token.new_empty(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, token: Tensor) -> tuple[Any, ...]:
        gradient = ctx.flight.gradient(ctx.name)
        if ctx.last:
            ctx.flight.finish()
        return None, None, token, gradient
