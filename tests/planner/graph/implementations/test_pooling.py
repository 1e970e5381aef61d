"""Pooling without an index, and backward by the input or by one byte for each window."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

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

NUMBERS = ([2, 2], [2, 2], [0, 0], [1, 1], False)


def test_values_only_with_an_optional_index():
    found = rewritten(small_net())
    pool, index = the(found, "pool"), the(found, "pool_index")
    assert (pool.target, pool.args, pool.outputs) == ("treadle.max_pool2d", (t("r"), *NUMBERS), ("p",))
    assert (index.target, index.args) == ("treadle.max_pool2d_index", (t("r"), *NUMBERS, t("p")))
    assert (index.inputs, index.outputs, index.intermediate_of) == (("r", "p"), ("pool_index",), "pool")
    assert [done.id for done in found.ops].index("pool_index") == [done.id for done in found.ops].index("pool") + 1
    made = next(tensor for tensor in found.tensors if tensor.id == "pool_index")
    assert (made.shape, made.stride, made.dtype, made.bytes) == ((2, 4, 4, 4), (64, 16, 4, 1), "uint8", 128)
    assert "i" not in {tensor.id for tensor in found.tensors}


def test_backward_reads_the_input_or_the_index():
    found = rewritten(small_net())
    own, way = the(found, "unpool"), ways(found, "unpool")["index"]
    assert (own.target, own.family) == ("treadle.max_pool2d_backward", "")
    assert (own.args, own.inputs) == ((t("gp"), t("r"), *NUMBERS), ("gp", "r"))
    assert (way.target, way.family) == ("treadle.max_pool2d_backward_index", "int")
    assert (way.args, way.inputs) == ((t("gp"), t("pool_index"), [2, 4, 8, 8], *NUMBERS), ("gp", "pool_index"))


def pooled(kernel: list[int], *numbers: object, places_read: bool = False) -> list[str]:
    tensors = [
        value("x", "input", (1, 1, 40, 40)),
        value("p", "output", (1, 1, 20, 20)),
        value("i", "activation", (1, 1, 20, 20), "int64"),
        value("j", "activation", (1, 1, 20, 20), "int64"),
        value("gp", "tangent", (1, 1, 20, 20)),
        value("gx", "gradient", (1, 1, 40, 40), gradient_of="x"),
    ]
    ops = [
        op("pool", "aten.max_pool2d_with_indices.default", [t("x"), kernel, *numbers], ["p", "i"]),
        back(
            "unpool",
            "aten.max_pool2d_with_indices_backward.default",
            [t("gp"), t("x"), kernel, *numbers, *([], [0, 0], [1, 1], False)[len(numbers) :], t("i")],
            ["gx"],
        ),
    ]
    if places_read:
        ops.insert(1, op("neg", "aten.neg.default", [t("i")], ["j"]))
    return rewritten(step(tensors, ops, outputs=("p",), tangents=("gp",)))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (([3, 3],), [[3, 3], [3, 3], [0, 0], [1, 1], False]),
        (([3],), [[3, 3], [3, 3], [0, 0], [1, 1], False]),
        (([3, 3], []), [[3, 3], [3, 3], [0, 0], [1, 1], False]),
        (([3, 3], [2, 2], [1, 1]), [[3, 3], [2, 2], [1, 1], [1, 1], False]),
        (([3, 2], [2, 1], [1, 1], [2, 2], True), [[3, 2], [2, 1], [1, 1], [2, 2], True]),
    ],
)
def test_defaults_of_the_operator_are_spelt_out(given, expected):
    assert the(pooled(*given), "pool").args[1:] == tuple(expected)


def test_an_index_of_a_window_over_256_cells_does_not_fit_a_byte():
    assert ways(pooled([16, 16], [2, 2], [8, 8]), "unpool")
    large = pooled([17, 16], [2, 2], [8, 8])
    assert not ways(large, "unpool")
    assert the(large, "unpool").target == "treadle.max_pool2d_backward"
    assert not any(done.intermediate_of for done in large.ops)


def test_an_index_that_somebody_else_reads_or_holds_stays():
    assert the(pooled([2, 2], places_read=True), "pool").target == "aten.max_pool2d_with_indices.default"
    held = rewritten(replace(small_net(), outputs=("loss", "i"), tangent_of=(0,)))
    assert the(held, "pool").target == "aten.max_pool2d_with_indices.default"
    assert the(held, "unpool").target == "aten.max_pool2d_with_indices_backward.default"


def test_unknown_shapes_have_no_index():
    assert not ways(rewritten(changed(small_net(), "p", shape=None)), "unpool")
