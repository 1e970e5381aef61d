"""A model as each target of a memory plan trains it: the generated step, or PyTorch under generated directions."""

from __future__ import annotations

import types
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from treadle.capture.load import ModelStep
from treadle.codegen.memory import torch_compile, torch_module, torch_sac
from treadle.codegen.python_form import require_form
from treadle.codegen.swap import torch_offload
from treadle.runtime.meter import Meter
from treadle.runtime.offload_ops import stand_in
from treadle.runtime.planned_module import PlannedModule
from treadle.runtime.planned_step import load_step

FILES = {
    "torch": torch_module.FILE_NAME,
    "torch-sac": torch_sac.FILE_NAME,
    "torch-compile": torch_compile.FILE_NAME,
    "torch-offload": torch_offload.FILE_NAME,
}
"""The file of each target."""

Loss = Callable[..., Any] | None


class Follower(NamedTuple):
    """`call` computes what the step returns from its arguments. A meter watches one step inside `watching(meter)`."""

    call: Callable[..., Any]
    watching: Callable[[Meter], AbstractContextManager[Any]]


def plain(model: nn.Module, loss: Loss) -> Follower:
    """The step as the user wrote it."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return ModelStep(model, args, kwargs, loss).run()

    return Follower(call, lambda meter: meter)


def follow(target: str, text: str, name: str, model: nn.Module, loss: Loss) -> Follower:
    """`model`, changed in place where the target asks for it, trained as `text` says; `name` is what errors call it.

    On the CPU stand-ins make the copies of `torch-offload`. Raises InputError for a text that treadle does not
    generate."""
    if target == "torch":
        return plain(PlannedModule(model, load_step(text, name)), None)
    require_form(target, text, FILES[target])
    generated = types.ModuleType(FILES[target].removesuffix(".py"))
    generated.__file__ = FILES[target]
    exec(compile(text, FILES[target], "exec"), generated.__dict__)
    if target == "torch-sac":
        return plain(generated.apply(model), loss)
    if target == "torch-offload":
        stand_in()
    return _partitioned(generated.partition, model, loss)


def _partitioned(partition: Callable[..., Any], model: nn.Module, loss: Loss) -> Follower:
    """The step through torch.compile with `partition`; its two graphs run operator by operator, so that a meter sees
    every tensor. torch.compile itself does nothing while a meter is on, so the meter is on inside the graphs."""
    from torch._dynamo.backends.common import aot_autograd

    meters: list[Meter] = []

    def run(graph: fx.GraphModule, _inputs: Any) -> Callable[..., Any]:
        interpreter = fx.Interpreter(graph)

        def call(arguments: list[Any]) -> Any:
            with meters[-1] if meters else nullcontext():
                try:
                    return interpreter.boxed_run(arguments)
                finally:
                    interpreter.env.clear()  # it would hold what was saved through the backward pass

        call._boxed_call = True  # type: ignore[attr-defined]
        return call

    class Watching:
        def __init__(self, meter: Meter) -> None:
            self.meter = meter

        def __enter__(self) -> None:
            meters.append(self.meter)

        def __exit__(self, *error: Any) -> None:
            meters.pop()

    step = plain(model, loss).call
    compiled: Callable[..., Tensor] = torch.compile(step, backend=aot_autograd(fw_compiler=run, partition_fn=partition))
    return Follower(compiled, Watching)
