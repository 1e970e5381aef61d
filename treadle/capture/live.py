"""The trace of a step of a model that is there, on example arguments; and what every captured trace gets added."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from torch import Tensor, nn

from treadle.capture.costs import with_counts
from treadle.capture.graph import to_trace
from treadle.capture.joint import Mode, export_live
from treadle.capture.load import ModelStep, call_of
from treadle.capture.optimizer import with_optimizer
from treadle.capture.results import with_results
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import CheckFailed, InputError, MissingBackendError
from treadle.planner.graph.implementations import with_implementations
from treadle.runtime.wrappers import require_unwrapped


def capture_model(
    model: nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    loss: Callable[..., Tensor] | None = None,
    mode: Mode = "train",
    name: str = "model",
    note: Callable[[str], None] = lambda name: None,
) -> Trace:
    """The trace of the step `loss(model, *args, **kwargs)`, or `model(*args, **kwargs)` without a loss.

    Parameters and arguments may be on any device and are neither copied nor read; the model is as before afterwards,
    with its modes, gradients, buffers and the states of PyTorch's random generators. Arguments are tensors, numbers,
    text, None, and tuples, lists, dicts, named tuples and dataclasses of them. In mode `train` the step is that of the
    model's present modes, in mode `infer` of evaluation mode. The trace has other implementations of its ops, counts,
    and no times. `note` is called with the name of each attribute, such as a counter, that the step sets: a plan does
    not. Raises InputError for what cannot be traced, by `name`.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"found a model of type {type(model).__name__}, expected a torch.nn.Module", where=name)
    require_unwrapped(model, name)
    step = ModelStep(model, tuple(args), dict(kwargs or {}), loss)
    call_of(step, name)
    return with_counts(completed(to_trace(export_live(step, name, mode, note), name, mode)))


def completed(
    trace: Trace,
    *,
    optimizer: Literal["adam", "sgd"] | None = None,
    measured_on: str | None = None,
    note: Callable[[str], None] = lambda line: None,
) -> Trace:
    """A captured trace with the other implementations of its ops, the updates of an optimizer, and which calls return
    new memory. `measured_on` is the device on which its ops will be measured, if any: only measurements show what some
    implementations take. `note` is called with a line for each kind that is left out."""
    trace = with_implementations(trace, to_measure=measured_on is not None)
    if measured_on == "cuda":
        trace = _with_cudnn(trace, note)
    if optimizer:
        trace = with_optimizer(trace, optimizer)
    return with_results(trace)


def _with_cudnn(trace: Trace, note: Callable[[str], None]) -> Trace:
    """With cuDNN's algorithms, where they can be called."""
    from treadle.kernels.convolution_cudnn import require_cudnn
    from treadle.planner.graph.implementations.cudnn import with_cudnn

    try:
        require_cudnn()
    except (MissingBackendError, CheckFailed) as error:
        note(f"cuDNN's own algorithms are left out: {error}")
        return trace
    return with_cudnn(trace)
