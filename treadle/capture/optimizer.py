"""The optimizer phase of a training step: one update for each parameter, in the order the gradients become ready.

The calls are those of PyTorch's fused optimizers with their default settings, so that a replay gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from planner.errors import InputError
from planner.trace import Op, Tensor, Trace

SGD = {"lr": 0.001, "weight_decay": 0.0, "momentum": 0.0, "dampening": 0.0, "nesterov": False, "maximize": False}
ADAM = {
    "lr": 0.001, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.0, "eps": 1e-8, "amsgrad": False, "maximize": False,
}  # fmt: skip

Update = tuple[list[Tensor], list[Op]]


def with_optimizer(trace: Trace, name: str) -> Trace:
    """`trace` followed by the updates of the optimizer `name` (`sgd` or `adam`).

    Adam's two moments and its step count of each parameter are buffers named `optimizer.exp_avg.<parameter>` and so on.
    Raises InputError for a trace without gradients.
    """
    if not trace.gradient_order:
        raise InputError("found no gradients, expected a training step to add an optimizer to", where=trace.name)
    tensors = {tensor.id: tensor for tensor in trace.tensors}
    states: list[Tensor] = []
    ops: list[Op] = []
    for place, gradient in enumerate(trace.gradient_order):
        parameter = tensors[tensors[gradient].gradient_of or ""]
        state, updates = UPDATES[name](parameter, gradient, place)
        states += state
        ops += updates
    return replace(trace, tensors=(*trace.tensors, *states), ops=(*trace.ops, *ops))


def _sgd(parameter: Tensor, gradient: str, place: int) -> Update:
    call = _call(
        f"sgd_{place}", "aten._fused_sgd_.default", [[parameter.id], [gradient], []], {**SGD, "is_first_step": False}
    )
    return [], [replace(call, mutates=(parameter.id,))]


def _adam(parameter: Tensor, gradient: str, place: int) -> Update:
    first, second, step = (
        Tensor(
            id=f"{kind}_{place}",
            role="buffer",
            name=f"optimizer.{kind}.{parameter.name}",
            shape=() if kind == "step" else parameter.shape,
            stride=() if kind == "step" else parameter.stride,
            dtype="float32" if kind == "step" else parameter.dtype,
            bytes=4 if kind == "step" else parameter.bytes,
        )
        for kind in ("exp_avg", "exp_avg_sq", "step")
    )
    lists = [[parameter.id], [gradient], [first.id], [second.id], [], [step.id]]
    count = Op(
        id=f"adam_step_{place}",
        target="aten.add_.Tensor",
        phase="optimizer",
        inputs=(step.id,),
        mutates=(step.id,),
        args=({"tensor": step.id}, 1),
    )
    update = _call(f"adam_{place}", "aten._fused_adam_.default", lists, ADAM)
    return [first, second, step], [count, replace(update, mutates=(parameter.id, first.id, second.id))]


def _call(key: str, target: str, lists: list[list[str]], settings: dict[str, Any]) -> Op:
    return Op(
        id=key,
        target=target,
        phase="optimizer",
        inputs=tuple(name for names in lists for name in names),
        args=tuple([{"tensor": name} for name in names] for names in lists),
        kwargs=settings,
    )


UPDATES: dict[str, Callable[[Tensor, str, int], Update]] = {"adam": _adam, "sgd": _sgd}
