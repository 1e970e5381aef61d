"""Backward of ReLU and HardTanh by input, output or mask."""

from __future__ import annotations

import pytest

from tests.planner.graph.implementations.traces import (
    back,
    changed,
    op,
    rewritten,
    small_net,
    step,
    t,
    the,
    value,
    ways,
)


def test_relu_backward_by_output_input_or_mask():
    found = rewritten(small_net())
    own, others = the(found, "unrelu"), ways(found, "unrelu")
    assert (own.family, own.args) == ("out", (t("gr"), t("r"), 0))
    assert (others["input"].family, others["input"].target) == ("", "aten.threshold_backward.default")
    assert (others["input"].args, others["input"].inputs) == ((t("gr"), t("c"), 0), ("gr", "c"))
    assert (others["mask"].family, others["mask"].target) == ("int", "treadle.relu_backward_mask")
    assert (others["mask"].args, others["mask"].outputs) == ((t("gr"), t("relu_mask")), ("gc",))


def test_the_mask_is_one_bit_for_each_element_of_the_output():
    found = rewritten(small_net())
    mask = the(found, "relu_mask")
    assert (mask.target, mask.args, mask.outputs) == ("treadle.relu_mask", (t("r"),), ("relu_mask",))
    assert (mask.intermediate_of, mask.phase) == ("relu", "forward")
    made = next(tensor for tensor in found.tensors if tensor.id == "relu_mask")
    assert (made.shape, made.bytes, made.dtype) == ((64,), 64, "uint8")  # 2 * 4 * 8 * 8 / 8
    order = [done.id for done in found.ops]
    assert order.index("relu_mask") == order.index("relu") + 1


def test_each_way_has_a_twin_that_writes_into_the_incoming_gradient():
    others = ways(rewritten(small_net()), "unrelu")
    assert {name: (way.family, way.target, way.overwrites) for name, way in others.items() if way.overwrites} == {
        "inplace": ("out+grad-inplace", "treadle.threshold_backward_", "gr"),
        "input-inplace": ("grad-inplace", "treadle.threshold_backward_", "gr"),
        "mask-inplace": ("int+grad-inplace", "treadle.relu_backward_mask_", "gr"),
    }


def test_two_backward_ops_of_one_relu_share_its_mask():
    trace = small_net()
    second = back("unrelu2", "aten.threshold_backward.default", [t("gr"), t("r"), 0], ["gc2"])
    place = [done.id for done in trace.ops].index("unrelu") + 1
    tensors = (*trace.tensors, value("gc2", "gradient", (2, 4, 8, 8)))
    ops = (*trace.ops[:place], second, *trace.ops[place:])
    found = rewritten(step(tensors, ops, outputs=("loss",), tangents=("one",)))
    assert [done.id for done in found.ops if done.target == "treadle.relu_mask"] == ["relu_mask"]
    assert ways(found, "unrelu2")["mask"].args == (t("gr"), t("relu_mask"))
    assert "inplace" not in ways(found, "unrelu")  # the second reads the gradient as well
    assert "inplace" in ways(found, "unrelu2")


@pytest.mark.parametrize(
    "fields", [{"args": (t("gr"), t("r"), 1)}, {"args": (t("gr"), t("c"), 0), "inputs": ("gr", "c")}, {"args": None}]
)
def test_other_thresholds_are_left_alone(fields):
    found = rewritten(changed(small_net(), "unrelu", **fields))
    assert the(found, "unrelu").family == ""
    assert not {"input", "mask"} & ways(found, "unrelu").keys()


def test_without_a_shape_there_is_no_mask():
    found = rewritten(changed(small_net(), "r", shape=None))
    assert list(ways(found, "unrelu")) == ["input", "inplace", "input-inplace"]


def clamped(forward: list[float], backward: list[float]) -> dict[str, object]:
    tensors = [
        value("x", "input", (4,)),
        value("h", "activation", (4,)),
        value("y", "output", (4,)),
        value("gy", "tangent", (4,)),
        value("gh", "gradient", (4,)),
        value("gx", "gradient", (4,), gradient_of="x"),
    ]
    ops = [
        op("neg", "aten.neg.default", [t("x")], ["h"]),
        op("clamp", "aten.hardtanh.default", [t("h"), *forward], ["y"]),
        back("unclamp", "aten.hardtanh_backward.default", [t("gy"), t("h"), *backward], ["gh"]),
        back("unneg", "aten.neg.default", [t("gh")], ["gx"]),
    ]
    return ways(rewritten(step(tensors, ops, outputs=("y",), tangents=("gy",))), "unclamp")


def test_hardtanh_backward_reads_the_output_where_the_bounds_are_the_same():
    way = clamped([0.0, 6.0], [0.0, 6.0])["output"]
    assert (way.family, way.target) == ("out", "aten.hardtanh_backward.default")
    assert way.args == (t("gy"), t("y"), 0.0, 6.0)
    assert "output" in clamped([], [-1.0, 1.0])
    assert not clamped([0.0, 6.0], [0.0, 5.0])
