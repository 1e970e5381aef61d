"""State in slices, dead gathers, slices of whole values."""

# ruff: noqa: F403, F405 (programs are written as programs are)
from __future__ import annotations

import pytest

from tests.planner.passes.fusion.schedule_builder import ScheduleBuilder
from tests.planner.passes.fusion.test_split import body
from tests.planner.passes.fusion.transform_samples import assert_same, bindings, example, refused, values
from treadle.fusion import *
from treadle.planner.passes.fusion.layouts import Sliced
from treadle.planner.passes.fusion.program import Program
from treadle.planner.passes.fusion.transforms.slicing import as_slice, dead, slice_intro

N, B, H = dims("N", "B", "H")


def reordered() -> ScheduleBuilder:
    """Adam with its computation fused, on slices, and all states gathered (7.3)."""
    schedule = ScheduleBuilder(example("adam_f32"))
    c = schedule.fuse(["m_", "v_", "m1", "v1", "p_"], "ComputationFuse", "C")
    _, ag = schedule.split("sum_", "ARSplitRSAG")
    schedule.reorder(ag, [c])
    return schedule


def test_state_becomes_slices_and_its_gather_dies() -> None:
    schedule = reordered()
    assert [line for line in body(schedule.program) if "Gather" in line or "Slice" in line] == [
        "m_part = Slice(m)",
        "ag_m = AllGather(m_s)",
        "v_part = Slice(v)",
        "ag_v = AllGather(v_s)",
        "p_part = Slice(p)",
        "ag_p = AllGather(p_s)",
    ]
    sliced = as_slice(schedule.program, "m").program
    assert sliced.by_name["m"].type.layout == Sliced()
    assert "m_s = Update(m, m * b1 + (1 - b1) * rs)" in body(sliced)
    assert "ag_m = AllGather(m_s)" in body(sliced)
    without = dead(sliced, "ag_m").program
    assert not [line for line in body(without) if "ag_m" in line or "Slice(m)" in line]


def test_the_must_be_rejected_list_of_7_3() -> None:
    schedule = reordered()
    refused("materialises", "m", lambda: dead(schedule.program, "ag_m"))
    refused("read-whole", "_m__1", lambda: as_slice(example("adam_f32"), "m"))
    refused("output", "ag_p", lambda: as_slice(schedule.program, "p"))
    refused("gathers", "ag_m", lambda: schedule.fuse(["rs", "C_s", "ag_p"], "AllReduceFuse"))


def test_the_must_be_rejected_list_of_7_1() -> None:
    program = example("sgd")
    refused("output", "p_", lambda: as_slice(program, "p"))


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8])
def test_sliced_adam_means_the_same(ranks: int) -> None:
    program, of = example("adam_f32"), bindings("adam_f32", ranks)
    schedule = reordered()
    for name in "mv":
        schedule.as_slice(name)
        schedule.dead(f"ag_{name}")
    assert_same(program, schedule.program, of, values(program, of))


def test_what_is_no_whole_state() -> None:
    program = reordered().program
    refused("not-an-input", "C_s", lambda: as_slice(program, "C_s"))
    refused("not-an-input", "m_s", lambda: as_slice(program, "m_s"))
    refused("not-replicated", "g", lambda: as_slice(program, "g"))
    refused("not-replicated", "lr", lambda: as_slice(program, "lr"))
    refused("not-replicated", "m", lambda: as_slice(as_slice(program, "m").program, "m"))


def sliced_twice(dim: int) -> Program:
    m = Tensor("m", f32, [B, H], Replicated)
    y = Tensor("y", f32, [B, H], Local)
    idle = Tensor("idle", f32, [B, H], Replicated)
    rs = ReduceScatter("+", y, dim=0)
    other = ReduceScatter("+", y, dim=dim)
    x = rs + Slice(m, dim=0)
    z = other + Slice(m, dim=dim)
    return Execute("twice", [m, y, idle], [x, z])


def test_slices_must_agree() -> None:
    witness = "Sliced(0) and Sliced(1)"
    refused("slices-differ", witness, lambda: as_slice(sliced_twice(1), "m"))
    assert as_slice(sliced_twice(0), "m").program.by_name["m"].type.layout == Sliced(0)
    refused("no-slice", "idle", lambda: as_slice(sliced_twice(0), "idle"))


def test_an_update_of_all_of_it_keeps_a_state_whole() -> None:
    m = Tensor("m", f32, [N], Replicated)
    g = Tensor("g", f32, [N], Local)
    a = AllReduce("+", g)
    rs = ReduceScatter("+", g)
    x = rs + Slice(m)
    _ = Update(m, a * 2, name="m_")
    program = Execute("written", [m, g], [x])
    refused("update-whole", "m_", lambda: as_slice(program, "m"))


def test_a_gather_that_is_read_keeps_a_state_whole() -> None:
    m = Tensor("m", f32, [N], Replicated)
    g = Tensor("g", f32, [N], Local)
    rs = ReduceScatter("+", g)
    m_ = Update(m, rs * 2)
    ag = AllGather(m_)
    x = ag + 1
    program = Execute("read", [m, g], [x])
    refused("gather-read", "x", lambda: as_slice(program, "m"))
    refused("read", "x", lambda: dead(program, "ag"))
    refused("not-a-gather", "rs", lambda: dead(program, "rs"))
    refused("unknown", "_x_1", lambda: dead(program, "_x_1"))


def test_an_output_is_not_dead() -> None:
    program = reordered().program
    refused("output", "ag_p", lambda: dead(program, "ag_p"))


def test_a_gather_in_a_kernel_is_not_dead() -> None:
    schedule = reordered()
    schedule.as_slice("m"), schedule.dead("ag_m"), schedule.as_slice("v"), schedule.dead("ag_v")
    schedule.fuse(["rs", "C_s", "ag_p"], "AllReduceFuse", "far")
    refused("fused", "far", lambda: dead(schedule.program, "ag_p"))


def test_slice_intro_lets_what_follows_an_all_reduce_run_on_slices() -> None:
    schedule = ScheduleBuilder(example("pipeline"))
    ag = schedule.slice_intro("sum_")
    assert body(schedule.program)[1:3] == ["sum_part = Slice(sum_)", "ag_sum = AllGather(sum_part)"]
    assert schedule.reorder(ag, ["c", "o"]) == (("c_s", "o_s"), {"o": "ag_o"})
    assert body(schedule.program) == [
        'sum_ = AllReduce("+", y)',
        "sum_part = Slice(sum_)",
        "r_part = Slice(r)",
        'c_s = Dropout(sum_part + b, p=0.1, key="mlp.dropout") + r_part',
        "o_s = Send(c_s, GroupRank(GROUP + 1, RANK))",
        "ag_o = AllGather(o_s)",
        'program = Execute("pipeline", [y, b, r], [ag_o])',
    ]
    of = bindings("pipeline", 3)
    program = example("pipeline")
    assert_same(program, schedule.program, of, values(program, of))


def test_slice_intro_for_some_readers_keeps_right_operands_of_products_whole() -> None:
    m = dims("M")
    a = Tensor("a", f32, [m, m], Replicated)
    square = MatMul(a, a)
    out = square + a
    made = slice_intro(Execute("squared", [a], [out]), "a", dim=0, readers=["square"]).program
    assert body(made)[:3] == ["a_part = Slice(a, dim=0)", "ag_a = AllGather(a_part)", "square = MatMul(ag_a, a)"]
    refused("unread", "ag_a", lambda: slice_intro(made, "a", dim=0, readers=["ag_a"]))


def test_what_slice_intro_refuses() -> None:
    program = example("adam")
    refused("not-replicated", "g", lambda: slice_intro(program, "g"))
    refused("not-replicated", "lr", lambda: slice_intro(program, "lr"))
    refused("not-replicated", "absent", lambda: slice_intro(program, "absent"))
    refused("dim", "1", lambda: slice_intro(program, "sum_", dim=1))
    refused("map", "ring_tile(1,1,1)", lambda: slice_intro(program, "sum_", dim=0, map="ring_tile(1,1,1)"))
    refused("unread", "ph_", lambda: slice_intro(program, "ph_"))
