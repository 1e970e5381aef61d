"""Train a model past the memory of a device: `treadle.swapped(model, plan)`.

One call is one iteration of the step that was captured: forward, backward and, where the trace has an optimizer, the
update. Parameters, buffers and the optimizer's state live on the host and are on the device when the plan says so.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from treadle.codegen import emit
from treadle.codegen.swap.torch_swap import FILE_NAME, generate
from treadle.planner.documents import artefact
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import InputError, MissingBackendError
from treadle.planner.passes.swap.decisions import SwapDecisions
from treadle.runtime.called import inputs_of, places
from treadle.runtime.coverage import require_alike, require_covered
from treadle.runtime.sources import plan_and_trace
from treadle.runtime.swap.cpu import Spans, Threads
from treadle.runtime.swap.cuda import Streams
from treadle.runtime.swap.places import places_of
from treadle.runtime.swap.step import SwapStep, load_swap_step
from treadle.runtime.swap.work import POISON, StepMemory
from treadle.runtime.wrappers import require_unwrapped


def swapped(
    model: nn.Module, plan: Plan | Path | str, trace: Trace | Path | str | None = None, *, backend: str | None = None
) -> SwappedStep:
    """The step of `plan` as a function: called with the step's inputs it runs one iteration and returns what the step
    returns, the loss where one was captured.

    `model` stays on the host; its parameters and buffers have their new values after `synchronize`, which `state_dict`
    of the model and of the result call themselves. `plan` is a swap plan, its file, or a folder that
    `treadle generate` wrote; `trace` defaults to the file that the plan names, next to the plan's own file. `backend`
    is cuda with a GPU, otherwise cpu, which runs the plan in host memory to try it out.

    Raises CheckFailed for a plan that fails its check; InputError for a plan of another pass, when the trace
    is not the one the plan was made from, or when the model's parameters and buffers differ from the trace's;
    MissingBackendError for a backend that this machine lacks.
    """
    if not isinstance(model, nn.Module):
        raise InputError(
            f"found a model of type {type(model).__name__}, expected a torch.nn.Module", where="treadle.swapped"
        )
    require_unwrapped(model, "treadle.swapped")
    folder = Path(plan) if isinstance(plan, str | Path) and Path(plan).is_dir() else None
    text = folder_text(folder) if folder is not None else _generated(plan, trace)
    chosen = backend or ("cuda" if torch.cuda.is_available() else "cpu")
    return SwappedStep(model, load_swap_step(text), chosen)


def folder_text(folder: Path) -> str:
    """The generated step in `folder`, unchanged since it was written. Raises InputError for anything else."""
    manifest, texts = emit.read(folder)
    if manifest.target != "torch-swap":
        text = f"found an artefact of target {manifest.target}, expected torch-swap"
        raise InputError(text, where=str(folder / artefact.FILE_NAME))
    return texts[FILE_NAME]


def _generated(plan: Plan | Path | str, trace: Trace | Path | str | None) -> str:
    document, known = plan_and_trace(plan, trace, "treadle.swapped", SwapDecisions)
    return generate(document, known)[FILE_NAME]


class _Expected(NamedTuple):
    """The facts that `require_covered` compares."""

    name: str
    inputs: list[list[Any]]
    places: list[str]
    evaluating: list[str]
    autocast: str | None
    frozen: list[str]


class SwappedStep:
    """One iteration as a function. `state` holds the optimizer's tensors by name, zero at first."""

    def __init__(
        self,
        model: nn.Module,
        step: SwapStep,
        backend: str,
        *,
        poison: bool = False,
        timeout: float | None = None,
        api: Any = torch.cuda,
        device: torch.device | None = None,
    ) -> None:
        self.model, self.step, self.backend = model, step, backend
        self.device = device or _device(backend)
        self.poison = poison
        for name in step.tangents:
            if step.storages[name].shape:
                text = "found a step without a loss, expected one: its backward pass starts from gradients of outputs"
                raise InputError(text, where=step.name)
        places = places_of(step)
        self._pinned = backend == "cuda" and self.device.type == "cuda"
        leaves = self._leaves()
        if self._pinned:
            for storage, tensor in leaves.items():
                if storage in step.copied and not tensor.is_pinned():
                    tensor.data = tensor.data.pin_memory()
        self.memory = StepMemory(step, places, self.device, _rooms(leaves), self._pinned)
        self.state = {name: self.memory.host[storage] for name, storage in step.optimizer.items()}
        for name in step.tangents:
            self.memory.host[name].fill_(1)
        self.runner: Threads | Streams = (
            Threads(step, poison=poison, timeout=timeout)
            if backend == "cpu"
            else Streams(step, self.device, poison=poison, api=api)
        )
        self.spans: Spans | None = None
        """The spans of the last iteration."""
        self._seen: dict[str, tuple[int, int]] = {}
        self._stale = False
        self._failed = False
        model.register_state_dict_pre_hook(_Synchronizing(self))
        model.register_load_state_dict_pre_hook(_Synchronizing(self))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """One iteration, called as the step was captured. Raises InputError for arguments or modes that the plan does
        not cover, and for an operator that raises; after that the values are lost and the next call raises too."""
        inputs = inputs_of(self.step.called, len(self.step.inputs), args, kwargs, self.step.name)
        outputs, _ = self.run(*inputs)
        return self.step.returned(outputs)

    def run(self, *inputs: Tensor, watching: AbstractContextManager[object] | None = None, timed: bool = False) -> Any:
        """One iteration: its outputs on the host, and gradients by parameter where the step has no optimizer. They are
        left in the parameters' `.grad` as well."""
        if self._failed:
            raise InputError(
                "an earlier iteration failed, and values are lost; make the step again", where=self.step.name
            )
        leaves = self._leaves()
        self._require_covered(leaves, inputs)
        self._upload(leaves)
        for name, tensor in zip(self.step.inputs, inputs, strict=True):
            self.memory.host[name].copy_(tensor.detach())
        self._failed = True
        if isinstance(self.runner, Streams):
            self.spans = self.runner.run(self.memory, watching, timed)
        else:
            self.spans = self.runner.run(self.memory, watching)
        self._failed = False
        self._stale = bool(self.step.final)
        return self._finish(leaves)

    def synchronize(self) -> None:
        """Give the model's parameters and buffers, and `state`, the values that are on the device."""
        if self._stale and not self._failed:
            for storage, address in self.step.initial.items():
                self.memory.host[storage].copy_(self.memory.tensor(storage, address))
            self._stale = False

    def state_dict(self) -> dict[str, Any]:
        """The model's and the optimizer's state, for `load_state_dict` and for files."""
        self.synchronize()
        return {"model": self.model.state_dict(), "optimizer": dict(self.state)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned. Raises InputError where the optimizer's tensors are others."""
        if state["optimizer"].keys() != self.state.keys():
            odd = sorted(state["optimizer"].keys() ^ self.state.keys())[0]
            raise InputError(f"found other optimizer states, {odd!r} is only in one", where=self.step.name)
        self._stale = False
        self.model.load_state_dict(state["model"])
        for name, tensor in state["optimizer"].items():
            self.state[name].copy_(tensor)
        self._seen.clear()

    def _leaves(self) -> dict[str, Tensor]:
        """The model's parameters and buffers by storage. Raises InputError where they are not what the trace has."""
        found: dict[str, Tensor] = {}
        groups = (
            ("parameter", dict[str, Tensor](self.model.named_parameters()), self.step.parameters),
            ("buffer", dict[str, Tensor](self.model.named_buffers()), self.step.buffers),
        )
        for kind, tensors, storages in groups:
            known = {name: self.step.storages[storage] for name, storage in storages.items()}
            expected = {name: [_word(each.dtype), [*each.shape]] for name, each in known.items()}
            require_alike(self.step, kind, tensors, expected)
            found.update({storages[name]: tensor for name, tensor in tensors.items()})
        for storage, tensor in found.items():
            if tensor.device.type != "cpu":
                text = f"found {self.step.persistent[storage]!r} on {tensor.device}, expected the model on the host"
                raise InputError(text, where=self.step.name)
        return found

    def _require_covered(self, leaves: Mapping[str, Tensor], inputs: tuple[Tensor, ...]) -> None:
        step = self.step
        shapes = [step.storages[name] for name in step.inputs]
        on = torch.is_autocast_enabled("cpu")  # the conversions of autocast are among the calls
        expected = _Expected(
            name=step.name,
            inputs=[[_word(each.dtype), [*each.shape], [*each.stride]] for each in shapes],
            places=places(step.called, len(shapes)),
            evaluating=step.evaluating if step.training else [name for name, _ in self.model.named_modules()],
            autocast=_word(torch.get_autocast_dtype("cpu")) if on else None,
            frozen=[],
        )
        named = {step.persistent[storage]: tensor for storage, tensor in leaves.items()}
        require_covered(expected, self.model, named, inputs)

    def _upload(self, leaves: Mapping[str, Tensor]) -> None:
        """Bring what changed on the host since the last iteration, at first everything that the plan has there."""
        changed = [name for name, tensor in leaves.items() if self._seen.get(name) != _stamp(tensor)]
        if any(tensor.data_ptr() != self.memory.host[name].data_ptr() for name, tensor in leaves.items()):
            self.memory.renew(_rooms(leaves))
        if self._stale and any(name in self.step.initial for name in changed):
            name = next(name for name in changed if name in self.step.initial)
            text = f"found {self.step.persistent[name]!r} changed while its value is on the device; "
            raise InputError(f"{text}call synchronize() before changing it", where=self.step.name)
        fresh = self.step.initial.keys() if not self._seen else [name for name in changed if name in self.step.initial]
        for storage in fresh:
            self.memory.tensor(storage, self.step.initial[storage]).copy_(self.memory.host[storage])
        self._seen = {name: _stamp(tensor) for name, tensor in leaves.items()}

    def _finish(self, leaves: Mapping[str, Tensor]) -> tuple[list[Tensor], dict[str, Tensor]]:
        """Write new values of buffers back, take what the caller gets, and let objects change their roles."""
        step, memory = self.step, self.memory
        outputs = [memory.final(name).to("cpu", copy=True) for name in step.outputs]
        gradients = {name: memory.final(key).to("cpu", copy=True) for name, key in step.gradients.items()}
        for name, gradient in gradients.items():
            leaf = leaves.get(step.parameters.get(name, ""))
            if leaf is not None:
                leaf.grad = gradient
        for buffer, value in step.updates:
            new = memory.final(value)
            memory.host[buffer].copy_(new)
            if buffer in step.final:
                memory.tensor(buffer, step.final[buffer]).copy_(new)
        if self.poison:
            for storage, address in memory.places.left.items():
                if storage not in step.persistent:
                    memory.raw(storage, address).fill_(POISON)
        memory.advance()
        return outputs, gradients


class _Synchronizing:
    """A hook that brings a model up to date; copies of the model, and files, have it without effect."""

    def __init__(self, step: SwappedStep | None = None) -> None:
        self.step = weakref.ref(step) if step is not None else None

    def __call__(self, *_: Any) -> None:
        step = self.step() if self.step is not None else None
        if step is not None:
            step.synchronize()

    def __reduce__(self) -> tuple[Any, ...]:
        return _Synchronizing, ()


def _rooms(leaves: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same memory without autograd, and with a version of its own: what the step writes is no change by others."""
    return {name: tensor.data for name, tensor in leaves.items()}


def _stamp(tensor: Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensor._version


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _device(backend: str) -> torch.device:
    if backend not in ("cpu", "cuda"):
        raise InputError(f"found {backend!r}, expected cpu or cuda", where="backend")
    if backend == "cuda" and not torch.cuda.is_available():
        raise MissingBackendError("no CUDA device that PyTorch can use; run with backend cpu")
    return torch.device(backend)
