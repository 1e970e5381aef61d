"""The weight gradient of a linear layer before its input gradient."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.planner.graph.implementations.traces import back, changed, op, rewritten, step, t, value
from treadle.planner.documents.trace import Op, Trace


def linear() -> Trace:
    """y = h w.t() with h = -x. PyTorch's order: input gradient, weight gradient, the sum for the bias."""
    tensors = [
        value("x", "input", (5, 3)),
        value("w", "parameter", (4, 3), name="w"),
        value("wt", "activation", (3, 4), stride=(1, 3), alias_of="w"),
        value("h", "activation", (5, 3)),
        value("y", "output", (5, 4)),
        value("gy", "tangent", (5, 4)),
        value("g", "gradient", (5, 4)),
        value("gh", "gradient", (5, 3)),
        value("ght", "gradient", (3, 5), stride=(1, 3), alias_of="gh"),
        value("gt", "gradient", (4, 5), stride=(1, 4), alias_of="g"),
        value("gw", "gradient", (4, 3), gradient_of="w"),
        value("gx", "gradient", (5, 3), gradient_of="x"),
    ]
    ops = [
        op("neg", "aten.neg.default", [t("x")], ["h"]),
        op("wt", "aten.t.default", [t("w")], ["wt"]),
        op("mm", "aten.mm.default", [t("h"), t("wt")], ["y"]),
        back("scale", "aten.neg.default", [t("gy")], ["g"]),
        back("input", "aten.mm.default", [t("g"), t("w")], ["gh"]),
        back("ght", "aten.t.default", [t("gh")], ["ght"]),
        back("gt", "aten.t.default", [t("g")], ["gt"]),
        back("weight", "aten.mm.default", [t("gt"), t("h")], ["gw"]),
        back("unneg", "aten.neg.default", [t("gh")], ["gx"]),
    ]
    return step(tensors, ops, outputs=("y",), tangents=("gy",), gradient_order=("gw",))


def order(trace: Trace) -> list[str]:
    return [found.id for found in rewritten(trace).ops][4:]


def test_the_product_that_reads_the_input_comes_first_with_its_views():
    assert order(linear()) == ["gt", "weight", "input", "ght", "unneg"]


@pytest.mark.parametrize(
    "change",
    [
        {"after": ("input",)},
        {"args": (t("ght"), t("h")), "inputs": ("ght", "h")},
        {"args": (t("gt"), t("x")), "inputs": ("gt", "x")},
        {"target": "aten.bmm.default"},
    ],
    ids=["waits", "depends", "reads no activation", "other product"],
)
def test_the_order_stays_where_it_must(change):
    assert order(changed(linear(), "weight", **change))[0] == "input"


def test_an_op_in_between_keeps_the_order():
    trace = linear()
    between: Op = back("between", "aten.neg.default", [t("gh")], ["other"])
    tensors = (*trace.tensors, value("other", "gradient", (5, 3)))
    ops = (*trace.ops[:5], between, *trace.ops[5:])
    assert order(replace(trace, tensors=tensors, ops=ops))[:2] == ["input", "between"]


def test_products_of_other_gradients_keep_their_order():
    trace = changed(linear(), "input", args=(t("gy"), t("w")), inputs=("gy", "w"))
    assert order(trace)[0] == "input"
