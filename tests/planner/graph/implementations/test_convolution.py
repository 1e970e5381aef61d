"""Convolution backward in two ops, and which algorithms fit which shape."""

from __future__ import annotations

import pytest

from tests.planner.graph.implementations.traces import (
    back,
    changed,
    conv_args,
    op,
    rewritten,
    small_net,
    step,
    t,
    the,
    value,
    ways,
)
from treadle.planner.documents.trace import Trace


def test_backward_is_a_weight_gradient_and_then_an_input_gradient_that_reads_no_input():
    found = rewritten(small_net())
    names = [done.id for done in found.ops if "back" in done.id]
    assert names == ["back2_weight", "back2_input", "back1_weight"]
    window = ([1, 1], [1, 1], [1, 1], 1)
    first = the(found, "back2_weight")
    assert first.target == "treadle.conv2d_weight_gradient"
    assert first.args == (t("gy"), t("p"), [4, 4, 3, 3], True, *window, "direct")
    assert (first.inputs, first.outputs) == (("gy", "p"), ("gw2", "gb2"))
    second = the(found, "back2_input")
    assert second.target == "treadle.conv2d_input_gradient"
    assert second.args == (t("gy"), t("w2"), [2, 4, 4, 4], *window, "direct")
    assert (second.inputs, second.outputs) == (("gy", "w2"), ("gp",))
    assert the(found, "back1_weight").outputs == ("gw1", "gb1")


def test_ids_that_are_taken_get_a_number():
    trace = changed(small_net(), "fill", id="back2_weight")
    assert [done.id for done in rewritten(trace).ops if "back2" in done.id] == [
        "back2_weight",
        "back2_weight_1",
        "back2_input",
    ]


def test_ops_that_wait_for_the_old_op_wait_for_both():
    trace = changed(small_net(), "unrelu", after=("back2",))
    assert the(rewritten(trace), "unrelu").after == ("back2_weight", "back2_input")


def test_algorithms_are_other_calls_on_the_same_tensors():
    found = rewritten(small_net())
    assert list(ways(found, "conv1")) == ["im2col", "im2col_sample", "winograd"]
    winograd = ways(found, "conv1")["winograd"]
    assert (winograd.family, winograd.target) == ("conv", "treadle.conv2d_winograd")
    assert winograd.args == (t("x"), t("w1"), t("b1"), [1, 1], [1, 1], [1, 1], 1)
    assert (winograd.inputs, winograd.outputs) == (("x", "w1", "b1"), ("c",))
    assert list(ways(found, "back2_weight")) == ["im2col", "im2col_sample"]
    assert list(ways(found, "back2_input")) == ["im2col", "im2col_sample", "winograd"]
    assert ways(found, "back2_input")["im2col"].args[-1] == "im2col"


def one(
    batch: int = 2, kernel: int = 3, channels: int = 4, dtype: str = "float32", spatial: int = 2, **numbers
) -> Trace:
    """One convolution of 4 channels and its backward."""
    size = (9,) * spatial
    args = conv_args("x", "w", None, spatial=spatial, **numbers)
    groups = args[-1]
    tensors = [
        value("x", "input", (batch, 4, *size), dtype),
        value("w", "parameter", (4, 4 // groups, *(kernel,) * spatial), dtype, name="w"),
        value("y", "output", (batch, 4, *size), dtype),
        value("gy", "tangent", (batch, 4, *size), dtype),
        value("gx", "gradient", (batch, 4, *size), dtype, gradient_of="x"),
        value("gw", "gradient", (4, 4 // groups, *(kernel,) * spatial), dtype, gradient_of="w"),
    ]
    ops = [
        op("conv", "aten.convolution.default", args, ["y"]),
        back(
            "back",
            "aten.convolution_backward.default",
            [t("gy"), t("x"), t("w"), [0], *args[3:], [True, True, False]],
            ["gx", "gw", None],
        ),
    ]
    return step(tensors, ops, inputs=("x",), outputs=("y",), tangents=("gy",), gradient_order=("gw",))


@pytest.mark.parametrize(
    ("options", "forward", "weight", "inputs"),
    [
        ({}, "im2col im2col_sample winograd", "im2col im2col_sample", "im2col im2col_sample winograd"),
        (
            {"dtype": "float64"},
            "im2col im2col_sample winograd",
            "im2col im2col_sample",
            "im2col im2col_sample winograd",
        ),
        ({"dtype": "float16"}, "", "", ""),
        ({"batch": 1}, "im2col winograd", "im2col", "im2col winograd"),
        ({"kernel": 1, "padding": 0}, "", "", ""),
        ({"kernel": 1, "padding": 0, "stride": [2, 2]}, "", "", ""),
        ({"stride": [2, 2]}, "im2col im2col_sample", "im2col im2col_sample", "im2col im2col_sample"),
        ({"dilation": [2, 2]}, "im2col im2col_sample", "im2col im2col_sample", "im2col im2col_sample"),
        ({"padding": 3}, "im2col im2col_sample winograd", "im2col im2col_sample", "im2col im2col_sample"),
        ({"groups": 4}, "", "", ""),
        ({"kernel": 5, "padding": 2}, *["im2col im2col_sample fft"] * 3),
        ({"kernel": 5, "padding": 2, "groups": 4}, "fft", "fft", "fft"),
    ],
)
def test_shapes_that_do_not_apply_have_no_alternatives(options, forward, weight, inputs):
    found = rewritten(one(**options))
    assert [" ".join(ways(found, name)) for name in ("conv", "back_weight", "back_input")] == [forward, weight, inputs]
    assert the(found, "back_weight").target == "treadle.conv2d_weight_gradient"


@pytest.mark.parametrize("options", [{"transposed": True}, {"spatial": 1}, {"spatial": 3}])
def test_other_convolutions_are_split_without_alternatives(options):
    found = rewritten(one(**options))
    weight, inputs = the(found, "back_weight"), the(found, "back_input")
    assert weight.target == "treadle.convolution_weight_gradient"
    assert inputs.target == "treadle.convolution_input_gradient"
    ones, zeros = [1] * options.get("spatial", 2), [0] * options.get("spatial", 2)
    assert weight.args[4:] == (ones, ones, ones, options.get("transposed", False), zeros, 1)
    assert inputs.args[2] == [2, 4, *[9] * len(ones)]
    assert not any(done.implementations for done in found.ops)


def test_a_single_number_holds_for_all_dimensions():
    found = rewritten(one(stride=[1], dilation=[1]))
    assert the(found, "back_input").args[3:6] == ([1, 1], [1, 1], [1, 1])


def test_only_what_is_wanted_is_computed():
    def masked(*mask: bool) -> list[str]:
        trace = small_net()
        outputs = tuple(name if wanted else None for name, wanted in zip(("gp", "gw2", "gb2"), mask, strict=True))
        old = the(trace, "back2")
        trace = changed(trace, "back2", args=(*old.args[:-1], list(mask)), outputs=outputs)
        return [done.id for done in rewritten(trace).ops if "back2" in done.id]

    assert masked(True, False, False) == ["back2_input"]
    assert masked(False, True, False) == ["back2_weight"]
    assert masked(True, False, True) == ["back2"]  # a bias alone needs no input


def test_unknown_shapes_and_arguments_are_left_alone():
    trace = small_net()
    blind = changed(trace, "w2", shape=None)
    assert "back2" in [done.id for done in rewritten(blind).ops]
    mute = changed(changed(trace, "conv1", args=None), "back2", args=None)
    assert not ways(rewritten(mute), "conv1")
    assert "back2" in [done.id for done in rewritten(mute).ops]
