"""What may be overwritten, and every reason why something may not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from tests.planner.graph.implementations.traces import back, changed, op, rewritten, step, t, value, ways
from treadle.planner.documents.trace import Trace

SHAPE = (4, 6)


def chain(target: str = "aten.relu.default", *numbers: float) -> Trace:
    """h = -x, y = op(h), z = -y, with a backward that reads h."""
    tensors = [
        value("x", "input", SHAPE),
        value("buffer", "buffer", SHAPE, name="buffer"),
        *(value(name, "activation", SHAPE) for name in ("h", "y")),
        value("z", "output", SHAPE),
        value("gz", "tangent", SHAPE),
        value("gx", "gradient", SHAPE, gradient_of="x"),
    ]
    ops = [
        op("neg", "aten.neg.default", [t("x")], ["h"]),
        op("act", target, [t("h"), *numbers], ["y"]),
        op("neg_1", "aten.neg.default", [t("y")], ["z"]),
        back("mul", "aten.mul.Tensor", [t("gz"), t("h")], ["gx"]),
    ]
    return step(tensors, ops, outputs=("z",), tangents=("gz",))


def more(trace: Trace, tensor_: object, *ops: object, at: int | None = None) -> Trace:
    """With another tensor, and ops at a place, at the end of the forward pass unless given."""
    place = 3 if at is None else at
    return replace(trace, tensors=(*trace.tensors, tensor_), ops=(*trace.ops[:place], *ops, *trace.ops[place:]))


@pytest.mark.parametrize(
    ("target", "numbers", "expected"),
    [
        ("aten.relu.default", (), "aten.relu_.default"),
        ("aten.hardtanh.default", (0.0, 6.0), "aten.hardtanh_.default"),
        ("aten.sigmoid.default", (), "aten.sigmoid_.default"),
        ("aten.tanh.default", (), "aten.tanh_.default"),
        ("aten.leaky_relu.default", (0.1,), "aten.leaky_relu_.default"),
        ("aten.add.Tensor", (1,), "aten.add_.Tensor"),
    ],
)
def test_an_op_may_overwrite_what_no_later_forward_op_reads(target, numbers, expected):
    way = ways(rewritten(chain(target, *numbers)), "act")["inplace"]
    assert (way.family, way.target, way.overwrites) == ("inplace", expected, "h")
    assert (way.args, way.inputs, way.outputs) == ((t("h"), *numbers), ("h",), ("y",))


@pytest.mark.parametrize("name", ["relu", "silu", "gelu", "elu", "mish", "hardswish", "hardsigmoid"])
def test_inference_overwrites_what_any_element_wise_op_reads(name):
    trace = inference(chain(f"aten.{name}.default"))
    way = ways(rewritten(trace), "act")["inplace"]
    assert (way.family, way.target, way.overwrites) == ("inplace", f"aten.{name}_.default", "h")
    assert not ways(rewritten(changed(trace, "act", args=(t("x"),), inputs=("x",))), "act")


def inference(trace: Trace) -> Trace:
    ops = tuple(found for found in trace.ops if found.phase == "forward")
    tensors = tuple(found for found in trace.tensors if found.role not in ("tangent", "gradient"))
    return replace(trace, mode="infer", ops=ops, tensors=tensors, tangents=())


def view_of_h(trace: Trace) -> Trace:
    return more(
        trace,
        value("v", "activation", (24,), alias_of="h"),
        op("view", "aten.view.default", [t("h"), [24]], ["v"]),
        at=1,
    )


REFUSED: dict[str, Callable[[Trace], Trace]] = {
    "an input": lambda trace: changed(trace, "act", args=(t("x"),), inputs=("x",)),
    "an input's view": lambda trace: changed(trace, "h", alias_of="x"),
    "read later": lambda trace: more(
        trace, value("w", "activation", SHAPE), op("late", "aten.neg.default", [t("h")], ["w"])
    ),
    "read later through a view": lambda trace: more(
        view_of_h(trace), value("w", "activation", (24,)), op("late", "aten.neg.default", [t("v")], ["w"]), at=4
    ),
    "an output": lambda trace: replace(trace, outputs=("z", "h"), tangent_of=(0,)),
    "an output through a view": lambda trace: replace(view_of_h(trace), outputs=("z", "v"), tangent_of=(0,)),
    "a buffer's new value": lambda trace: replace(trace, updates=(("buffer", "h"),)),
    "made into an output": lambda trace: replace(trace, outputs=("y",)),
    "made into a buffer's new value": lambda trace: replace(trace, updates=(("buffer", "y"),)),
    "of another type": lambda trace: changed(trace, "h", dtype="float64", bytes=192),
    "of another layout": lambda trace: changed(trace, "h", stride=(1, 4)),
    "of another shape": lambda trace: changed(trace, "h", shape=(24,), stride=(1,)),
    "of unknown layout": lambda trace: changed(trace, "h", stride=None),
    "part of a larger storage": lambda trace: changed(trace, "h", storage_bytes=4096),
    "a view itself": lambda trace: changed(view_of_h(trace), "act", args=(t("v"),), inputs=("v",)),
    "an unknown call": lambda trace: changed(trace, "act", target="aten.neg.default"),
    "without arguments": lambda trace: changed(trace, "act", args=None),
}


@pytest.mark.parametrize("why", REFUSED)
def test_refused_in_the_forward_pass(why):
    assert not ways(rewritten(REFUSED[why](chain())), "act")


def residual() -> Trace:
    """a = -x, b = sigmoid(x), y = a + b; a backward reads a."""
    tensors = [
        value("x", "input", SHAPE),
        *(value(name, "activation", SHAPE) for name in ("a", "b", "y")),
        value("z", "output", SHAPE),
        value("gz", "tangent", SHAPE),
        value("gx", "gradient", SHAPE, gradient_of="x"),
    ]
    ops = [
        op("neg", "aten.neg.default", [t("x")], ["a"]),
        op("gate", "aten.sigmoid.default", [t("x")], ["b"]),
        op("add", "aten.add.Tensor", [t("a"), t("b")], ["y"]),
        op("neg_1", "aten.neg.default", [t("y")], ["z"]),
        back("mul", "aten.mul.Tensor", [t("gz"), t("a")], ["gx"]),
    ]
    return step(tensors, ops, outputs=("z",), tangents=("gz",))


def test_a_sum_overwrites_the_summand_that_backward_does_not_read():
    way = ways(rewritten(residual()), "add")["inplace"]
    assert (way.target, way.args, way.overwrites) == ("aten.add_.Tensor", (t("b"), t("a")), "b")
    other = changed(residual(), "mul", args=(t("gz"), t("b")), inputs=("gz", "b"))
    assert ways(rewritten(other), "add")["inplace"].overwrites == "a"


def test_a_scaled_summand_is_never_the_one_that_is_overwritten():
    way = ways(rewritten(changed(residual(), "add", kwargs={"alpha": 2})), "add")["inplace"]
    assert (way.args, way.kwargs, way.overwrites) == ((t("a"), t("b")), {"alpha": 2}, "a")


def test_a_summand_that_is_read_later_leaves_the_other():
    trace = changed(residual(), "neg_1", args=(t("b"),), inputs=("b",))
    assert ways(rewritten(trace), "add")["inplace"].overwrites == "a"


def test_a_sum_with_itself_overwrites_nothing():
    trace = changed(residual(), "add", args=(t("b"), t("b")), inputs=("b",))
    assert not ways(rewritten(trace), "add")


def gradients() -> Trace:
    """g = -gy, gr = threshold(g, r), gx = -gr, where r = relu(-x)."""
    tensors = [
        value("x", "input", SHAPE),
        value("w", "parameter", SHAPE, name="w"),
        *(value(name, "activation", SHAPE) for name in ("h", "r")),
        value("y", "output", SHAPE),
        value("gy", "tangent", SHAPE),
        *(value(name, "gradient", SHAPE) for name in ("g", "gr")),
        value("gx", "gradient", SHAPE, gradient_of="x"),
    ]
    ops = [
        op("neg", "aten.neg.default", [t("x")], ["h"]),
        op("relu", "aten.relu.default", [t("h")], ["r"]),
        op("neg_1", "aten.neg.default", [t("r")], ["y"]),
        back("neg_2", "aten.neg.default", [t("gy")], ["g"]),
        back("unrelu", "aten.threshold_backward.default", [t("g"), t("r"), 0], ["gr"]),
        back("neg_3", "aten.neg.default", [t("gr")], ["gx"]),
    ]
    return step(tensors, ops, outputs=("y",), tangents=("gy",))


def test_backward_may_overwrite_the_incoming_gradient():
    found = ways(rewritten(gradients()), "unrelu")
    assert [name for name, way in found.items() if way.overwrites == "g"] == [
        "inplace",
        "input-inplace",
        "mask-inplace",
    ]
    assert found["input-inplace"].args == (t("g"), t("h"), 0)


def test_a_whole_view_of_the_incoming_gradient_may_be_overwritten():
    trace = changed(gradients(), "unrelu", args=(t("v"), t("r"), 0), inputs=("v", "r"))
    view = back("view", "aten.view.default", [t("g"), [4, 6]], ["v"])
    trace = more(trace, value("v", "gradient", SHAPE, alias_of="g"), view, at=4)
    assert ways(rewritten(trace), "unrelu")["inplace"].overwrites == "v"


REFUSED_BACKWARD: dict[str, Callable[[Trace], Trace]] = {
    "read later": lambda trace: changed(trace, "neg_3", args=(t("g"),), inputs=("g",)),
    "a tangent": lambda trace: changed(trace, "unrelu", args=(t("gy"), t("r"), 0), inputs=("gy", "r")),
    "a final gradient": lambda trace: changed(trace, "g", gradient_of="w"),
    "made in the forward pass": lambda trace: changed(trace, "unrelu", args=(t("h"), t("r"), 0), inputs=("h", "r")),
    "expanded": lambda trace: changed(trace, "g", stride=(0, 1)),
    "larger storage": lambda trace: changed(trace, "g", storage_bytes=4096),
    "another type": lambda trace: changed(trace, "gr", dtype="float64", bytes=192),
    "its own mask": lambda trace: changed(trace, "unrelu", args=(t("g"), t("g"), 0), inputs=("g",)),
}


@pytest.mark.parametrize("why", REFUSED_BACKWARD)
def test_refused_in_the_backward_pass(why):
    found = ways(rewritten(REFUSED_BACKWARD[why](gradients())), "unrelu")
    assert not any(way.overwrites for way in found.values())


def test_gradients_are_added_up_in_place():
    tensors = (*gradients().tensors, value("sum", "gradient", SHAPE))
    added = back("sum", "aten.add.Tensor", [t("gy"), t("gr")], ["sum"])
    last = back("neg_3", "aten.neg.default", [t("sum")], ["gx"])
    trace = replace(gradients(), tensors=tensors, ops=(*gradients().ops[:-1], added, last))
    way = ways(rewritten(trace), "sum")["inplace"]
    assert (way.family, way.target) == ("grad-inplace", "aten.add_.Tensor")
    assert (way.args, way.overwrites) == ((t("gr"), t("gy")), "gr")  # gy is the caller's
