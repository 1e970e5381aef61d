"""Norms and reductions of whole tensors, of each tensor and along dimensions: phases, several blocks, several ranks."""

from __future__ import annotations

import numpy as np
import pytest

from codegen.fusion import reductions
from codegen.fusion.lower import lower
from planner.fusion import language as cc
from planner.fusion.evaluate import evaluate
from planner.fusion.program import Bindings, Program
from planner.fusion.schedule import Schedule
from tests.codegen.fusion.sessions import compare, fill, integers, session, wrong

PARTS = (13, 1, 0, 70, 17)


@pytest.fixture(autouse=True)
def many_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reductions, "SHARE", 16)


def reduced(layout: object) -> Program:
    """Reductions that wait for each other, an Update of what was reduced, sums along either dimension."""
    n, t, h = cc.dims("N", "T", "H")
    x, y, p = (cc.Tensor(name, "f32", [n], layout) for name in "xyp")
    s = cc.ReduceTensor("+", x * y, per="tensor")
    most = cc.ReduceTensor("max", x + s, per="tensor")
    whole = cc.ReduceTensor("+", x * x)
    p_ = cc.Update(p, p + s * most + x * whole + most)
    both = s + most
    a, b = cc.Tensor("a", "i32", [t, h], cc.Sliced(0)), cc.Tensor("b", "f32", [t, h], cc.Sliced(1))
    down = cc.ReduceTensor("+", a, dim=0)
    least = cc.ReduceTensor("min", b, dim=0)
    above = b + least
    across = cc.ReduceTensor("max", b, dim=1)
    program = cc.Execute("reduced", [x, y, p, a, b], [s, most, whole, p_, both, down, least, above, across])
    schedule = Schedule(program)
    schedule.fuse(["s", "most", "whole", "p_", "both"], "ComputationFuse")
    schedule.fuse(["least", "above"], "ComputationFuse")
    return schedule.program


@pytest.mark.parametrize(("layout", "ranks"), [(cc.Sliced(cc.FLAT), 3), (cc.Sliced(cc.FLAT, cc.RingTile(2, 5)), 2)])
def test_reductions_are_exact_on_whole_numbers(layout: object, ranks: int) -> None:
    program = reduced(layout)
    bindings = Bindings({"N": sum(PARTS), "T": 5, "H": 7}, ranks, parts={"N": PARTS})
    lowered = lower(program, bindings)
    assert lowered.launches[0][0].blocks == 7
    # Several runs from the same state, so that counters go on and both halves of the slots are used.
    assert compare(lowered, integers(program, bindings, most=2), orders=range(5)) == []


def test_norms_of_slices_include_the_other_ranks() -> None:
    """CoCoNet, section 7.3: [3, 4] and [8, 6] in slices have the lengths 5 and 10."""
    n = cc.dims("N")
    p, u = cc.Tensor("p", "f32", [n], cc.Sliced(cc.FLAT)), cc.Tensor("u", "f32", [n], cc.Sliced(cc.FLAT))
    p_ = cc.Update(p, p - cc.Norm(p, per="tensor") / cc.Norm(u, per="tensor") * u)
    schedule = Schedule(cc.Execute("lamb_end", [p, u], [p_]))
    schedule.fuse([node.name for node in schedule.program.nodes if not node.anonymous], "ComputationFuse")
    bindings = Bindings({"N": 4}, 2, parts={"N": (2, 2)})
    lowered = lower(schedule.program, bindings)
    given = {"p": [3, 4, 0, 5], "u": [8, 6, 3, 4]}
    values = evaluate(schedule.program, bindings, {name: np.array(array) for name, array in given.items()})
    with session(lowered) as live:
        fill(live, values)
        assert live.run() == []
        assert wrong(live, values) == []
        place = lowered.places["p"]
        assert [live.tensors[rank][place].tolist() for rank in range(2)] == [[-1, 1], [-3, 1]]


def test_a_rank_that_does_not_come_is_reported() -> None:
    """Without its totals the others wait in vain, and say for what."""
    n = cc.dims("N")
    x = cc.Tensor("x", "f32", [n], cc.Sliced(cc.FLAT))
    program = cc.Execute("total", [x], [cc.ReduceTensor("+", x, name="s")])
    lowered = lower(program, Bindings({"N": 40}, 2))
    text = lowered.text.replace(
        "const int rank = rank_of(task);", "const int rank = rank_of(task);\n    if (rank == 1) return;"
    )
    with session(lowered, text=text) as live:
        found = live.run()
    assert any("rank 0" in line and "waits for partial sums of 1" in line for line in found)
