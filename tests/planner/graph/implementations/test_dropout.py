"""Dropout backward by the mask, by its bits, or by drawing it again."""

from __future__ import annotations

from msgspec.structs import replace

from tests.planner.graph.implementations.traces import back, changed, op, rewritten, step, t, the, value, ways
from treadle.planner.documents.trace import Trace


def dropout() -> Trace:
    tensors = [
        value("x", "input", (3, 5)),
        value("h", "activation", (3, 5)),
        value("y", "output", (3, 5)),
        value("m", "activation", (3, 5), "bool"),
        value("gy", "tangent", (3, 5)),
        value("gh", "gradient", (3, 5)),
        value("gx", "gradient", (3, 5), gradient_of="x"),
    ]
    ops = [
        op("neg", "aten.neg.default", [t("x")], ["h"]),
        op("drop", "aten.native_dropout.default", [t("h"), 0.25, True], ["y", "m"], random=True),
        back("undrop", "aten.native_dropout_backward.default", [t("gy"), t("m"), 4 / 3], ["gh"]),
        back("unneg", "aten.neg.default", [t("gh")], ["gx"]),
    ]
    return step(tensors, ops, outputs=("y",), tangents=("gy",))


def test_the_mask_as_bits():
    found = rewritten(dropout())
    pack, way = the(found, "drop_packed"), ways(found, "undrop")["packed"]
    assert (pack.target, pack.args, pack.intermediate_of) == ("treadle.dropout_mask_pack", (t("m"),), "drop")
    made = next(tensor for tensor in found.tensors if tensor.id == "drop_packed")
    assert (made.shape, made.bytes, made.dtype) == ((2,), 2, "uint8")
    assert (way.family, way.target) == ("int", "treadle.dropout_backward_packed")
    assert way.args == (t("gy"), t("drop_packed"), 4 / 3)


def test_the_mask_drawn_again_from_the_state_before_the_dropout():
    found = rewritten(dropout())
    assert [done.id for done in found.ops] == ["neg", "drop_state", "drop", "drop_packed", "undrop", "unneg"]
    state, way = the(found, "drop_state"), ways(found, "undrop")["again"]
    assert (state.target, state.args, state.intermediate_of) == ("treadle.rng_state", (t("h"),), "neg")
    assert not state.random
    assert (way.family, way.target) == ("rng", "treadle.dropout_backward_rng")
    assert way.args == (t("gy"), t("drop_state"), 0.25)


def test_without_a_maker_of_the_input_there_is_nothing_to_note_the_state_with():
    trace = dropout()
    trace = changed(trace, "drop", args=(t("x"), 0.25, True), inputs=("x",))
    trace = replace(trace, ops=trace.ops[1:])
    assert list(ways(rewritten(trace), "undrop")) == ["packed"]


def test_a_gradient_that_lies_otherwise_than_the_input_cannot_draw_again():
    assert list(ways(rewritten(changed(dropout(), "gy", stride=(1, 3))), "undrop")) == ["packed"]


def test_a_dropout_that_draws_nothing_keeps_its_mask():
    assert not ways(rewritten(changed(dropout(), "drop", random=False)), "undrop")
