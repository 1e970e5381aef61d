"""Stages that reduce rows: RMSNorm, softmax, several reductions that wait for each other, in every layout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.codegen.fusion.sessions import compare, fill, integers, session
from tests.planner.passes.fusion.schedule_builder import ScheduleBuilder
from treadle.codegen.fusion import rows
from treadle.codegen.fusion.expression import Scope
from treadle.codegen.fusion.lower import Lowered, lower
from treadle.planner.passes.fusion import language as cc
from treadle.planner.passes.fusion.evaluate import evaluate
from treadle.planner.passes.fusion.program import Bindings
from treadle.planner.passes.fusion.stages import stages


def normalised(end: str, layout: object) -> tuple[list[Any], list[Any]]:
    """An Update, two reductions of which one waits for the other, a value of each row, a mask: inputs and outputs."""
    t, h = cc.dims("T", "H")
    x = cc.Tensor(f"x{end}", "f16", [t, h], layout)
    r = cc.Tensor(f"r{end}", "f16", [t, h], layout)
    w = cc.Tensor(f"w{end}", "f32", [h], cc.Replicated)
    share = cc.Scalars(f"share{end}", "f32")
    sum_ = cc.Update(r, x + r, name=f"sum{end}")
    wide = cc.Cast("f32", sum_, name=f"wide{end}")
    square = cc.ReduceTensor("+", wide * wide, dim=1, name=f"square{end}")
    out = cc.Cast("f16", wide * (square * share) * w, name=f"out{end}")
    low = cc.ReduceTensor("max", wide - square, dim=1, name=f"low{end}")
    mask = cc.Dropout(out, p=0.3, key="rows", name=f"mask{end}")
    double = cc.Max(low + low, low, name=f"double{end}")
    return [x, r, w, share], [out, low, mask, double]


def softmax() -> tuple[list[Any], list[Any]]:
    t, h = cc.dims("T", "H")
    x = cc.Tensor("x", "f32", [t, h], cc.Local)
    greatest = cc.ReduceTensor("max", x, dim=1, name="greatest")
    e = cc.Exp(x - greatest, name="e")
    out = cc.Max(e / cc.ReduceTensor("+", e, dim=1, name="total"), 0, name="soft")
    return [x], [out]


@pytest.fixture(scope="module")
def lowered() -> Lowered:
    """A kernel for each: on whole tensors, on slices, softmax."""
    parts = [normalised("_r", cc.Replicated), normalised("_s", cc.Sliced(0)), softmax()]
    program = cc.Execute(
        "rows", [x for inputs, _ in parts for x in inputs], [x for _, outputs in parts for x in outputs]
    )
    schedule = ScheduleBuilder(program)
    for end in ("_r", "_s"):
        names = [f"{name}{end}" for name in ("sum", "wide", "square", "out", "low", "mask", "double")]
        schedule.fuse(names, "ComputationFuse")
    schedule.fuse(["greatest", "e", "total", "soft"], "ComputationFuse")
    assert [stage.kind for stage in stages(schedule.program)] == ["rows"] * 3
    return lower(schedule.program, Bindings({"T": 7, "H": 37}, 3))


def test_rows_are_exact_on_whole_numbers(lowered: Lowered) -> None:
    given = integers(lowered.program, lowered.bindings, most=2)
    found = compare(lowered, given, orders=range(3), seed=7, step=3)
    assert [line for line in found if not line.startswith("soft ")] == []


def test_softmax_takes_three_passes_over_a_row_in_one_kernel(lowered: Lowered) -> None:
    given = integers(lowered.program, lowered.bindings, most=0)
    values = evaluate(
        lowered.program, lowered.bindings, {**given, "x": np.random.default_rng(0).normal(size=(1, 3, 7, 37))}
    )
    with session(lowered) as live:
        fill(live, values)
        assert live.run() == []
        for rank in range(3):
            got = live.tensors[rank][lowered.places["soft"]].reshape(7, 37)
            np.testing.assert_allclose(got, values["soft"][0, rank], rtol=1e-5)
            np.testing.assert_allclose(got.sum(axis=1), 1, rtol=1e-5)


def test_a_row_counts_as_traffic_once(lowered: Lowered) -> None:
    """By the second pass it lies in a cache: every operand is loaded once, every result stored once."""
    given = integers(lowered.program, lowered.bindings, most=1)
    with session(lowered) as live:
        fill(live, evaluate(lowered.program, lowered.bindings, given))
        assert live.run() == []
        whole, rows, width = 7 * 37, 7, 37
        mine, own_rows = 3 * 37, 3  # of rank 0
        loaded = (2 * whole + width) + (2 * mine + width) + whole
        kept = (3 * whole + 2 * rows) + (3 * mine + 2 * own_rows) + whole
        assert (live.counts(0).loaded, live.counts(0).stored) == (loaded, kept)


def test_only_whole_rows_of_one_length_are_taken_row_by_row() -> None:
    t, h = cc.dims("T", "H")
    for layout, dims, expected in ((cc.Sliced(0), [1], True), (cc.Sliced(1), [1], False), (cc.Local, [1, 0], False)):
        x = cc.Tensor("x", "f32", [t, h], layout)
        program = cc.Execute("some", [x], [cc.ReduceTensor("+", x, dim=at, name=f"s{at}") for at in dims])
        schedule = ScheduleBuilder(program)
        if len(dims) > 1:
            schedule.fuse([f"s{at}" for at in dims], "ComputationFuse")
        stage = stages(schedule.program)[0]
        scope = lower(program, Bindings({"T": 2, "H": 2}, 1))
        assert rows.fits(stage, Scope(scope.program, scope.bindings, scope.buffers, scope.places)) is expected
