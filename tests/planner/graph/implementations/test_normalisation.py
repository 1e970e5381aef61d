"""Normalisations: backward by the output, and again by the statistics of the first run."""

from __future__ import annotations

import pytest

from tests.planner.graph.implementations.traces import back, changed, op, rewritten, step, t, the, value, ways
from treadle.planner.documents.trace import Trace


def batch_norm() -> Trace:
    tensors = [
        value("x", "input", (2, 4, 3, 3)),
        value("w", "parameter", (4,), name="w"),
        value("b", "parameter", (4,), name="b"),
        value("m", "buffer", (4,), name="m"),
        value("v", "buffer", (4,), name="v"),
        value("h", "activation", (2, 4, 3, 3)),
        value("y", "activation", (2, 4, 3, 3)),
        *(value(name, "activation", (4,)) for name in ("mean", "std", "m2", "v2")),
        value("z", "output", (2, 4, 3, 3)),
        value("gz", "tangent", (2, 4, 3, 3)),
        value("gh", "gradient", (2, 4, 3, 3)),
        value("gw", "gradient", (4,), gradient_of="w"),
        value("gb", "gradient", (4,), gradient_of="b"),
        value("gx", "gradient", (2, 4, 3, 3), gradient_of="x"),
    ]
    mask = [True, True, True]
    ops = [
        op("neg", "aten.neg.default", [t("x")], ["h"]),
        op(
            "norm",
            "aten._native_batch_norm_legit_functional.default",
            [t("h"), t("w"), t("b"), t("m"), t("v"), True, 0.1, 1e-5],
            ["y", "mean", "std", "m2", "v2"],
        ),
        op("exp", "aten.sigmoid.default", [t("y")], ["z"]),
        back(
            "unnorm",
            "aten.native_batch_norm_backward.default",
            [t("gz"), t("h"), t("w"), t("m2"), t("v2"), t("mean"), t("std"), True, 1e-5, mask],
            ["gh", "gw", "gb"],
        ),
        back("unneg", "aten.neg.default", [t("gh")], ["gx"]),
    ]
    return step(tensors, ops, outputs=("z",), tangents=("gz",), updates=(("m", "m2"), ("v", "v2")))


def layer_norm() -> Trace:
    tensors = [
        value("x", "input", (5, 8)),
        value("w", "parameter", (8,), name="w"),
        value("b", "parameter", (8,), name="b"),
        value("y", "output", (5, 8)),
        value("mean", "activation", (5, 1)),
        value("std", "activation", (5, 1)),
        value("gy", "tangent", (5, 8)),
        value("gw", "gradient", (8,), gradient_of="w"),
        value("gb", "gradient", (8,), gradient_of="b"),
        value("gx", "gradient", (5, 8), gradient_of="x"),
    ]
    mask = [True, True, True]
    ops = [
        op("norm", "aten.native_layer_norm.default", [t("x"), [8], t("w"), t("b"), 1e-5], ["y", "mean", "std"]),
        back(
            "unnorm",
            "aten.native_layer_norm_backward.default",
            [t("gy"), t("x"), [8], t("mean"), t("std"), t("w"), t("b"), mask],
            ["gx", "gw", "gb"],
        ),
    ]
    return step(tensors, ops, outputs=("y",), tangents=("gy",))


def test_batch_norm_again_keeps_the_statistics_of_the_first_run():
    way = ways(rewritten(batch_norm()), "norm")["again"]
    assert (way.family, way.target, way.again) == ("statistics", "treadle.batch_norm_again", True)
    assert way.args == (t("h"), t("w"), t("b"), t("mean"), t("std"))
    assert (way.inputs, way.outputs) == (("h", "w", "b", "mean", "std"), ("y",))


def test_batch_norm_backward_by_its_output():
    way = ways(rewritten(batch_norm()), "unnorm")["output"]
    assert (way.family, way.target) == ("out", "treadle.batch_norm_backward_output")
    assert way.args == (t("gz"), t("y"), t("w"), t("b"), t("std"), [True, True, True])
    assert way.outputs == ("gh", "gw", "gb")


def test_layer_norm_backward_by_its_output():
    found = rewritten(layer_norm())
    way = ways(found, "unnorm")["output"]
    assert (way.family, way.target) == ("out", "treadle.layer_norm_backward_output")
    assert way.args == (t("gy"), t("y"), [8], t("w"), t("b"), t("std"), [True, True, True])
    assert not ways(found, "norm")


@pytest.mark.parametrize("place", [1, 2])
def test_without_scale_or_shift_only_the_input_will_do(place):
    trace = batch_norm()
    args = list(the(trace, "norm").args)
    args[place] = None
    trace = changed(trace, "norm", args=tuple(args))
    if place == 1:
        args = list(the(trace, "unnorm").args)
        args[2] = None
        trace = changed(trace, "unnorm", args=tuple(args))
    found = rewritten(trace)
    assert not ways(found, "unnorm")
    assert ways(found, "norm")["again"].args[place] is None


def test_running_statistics_are_no_batch_statistics():
    trace = batch_norm()
    args = (*the(trace, "norm").args[:5], False, 0.1, 1e-5)
    assert not ways(rewritten(changed(trace, "norm", args=args)), "norm")
    args = (*the(trace, "unnorm").args[:7], False, 1e-5, [True] * 3)
    assert not ways(rewritten(changed(trace, "unnorm", args=args)), "unnorm")


def test_another_ops_input_or_statistics_are_not_mixed_up():
    trace = batch_norm()
    args = list(the(trace, "unnorm").args)
    args[1] = t("x")
    assert not ways(rewritten(changed(trace, "unnorm", args=tuple(args))), "unnorm")
    args[1], args[6] = t("h"), t("m")
    assert not ways(rewritten(changed(trace, "unnorm", args=tuple(args))), "unnorm")
