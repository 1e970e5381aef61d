"""Convolutions on fibers against the interpreter: every layout of the table, ragged parts, strides and edges."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.codegen.fusion.sessions import Session, fill, integers, session, wrong
from treadle.codegen.fusion.lower import lower
from treadle.planner.machine.dtypes import Dtype
from treadle.planner.passes.fusion import language as cc
from treadle.planner.passes.fusion.counts import counts
from treadle.planner.passes.fusion.evaluate import evaluate
from treadle.planner.passes.fusion.layouts import Layout, Local, Replicated, Sliced
from treadle.planner.passes.fusion.program import Bindings, Program

LAYOUTS: dict[str, tuple[Layout, Layout, Dtype, int, int]] = {
    "row16": (Sliced(1), Sliced(1), "f32", 2, 1),
    "row17a": (Sliced(0), Replicated(), "f16", 1, 0),
    "row17b": (Replicated(), Sliced(0), "f32", 1, 2),
    "row17c": (Replicated(), Replicated(), "f16", 3, 1),
    "row17c_local": (Local(), Replicated(), "f32", 1, 1),
}
RAGGED = Bindings({"N": 4, "C": 5, "K": 7}, 3)


def convolutions() -> Program:
    """All of them in one program, which is compiled once."""
    n, c, k = cc.dims("N", "C", "K")
    inputs, outputs = [], []
    for name, (left, right, dtype, stride, padding) in LAYOUTS.items():
        x = cc.Tensor(f"x_{name}", dtype, [n, c, 6, 5], left)
        w = cc.Tensor(f"w_{name}", dtype, [k, c, 3, 2], right)
        inputs += [x, w]
        outputs.append(cc.Conv2d(x, w, stride=stride, padding=padding))
    return cc.Execute("convolutions", inputs, outputs)


@pytest.fixture(scope="module")
def live() -> Iterator[Session]:
    with session(lower(convolutions(), RAGGED)) as opened:
        yield opened


@pytest.mark.parametrize("order", range(3))
def test_convolutions_of_whole_numbers_are_exact(live: Session, order: int) -> None:
    values = evaluate(live.lowered.program, RAGGED, integers(live.lowered.program, RAGGED, order, most=3))
    fill(live, values)
    assert live.run(order=order) == []
    assert wrong(live, values) == []


def test_operands_and_results_count_as_traffic_once(live: Session) -> None:
    """What the ranks count together is what the table says for all of them."""
    before = [live.counts(rank) for rank in range(RAGGED.ranks)]
    fill(live, evaluate(live.lowered.program, RAGGED, integers(live.lowered.program, RAGGED)))
    assert live.run() == []
    after = [live.counts(rank) for rank in range(RAGGED.ranks)]
    planned = counts(live.lowered.program)
    for what in ("loaded", "stored"):
        found = sum(getattr(new, what) - getattr(old, what) for old, new in zip(before, after, strict=True))
        each = [getattr(stage, {"loaded": "loads", "stored": "stores"}[what]).value(RAGGED) for stage in planned.stages]
        assert found == RAGGED.ranks * sum(each), what
