"""Find MODULE:FUNCTION and take the step it describes: model, example inputs and, for training, a loss."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from treadle.planner.documents.arguments import DTYPES, word_expected
from treadle.planner.documents.nearest import meant, question, with_article
from treadle.planner.documents.values import Called
from treadle.planner.errors import InputError, MissingBackendError, TreadleError

if TYPE_CHECKING:
    from torch import Tensor, nn


class ModelStep(NamedTuple):
    """One step computes `loss(model, *args, **kwargs)`, or `model(*args, **kwargs)` where there is no loss.

    Tensors may lie at any depth in tuples, lists, dicts, named tuples and dataclasses; what else there is, is part of
    the step.
    """

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    loss: Callable[..., Tensor] | None

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The tensors among the arguments, in their order."""
        from treadle.runtime.values import tensors_of

        return tuple(tensors_of([list(self.args), self.kwargs]))

    def with_inputs(self, inputs: Sequence[Tensor]) -> ModelStep:
        """The same step on other tensors."""
        from treadle.runtime.values import put_together, take_apart

        args, kwargs = put_together(take_apart([list(self.args), self.kwargs], [], lambda *_: None), inputs)
        return self._replace(args=tuple(args), kwargs=kwargs)

    def run(self, model: Callable[..., Any] | None = None) -> Any:
        """What the step returns, with `model` in place of its own."""
        called = self.model if model is None else model
        return called(*self.args, **self.kwargs) if self.loss is None else self.loss(called, *self.args, **self.kwargs)


def load_module(name: str, spec: str, folder: Path | str = ".") -> ModuleType:
    """The module `name`, which may lie in `folder`, in the current one or be installed; errors name it by `spec`.

    Raises InputError when there is no such module, or when it cannot be imported.
    """
    places = list(dict.fromkeys(str(Path(each).resolve()) for each in (folder, "")))
    sys.path[:0] = [place for place in places if place not in sys.path]
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            near = question(error.name, (path.stem for each in places for path in sorted(Path(each).glob("*.py"))))
            message = f"found no module {error.name!r} in {', '.join(places)} or among the installed ones"
            raise InputError(message + (f"; {near}" if near else ""), where=spec) from error
        raise InputError(f"importing {name} needs the missing module {error.name!r}", where=spec) from error
    except TreadleError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"importing {name} raised {_describe(error)}", where=spec) from error


def load_function(spec: str, folder: Path | str = ".") -> Callable[[], Any]:
    """The function that `MODULE:FUNCTION` names; the module may lie in `folder`, in the current one or be installed.

    Raises InputError when there is no such module or function, when the module cannot be imported, or when the function
    cannot be called without arguments; MissingBackendError without PyTorch.
    """
    require_torch()
    module_name, separator, function_name = spec.partition(":")
    if not separator or not module_name or not function_name:
        raise InputError("found no MODULE:FUNCTION, expected for example examples.models.gpt2:small", where=spec)
    if "/" in module_name or module_name.endswith(".py"):
        dotted = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise InputError(f"found a file, expected a module; try {dotted}:{function_name}", where=spec)
    module = load_module(module_name, spec, folder)
    function = getattr(module, function_name, None)
    if not callable(function):
        names = sorted(
            name
            for name, value in vars(module).items()
            if inspect.isfunction(value) and value.__module__ == module_name
        )
        found = "no function" if function is None else f"a {type(function).__name__}"
        raise InputError(f"found {found} {function_name!r}, {meant(function_name, names)}", where=spec)
    try:
        required = [
            parameter.name
            for parameter in inspect.signature(function).parameters.values()
            if parameter.default is parameter.empty
            and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        ]
    except (TypeError, ValueError):
        required = []
    if required:
        raise InputError(f"found required arguments {', '.join(required)}, expected defaults for all", where=spec)
    made: Callable[[], Any] = function
    return made


def build_step(function: Callable[[], Any], where: str) -> ModelStep:
    """Call the function and check what it returns: `(model, inputs)` or `(model, inputs, loss)`.

    Raises InputError when it raises or returns something else.
    """
    from torch import nn

    from treadle.runtime.wrappers import require_unwrapped

    try:
        returned = function()
    except TreadleError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"calling it raised {_describe(error)}", where=where) from error
    expected = "expected (model, inputs) or (model, inputs, loss)"
    if not isinstance(returned, tuple) or len(returned) not in (2, 3):
        size = f" of {len(returned)}" if isinstance(returned, tuple) else ""
        raise InputError(f"it returned {_kind(returned)}{size}, {expected}", where=where)
    model, inputs, loss = returned if len(returned) == 3 else (*returned, None)
    if not isinstance(model, nn.Module):
        fault = f"the first value it returned is {_kind(model)}, expected a torch.nn.Module"
    elif not isinstance(inputs, tuple | list | dict):
        fault = f"the inputs it returned are {_kind(inputs)}, expected a tuple of tensors, or a dict by keyword"
    elif isinstance(inputs, dict) and not all(isinstance(key, str) for key in inputs):
        fault = "the inputs it returned are a dict with keys other than text, expected keywords"
    elif loss is not None and not callable(loss):
        fault = f"the loss it returned is {_kind(loss)}, expected a callable or None"
    else:
        require_unwrapped(model, where)
        by_name = isinstance(inputs, dict)
        step = ModelStep(model, () if by_name else tuple(inputs), dict(inputs) if by_name else {}, loss)
        call_of(step, where)
        return step
    raise InputError(fault, where=where)


def call_of(step: ModelStep, where: str) -> Called:
    """How the step is called: trees of values over the numbers of its inputs. Raises InputError, naming the place, for
    an argument that is neither a tensor nor a constant nor made of them."""
    from treadle.runtime.values import EXPECTED, take_apart

    def refuse(place: str, kind: str) -> None:
        raise InputError(f"found {place} with {kind}, {EXPECTED}", where=where)

    names = parameters_of(step)
    found: list[Tensor] = []
    args = [take_apart(item, found, refuse, name_of(index, names)) for index, item in enumerate(step.args)]
    kwargs = {key: take_apart(item, found, refuse, key) for key, item in step.kwargs.items()}
    named = {*names[: len(args)], *kwargs}
    used = max((place + 1 for place, name in enumerate(names) if name in named), default=0)
    return Called(args=tuple(args), kwargs=kwargs, parameters=names[:used])


def name_of(index: int, parameters: Sequence[str]) -> str:
    """What errors call the argument at place `index`."""
    return parameters[index] if index < len(parameters) else f"input {index}"


def parameters_of(step: ModelStep) -> tuple[str, ...]:
    """Names of the parameters that take the step's arguments by place, in their order; none where they have none."""
    try:
        found = list(inspect.signature(step.model.forward if step.loss is None else step.loss).parameters.values())
    except (TypeError, ValueError):
        return ()
    found = found if step.loss is None else found[1:]
    return tuple(each.name for each in found if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD))


def on_device(function: Callable[[], Any], device: str) -> Callable[[], Any]:
    """`function` with its tensors made on `device`. Raises MissingBackendError for a device this machine lacks."""
    import torch

    if device == "cpu":
        return function
    if not torch.cuda.is_available():
        raise MissingBackendError("no CUDA device that PyTorch can use; capture with --device cpu")

    from treadle.capture.fake import Placed

    def placed() -> Any:
        with torch.device(device), Placed(device):
            return function()

    return placed


def autocast_to(dtype: str | None, device: str) -> AbstractContextManager[Any]:
    """`torch.autocast` to the named dtype on `device`, or nothing for None. Raises InputError for no dtype."""
    import torch

    if not dtype:
        return nullcontext()
    if dtype not in DTYPES:
        raise InputError(f"found {dtype!r}, expected {word_expected('dtype')}", where="autocast")
    return torch.autocast(device, getattr(torch, dtype))


def require_torch() -> None:
    """Raises MissingBackendError where PyTorch is not installed."""
    try:
        importlib.import_module("torch")
    except ImportError as error:
        raise MissingBackendError(
            "capturing a model needs PyTorch; install it with: pip install 'treadle[torch]'"
        ) from error


def _kind(value: object) -> str:
    """The type of a value as the user wrote it, with an article: capture runs functions on tensors of its own type."""
    from torch import Tensor

    name = "tensor" if isinstance(value, Tensor) else type(value).__name__
    return with_article(name)


def _describe(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__
