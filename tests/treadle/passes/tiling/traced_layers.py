"""A trace of equal layers, written by hand."""

from __future__ import annotations

from typing import Any

from treadle.planner.documents.trace import Costs, Op, Tensor, Trace


def layer(place: int) -> tuple[list[Tensor], list[Op]]:
    """A product with the weight of one layer, and what the backward pass does with it."""
    before = f"x{place}"
    form: dict[str, Any] = {"shape": (4, 4), "stride": (4, 1), "dtype": "float32", "bytes": 64}
    weight = Tensor(id=f"w{place}", role="parameter", name=f"layers.{place}.weight", **form)
    made = Tensor(id=f"x{place + 1}", role="activation", **form)
    gradient = Tensor(id=f"g{place}", role="gradient", gradient_of=weight.id, **form)
    call = [{"tensor": before}, {"tensor": weight.id}]
    forward = Op(
        id=f"f{place}", target="aten.mm.default", phase="forward", inputs=(before, weight.id), outputs=(made.id,),
        args=tuple(call), modules=("layers", f"layers.{place}"),
    )  # fmt: skip
    backward = Op(
        id=f"b{place}", target="aten.mul.Tensor", phase="backward", inputs=(made.id, weight.id),
        outputs=(gradient.id,), args=({"tensor": made.id}, {"tensor": weight.id}),
    )  # fmt: skip
    return [weight, made, gradient], [forward, backward]


def layers(count: int) -> Trace:
    first = Tensor(id="x0", role="input", shape=(4, 4), stride=(4, 1), dtype="float32", bytes=64)
    parts = [layer(place) for place in range(count)]
    ops = [*(forward for _, (forward, _) in parts), *(backward for _, (_, backward) in reversed(parts))]
    tensors = (first, *(tensor for own, _ in parts for tensor in own))
    return Trace(
        version=1, name="layers", mode="train", source="hand", costs=Costs(model="absent"), tensors=tensors,
        ops=tuple(ops), inputs=("x0",), outputs=(f"x{count}",),
    )  # fmt: skip
