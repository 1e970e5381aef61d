"""Norms and reductions of whole tensors, of each tensor and along dimensions: phases, several blocks, several ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.codegen.fusion.sessions import compare, fill, integers, session
from tests.planner.passes.fusion.schedule_builder import ScheduleBuilder
from treadle.codegen.fusion import reductions
from treadle.codegen.fusion.lower import Lowered, lower
from treadle.planner.passes.fusion import language as cc
from treadle.planner.passes.fusion.evaluate import evaluate
from treadle.planner.passes.fusion.program import Bindings

PARTS = (13, 1, 0, 70, 17)


def reduced(end: str, layout: object) -> tuple[list[Any], list[Any]]:
    """Reductions that wait for each other, and an Update of what was reduced: inputs and outputs."""
    n = cc.dims("N")
    x, y, p = (cc.Tensor(f"{name}{end}", "f32", [n], layout) for name in "xyp")
    s = cc.ReduceTensor("+", x * y, per="tensor", name=f"s{end}")
    most = cc.ReduceTensor("max", x + s, per="tensor", name=f"most{end}")
    whole = cc.ReduceTensor("+", x * x, name=f"whole{end}")
    p_ = cc.Update(p, p + s * most + x * whole + most, name=f"p_{end}")
    both = cc.Max(s + most, most, name=f"both{end}")
    return [x, y, p], [s, most, whole, p_, both]


def along() -> tuple[list[Any], list[Any]]:
    """Sums along either dimension of slices along either."""
    t, h = cc.dims("T", "H")
    a, b = cc.Tensor("a", "i32", [t, h], cc.Sliced(0)), cc.Tensor("b", "f32", [t, h], cc.Sliced(1))
    down = cc.ReduceTensor("+", a, dim=0, name="down")
    least = cc.ReduceTensor("min", b, dim=0, name="least")
    above = cc.Max(b + least, b, name="above")
    across = cc.ReduceTensor("max", b, dim=1, name="across")
    return [a, b], [down, least, above, across]


def lamb_end() -> tuple[list[Any], list[Any]]:
    m = cc.dims("M")
    p, u = cc.Tensor("p", "f32", [m], cc.Sliced(cc.FLAT)), cc.Tensor("u", "f32", [m], cc.Sliced(cc.FLAT))
    lengths = cc.Norm(p, per="tensor", name="length_p"), cc.Norm(u, per="tensor", name="length_u")
    return [p, u], [cc.Update(p, p - lengths[0] / lengths[1] * u, name="p_")]


@pytest.fixture(scope="module")
def lowered() -> Iterator[Lowered]:
    """A kernel on flat slices, one on the tiles of a ring, others; with several threadblocks each."""
    flat, ring = cc.Sliced(cc.FLAT), cc.Sliced(cc.FLAT, cc.RingTile(2, 5))
    parts = [reduced("_f", flat), reduced("_r", ring), along(), lamb_end()]
    program = cc.Execute(
        "all", [x for inputs, _ in parts for x in inputs], [x for _, outputs in parts for x in outputs]
    )
    schedule = ScheduleBuilder(program)
    for end in ("_f", "_r"):
        schedule.fuse([f"{name}{end}" for name in ("s", "most", "whole", "p_", "both")], "ComputationFuse")
    schedule.fuse(["least", "above"], "ComputationFuse")
    schedule.fuse(["length_p", "length_u", "p_"], "ComputationFuse")
    bindings = Bindings({"N": sum(PARTS), "M": 6, "T": 5, "H": 7}, 3, parts={"N": PARTS, "M": (2, 4)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reductions, "SHARE", 16)
        yield lower(schedule.program, bindings)


def test_reductions_are_exact_on_whole_numbers(lowered: Lowered) -> None:
    assert {launch[0].blocks for launch in lowered.launches} >= {7}
    # Several runs from the same state, so that counters go on and both halves of the slots are used.
    given = {**integers(lowered.program, lowered.bindings, most=2), **LENGTHS}
    assert compare(lowered, given, orders=range(5)) == []


LENGTHS = {"p": np.array([3, 4, 0, 5, 0, 12]), "u": np.array([8, 6, 3, 0, 4, 12])}


def test_norms_of_slices_include_the_other_ranks(lowered: Lowered) -> None:
    """As in section 7.3 of CoCoNet, over three ranks: [3, 4] and [8, 6] have the lengths 5 and 10, the others 13."""
    given = {**integers(lowered.program, lowered.bindings), **LENGTHS}
    with session(lowered) as live:
        fill(live, evaluate(lowered.program, lowered.bindings, given))
        assert live.run() == []
        assert [live.tensors[rank][lowered.places["p"]].tolist() for rank in range(3)] == [[-1, 1], [-3, 5], [-4, 0]]


def test_a_rank_that_does_not_come_is_reported() -> None:
    """Without its totals the others block forever, and report what they wait for."""
    n = cc.dims("N")
    x = cc.Tensor("x", "f32", [n], cc.Sliced(cc.FLAT))
    program = cc.Execute("total", [x], [cc.ReduceTensor("+", x, name="s")])
    lowered = lower(program, Bindings({"N": 40}, 2))
    text = lowered.text.replace(
        "const int rank = rank_of(task);", "const int rank = rank_of(task);\n    if (rank == 1) return;"
    )
    with session(lowered, changed={"schedule.cu": text}) as live:
        found = live.run()
    assert any("rank 0" in line and "waits for partial sums of rank 1" in line for line in found)
