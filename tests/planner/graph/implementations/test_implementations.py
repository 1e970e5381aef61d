"""The catalogue as a whole: what it does not change."""

from __future__ import annotations

from msgspec.structs import replace

from tests.planner.graph.implementations.traces import back, op, rewritten, small_net, step, t, value
from tests.planner.passes.memory.extract.test_problem import perceptron
from treadle.planner.graph.implementations import with_implementations


def test_no_op_without_matching_ops():
    tensors = [value("x", "input", (3,)), value("y", "output", (3,)), value("gy", "tangent", (3,))]
    tensors.append(value("gx", "gradient", (3,), gradient_of="x"))
    ops = [op("gelu", "aten.gelu.default", [t("x")], ["y"])]
    ops.append(back("ungelu", "aten.gelu_backward.default", [t("gy"), t("x")], ["gx"]))
    trace = step(tensors, ops, outputs=("y",), tangents=("gy",))
    assert with_implementations(trace) == trace


def test_traces_without_arguments_or_of_unknown_mode_stay():
    assert with_implementations(perceptron()) == perceptron()
    trace = replace(small_net(), mode="unknown")
    assert with_implementations(trace) is trace


def test_everything_else_of_the_trace_stays():
    old, new = small_net(), rewritten(small_net())
    assert [found.id for found in new.tensors if found.id in {known.id for known in old.tensors}] == [
        found.id for found in old.tensors if found.id != "i"
    ]
    for field in ("name", "inputs", "outputs", "tangents", "gradient_order", "costs"):
        assert getattr(new, field) == getattr(old, field)
    assert [found.id for found in new.ops] == [
        "conv1",
        "relu",
        "relu_mask",
        "pool",
        "pool_index",
        "conv2",
        "mean",
        "fill",
        "back2_weight",
        "back2_input",
        "unpool",
        "unrelu",
        "back1_weight",
    ]


def test_implementations_make_what_their_op_makes_and_read_what_they_name():
    for found in rewritten(small_net()).ops:
        names = [way.name for way in found.implementations]
        assert len(names) == len({*names, "default"}) - 1
        for way in found.implementations:
            made = [name for name in way.outputs if name is not None]
            assert made == [name for name in found.outputs if name in made]
            assert set(way.inputs) == {tree["tensor"] for tree in way.args if isinstance(tree, dict)}
