"""Stages that reduce rows: RMSNorm, softmax, several reductions that wait for each other, in every layout."""

from __future__ import annotations

import numpy as np
import pytest

from codegen.fusion import rows
from codegen.fusion.lower import Lowered, lower
from planner.fusion import language as cc
from planner.fusion.evaluate import evaluate
from planner.fusion.program import Bindings, Program
from planner.fusion.schedule import Schedule
from planner.fusion.stages import stages
from tests.codegen.fusion.sessions import compare, fill, integers, session


def fused(program: Program) -> Program:
    """All operations in one kernel."""
    schedule = Schedule(program)
    schedule.fuse([stage.name for stage in stages(program)], "ComputationFuse")
    return schedule.program


def normalised(layout: object) -> Program:
    """An Update, two reductions of which one waits for the other, a value of each row, a mask."""
    t, h = cc.dims("T", "H")
    x = cc.Tensor("x", "f16", [t, h], layout)
    r = cc.Tensor("r", "f16", [t, h], layout)
    w = cc.Tensor("w", "f32", [h], cc.Replicated)
    share = cc.Scalars("share", "f32")
    h_ = cc.Update(r, x + r)
    wide = cc.Cast("f32", h_)
    square = cc.ReduceTensor("+", wide * wide, dim=1)
    out = cc.Cast("f16", wide * (square * share) * w)
    low = cc.ReduceTensor("max", wide - square, dim=1)
    mask = cc.Dropout(out, p=0.3, key="rows")
    double = low + low
    return cc.Execute("normalised", [x, r, w, share], [out, low, mask, double])


@pytest.mark.parametrize("layout", [cc.Replicated, cc.Sliced(0)])
def test_rows_are_exact_on_whole_numbers(layout: object) -> None:
    program = fused(normalised(layout))
    lowered = lower(program, Bindings({"T": 7, "H": 37}, 3))
    assert [stage.kind for stage in stages(program)] == ["rows"]
    assert compare(lowered, integers(program, lowered.bindings, most=2), orders=range(3), seed=7, step=3) == []


def softmax() -> Program:
    t, h = cc.dims("T", "H")
    x = cc.Tensor("x", "f32", [t, h], cc.Local)
    greatest = cc.ReduceTensor("max", x, dim=1)
    e = cc.Exp(x - greatest)
    out = e / cc.ReduceTensor("+", e, dim=1)
    return cc.Execute("softmax", [x], [out])


def test_softmax_takes_three_passes_over_a_row_in_one_kernel() -> None:
    program = fused(softmax())
    bindings = Bindings({"T": 5, "H": 90}, 2)
    lowered = lower(program, bindings)
    values = evaluate(program, bindings, {"x": np.random.default_rng(0).normal(size=(1, 2, 5, 90))})
    with session(lowered) as live:
        fill(live, values)
        assert live.run() == []
        for rank in range(2):
            got = live.tensors[rank][lowered.places[program.outputs[0]]].reshape(5, 90)
            np.testing.assert_allclose(got, values[program.outputs[0]][0, rank], rtol=1e-5)
            np.testing.assert_allclose(got.sum(axis=1), 1, rtol=1e-5)
            # Rows lie in a cache after the first pass: each element counts once.
            assert (live.counts(rank).loaded, live.counts(rank).stored) == (450, 450)
    assert text_of(lowered).count("over_row<") == 2


def text_of(lowered: Lowered) -> str:
    ((kernel,),) = lowered.launches
    return kernel.text


def test_only_whole_rows_of_one_length_are_taken_row_by_row() -> None:
    t, h = cc.dims("T", "H")
    for layout, dims, expected in ((cc.Sliced(0), [1], True), (cc.Sliced(1), [1], False), (cc.Local, [1, 0], False)):
        x = cc.Tensor("x", "f32", [t, h], layout)
        program = cc.Execute("some", [x], [cc.ReduceTensor("+", x, dim=at, name=f"s{at}") for at in dims])
        stage = stages(fused(program) if len(dims) > 1 else program)[0]
        scope = lower(program, Bindings({"T": 2, "H": 2}, 1))
        assert rows.fits(stage, _scope(scope)) is expected


def _scope(lowered: Lowered):  # type: ignore[no-untyped-def]
    from codegen.fusion.expression import Scope

    return Scope(lowered.program, lowered.bindings, lowered.buffers, lowered.places)
