"""A generated step as an object, and what it covers: another model, other inputs or another mode are refused."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from treadle.capture.operator_calls import operator
from treadle.codegen.python_form import require_form
from treadle.planner.errors import InputError


@dataclass(frozen=True)
class PlannedStep:
    """The names of a generated module. Pickled as its text, which is executed again."""

    name: str
    text: str
    forward: Callable[..., tuple[list[Tensor], dict[str, Tensor]]]
    backward: Callable[..., Iterator[str]]
    parameters: dict[str, list[Any]]
    buffers: dict[str, list[Any]]
    inputs: list[list[Any]]
    tangents: list[int]
    gradients: list[str]
    together: list[list[str]]
    """The gradients in groups that are handed over at once."""
    frozen: list[str]
    evaluating: list[str]
    autocast: str | None
    partial: dict[str, list[int]]
    scales: list[list[str]]
    reread: list[str]
    returned: Callable[[list[Tensor]], Any]

    def __reduce__(self) -> tuple[Any, ...]:
        return load_step, (self.text, self.name)


class Named(Protocol):
    """A step by what errors call it."""

    @property
    def name(self) -> str: ...


class Expected(Named, Protocol):
    """What a call must be like, in the terms of `PlannedStep`."""

    @property
    def inputs(self) -> list[list[Any]]: ...
    @property
    def frozen(self) -> list[str]: ...
    @property
    def evaluating(self) -> list[str]: ...
    @property
    def autocast(self) -> str | None: ...


def require_operators(text: str, where: str) -> None:
    """Raise InputError, which names the line, where the Python `text` of a step calls what is no operator."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            target = ast.unparse(node.func).removeprefix("torch.ops.")
            if target != ast.unparse(node.func) or target.startswith("aten."):
                try:
                    operator(target)
                except InputError as error:
                    raise InputError(str(error), where=f"{where}:{node.lineno}") from error


def load_step(text: str, name: str) -> PlannedStep:
    """Execute the text of a generated module; its lines show up in tracebacks under `name`. Raises InputError for a
    text that treadle does not generate, or that calls what this PyTorch does not have."""
    require_form("torch", text, f"the step of {name}")
    require_operators(text, f"the step of {name}")
    file = f"<treadle step of {name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names: dict[str, Any] = {}
    exec(compile(text, file, "exec"), names)
    constants = ("PARAMETERS", "BUFFERS", "INPUTS", "TANGENTS", "GRADIENTS", "FROZEN", "EVALUATING")
    return PlannedStep(
        name=name,
        text=text,
        forward=names["forward"],
        backward=names["backward"],
        **{key.lower(): names[key] for key in constants},
        together=_groups(name, names["GRADIENTS"], names.get("HANDED", names["GRADIENTS"])),
        autocast=names.get("AUTOCAST"),
        partial=names.get("PARTIAL", {}),
        scales=names.get("SCALES", []),
        reread=names.get("REREAD", []),
        returned=names["returned"],
    )


def _groups(step: str, gradients: Sequence[str], last: Sequence[str]) -> list[list[str]]:
    """`gradients` cut after each one in `last`. Raises InputError for cuts that would lose or repeat gradients."""
    if list(last) != [name for name in gradients if name in set(last)] or last[-1:] != gradients[-1:]:
        raise InputError(f"found HANDED {last}, expected some of GRADIENTS in its order, with its last one", where=step)
    cuts = [0, *(gradients.index(name) + 1 for name in last)]
    return [list(gradients[a:b]) for a, b in pairwise(cuts)]


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
    for index, (tensor, (dtype, shape, stride)) in enumerate(zip(inputs, step.inputs, strict=True)):
        if not isinstance(tensor, Tensor):
            raise InputError(f"found input {index} of type {type(tensor).__name__}, expected a tensor", where=step.name)
        _require_like(step, f"input {index}", tensor, [dtype, shape])
        if any(n > 1 and a != b for n, a, b in zip(shape, tensor.stride(), stride, strict=True)):
            expected = f"expected {stride} as when the step was captured{_how_to_get(shape, stride)}"
            raise InputError(f"found input {index} of strides {list(tensor.stride())}, {expected}", where=step.name)
    leaves = {**parameters, **{f"input {index}": tensor for index, tensor in enumerate(inputs)}}
    first = next(iter(leaves))
    device = leaves[first].device
    for name, tensor in leaves.items():
        if tensor.device != device:
            raise InputError(f"found {name!r} on {tensor.device}, expected {device} as {first!r}", where=step.name)
        if tensor.requires_grad and torch.is_grad_enabled() and name in step.frozen:
            expected = "expected it frozen as when the step was captured; capture and plan again"
            raise InputError(f"found {name!r} requiring a gradient, {expected}", where=step.name)
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
