"""Training steps written by hand, call by call, with contiguous tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from treadle.planner.documents.arguments import named_tensors
from treadle.planner.documents.trace import Costs, Implementation, Op, Tensor, Trace
from treadle.planner.graph.implementations import with_implementations
from treadle.planner.graph.implementations.index import named

SIZES = {"float32": 4, "float64": 8, "float16": 2, "bool": 1, "uint8": 1, "int64": 8}


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(shape[place + 1 :]) for place in range(len(shape)))


def value(key: str, role: str, shape: Sequence[int], dtype: str = "float32", /, **fields: Any) -> Tensor:
    size = math.prod(shape) * SIZES[dtype]
    return Tensor(
        id=key, role=role, bytes=size, shape=tuple(shape), dtype=dtype, **{"stride": contiguous(shape)} | fields
    )


def t(name: str) -> dict[str, str]:
    return {"tensor": name}


def op(
    name: str, target: str, args: Sequence[Any], outputs: Sequence[str | None], phase: str = "forward", **fields: Any
) -> Op:
    return Op(
        id=name, target=target, phase=phase, inputs=named(args), outputs=tuple(outputs), args=tuple(args), **fields
    )


def back(name: str, target: str, args: Sequence[Any], outputs: Sequence[str | None], **fields: Any) -> Op:
    return op(name, target, args, outputs, "backward", **fields)


def step(tensors: Sequence[Tensor], ops: Sequence[Op], **fields: Any) -> Trace:
    found = Trace(
        version=1,
        name="hand",
        mode="train",
        source="hand",
        costs=Costs(model="recorded"),
        tensors=tuple(tensors),
        ops=tuple(ops),
        **fields,
    )
    assert list(found.problems()) == []
    return found


def rewritten(trace: Trace) -> Trace:
    """With implementations, sound and the same when rewritten again."""
    found = with_implementations(trace)
    assert list(found.problems()) == []
    assert with_implementations(found) == found
    return found


def ways(trace: Trace, name: str) -> dict[str, Implementation]:
    return {way.name: way for way in the(trace, name).implementations}


def the(trace: Trace, name: str) -> Op:
    return next(found for found in trace.ops if found.id == name)


def priced(trace: Trace, times: Mapping[str, int] = {}, workspace: Mapping[str, int] = {}) -> Trace:
    """Every call takes 1 ns and no workspace, or what is said for its op, or for its implementation as `op/name`."""

    def costs(name: str) -> dict[str, int]:
        return {"time_ns": times.get(name, 1), "workspace_bytes": workspace.get(name, 0)}

    ops = []
    for found in trace.ops:
        others = (replace(other, **costs(f"{found.id}/{other.name}")) for other in found.implementations)
        ops.append(replace(found, **costs(found.id), implementations=tuple(others)))
    return replace(trace, ops=tuple(ops))


def conv_args(
    x: str, weight: str, bias: str | None, *, padding: int = 1, spatial: int = 2, **numbers: Any
) -> list[Any]:
    """The arguments of `aten.convolution`: stride 1 and so on unless given."""
    ones, zeros = [1] * spatial, [0] * spatial
    plain: dict[str, Any] = {"stride": ones, "padding": [padding] * spatial, "dilation": ones, "transposed": False}
    plain |= {"output_padding": zeros, "groups": 1} | numbers
    return [t(x), t(weight), None if bias is None else t(bias), *plain.values()]


def small_net() -> Trace:
    """x -> 3x3 convolution c -> ReLU r -> 2x2 pooling p -> 3x3 convolution y -> mean loss, with its gradients."""
    tensors = [
        value("x", "input", (2, 3, 8, 8)),
        value("w1", "parameter", (4, 3, 3, 3), name="w1"),
        value("b1", "parameter", (4,), name="b1"),
        value("w2", "parameter", (4, 4, 3, 3), name="w2"),
        value("b2", "parameter", (4,), name="b2"),
        value("c", "activation", (2, 4, 8, 8)),
        value("r", "activation", (2, 4, 8, 8)),
        value("p", "activation", (2, 4, 4, 4)),
        value("i", "activation", (2, 4, 4, 4), "int64"),
        value("y", "activation", (2, 4, 4, 4)),
        value("loss", "output", ()),
        value("one", "tangent", ()),
        value("gy", "gradient", (2, 4, 4, 4)),
        value("gp", "gradient", (2, 4, 4, 4)),
        value("gw2", "gradient", (4, 4, 3, 3), gradient_of="w2"),
        value("gb2", "gradient", (4,), gradient_of="b2"),
        value("gr", "gradient", (2, 4, 8, 8)),
        value("gc", "gradient", (2, 4, 8, 8)),
        value("gw1", "gradient", (4, 3, 3, 3), gradient_of="w1"),
        value("gb1", "gradient", (4,), gradient_of="b1"),
    ]
    shared = conv_args("x", "x", None)[3:]
    pool = [[2, 2], [2, 2], [0, 0], [1, 1], False]
    ops = [
        op("conv1", "aten.convolution.default", conv_args("x", "w1", "b1"), ["c"]),
        op("relu", "aten.relu.default", [t("c")], ["r"]),
        op("pool", "aten.max_pool2d_with_indices.default", [t("r"), [2, 2], [2, 2]], ["p", "i"]),
        op("conv2", "aten.convolution.default", conv_args("p", "w2", "b2"), ["y"]),
        op("mean", "aten.mean.default", [t("y")], ["loss"]),
        back("fill", "aten.div.Scalar", [t("one"), 128], ["gy"]),
        back(
            "back2",
            "aten.convolution_backward.default",
            [t("gy"), t("p"), t("w2"), [4], *shared, [True, True, True]],
            ["gp", "gw2", "gb2"],
        ),
        back("unpool", "aten.max_pool2d_with_indices_backward.default", [t("gp"), t("r"), *pool, t("i")], ["gr"]),
        back("unrelu", "aten.threshold_backward.default", [t("gr"), t("r"), 0], ["gc"]),
        back(
            "back1",
            "aten.convolution_backward.default",
            [t("gc"), t("x"), t("w1"), [4], *shared, [False, True, True]],
            [None, "gw1", "gb1"],
        ),
    ]
    order = ("gw2", "gb2", "gw1", "gb1")
    return step(tensors, ops, inputs=("x",), outputs=("loss",), tangents=("one",), gradient_order=order)


def changed(trace: Trace, name: str, /, **fields: Any) -> Trace:
    """With other fields of one op or tensor; the inputs of an op go with its arguments."""
    if "args" in fields:
        fields.setdefault("inputs", tuple(dict.fromkeys(named_tensors(fields["args"]))))
    ops = tuple(replace(found, **fields) if found.id == name else found for found in trace.ops)
    tensors = tuple(replace(found, **fields) if found.id == name else found for found in trace.tensors)
    return replace(trace, ops=ops, tensors=tensors)
