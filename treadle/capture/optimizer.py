"""The optimizer phase of a training step: one update for each parameter, in the order the gradients become ready.

The calls are those of PyTorch's fused optimizers with their default settings, so that a replay gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from treadle.planner.documents.trace import Op, Tensor, Trace
from treadle.planner.errors import InputError
from treadle.planner.graph.gradients import ready

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
    states: list[Tensor] = []
    ops: list[Op] = []
    for place, (parameter, gradient) in enumerate(ready(trace)):
        made, copies = _laid_out(parameter, gradient, place)
        states += made
        ops += copies
        state, updates = UPDATES[name](parameter, (made[-1] if made else gradient).id, place)
        states += state
        ops += updates
    return replace(trace, tensors=(*trace.tensors, *states), ops=(*trace.ops, *ops))


def _alike(parameter: Tensor, gradient: Tensor) -> bool:
    """Whether both have the same layout in memory."""
    sizes, strides = parameter.shape or (), (parameter.stride or (), gradient.stride or ())
    return all(size <= 1 or a == b for size, a, b in zip(sizes, *strides, strict=True))


def _laid_out(parameter: Tensor, gradient: Tensor, place: int) -> Update:
    """The gradient in the strides of its parameter, where it has others: fused updates read both as flat memory, and
    autograd leaves it so in `.grad`. The last tensor is the result."""
    if _alike(parameter, gradient):
        return [], []
    strides, sizes = parameter.stride or (), parameter.shape or ()
    order = sorted(range(len(strides)), key=lambda axis: -strides[axis])
    back = sorted(range(len(order)), key=order.__getitem__)
    wanted = [strides[axis] for axis in order]
    found = [(gradient.stride or ())[axis] for axis in order]
    shape = tuple(sizes[axis] for axis in order)
    turned = _like(gradient, f"turned_{place}", shape, found, alias_of=gradient.id)
    copied = _like(gradient, f"copied_{place}", shape, wanted)
    result = _like(gradient, f"laid_out_{place}", sizes, strides, alias_of=copied.id)
    keywords = {"memory_format": {"memory_format": "contiguous_format"}}
    return [turned, copied, result], [
        _made("aten.permute.default", gradient, turned, [order]),
        _made("aten.clone.default", turned, copied, [], keywords),
        _made("aten.permute.default", copied, result, [back]),
    ]


def _like(
    gradient: Tensor, key: str, shape: Sequence[int], stride: Sequence[int], alias_of: str | None = None
) -> Tensor:
    return Tensor(
        id=key,
        role="gradient",
        dtype=gradient.dtype,
        shape=tuple(shape),
        stride=tuple(stride),
        alias_of=alias_of,
        bytes=gradient.bytes,
    )


def _made(target: str, source: Tensor, result: Tensor, rest: list[Any], keywords: dict[str, Any] | None = None) -> Op:
    """A call that makes `result` of `source`."""
    return Op(
        id=f"make_{result.id}",
        target=target,
        phase="optimizer",
        inputs=(source.id,),
        outputs=(result.id,),
        args=({"tensor": source.id}, *rest),
        kwargs=keywords,
    )


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
