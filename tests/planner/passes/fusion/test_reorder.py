"""Reorder: computation before the collective whose result it reads."""

# ruff: noqa: F403, F405, F841 (programs are written as programs are)
from __future__ import annotations

import numpy as np
import pytest

from tests.planner.passes.fusion.schedule_builder import ScheduleBuilder
from tests.planner.passes.fusion.test_split import body
from tests.planner.passes.fusion.transform_samples import assert_same, bindings, example, refused, values
from treadle.fusion import *
from treadle.planner.passes.fusion.program import Program
from treadle.planner.passes.fusion.stages import stages
from treadle.planner.passes.fusion.transforms.reorder import reorder
from treadle.planner.passes.fusion.transforms.split import split

N, B, S, H, F = dims("N", "B", "S", "H", "F")


def scattered(name: str, dim: int = FLAT) -> Program:
    return split(example(name), "sum_", "ARSplitRSAG", dim=dim).program


def test_broadcast_operands_stay_whole_and_full_ones_are_sliced() -> None:
    rows = reorder(scattered("attention", 1), "ag", ["d", "out"])
    assert (rows.made, dict(rows.gathers)) == (("d_s", "out_s"), {"out": "ag_out"})
    assert body(rows.program)[1:-1] == [
        'rs = ReduceScatter("+", layer, dim=1)',
        'd_s = Dropout(rs + b, p=0.1, key="attention.dropout")',
        "r_part = Slice(r, dim=1)",
        "out_s = d_s + r_part",
        "ag_out = AllGather(out_s)",
    ]
    columns = reorder(scattered("attention", 2), "ag", ["d"])
    assert body(columns.program)[2:4] == [
        "b_part = Slice(b, dim=0)",
        'd_s = Dropout(rs + b_part, p=0.1, key="attention.dropout")',
    ]


def test_a_part_of_the_consumers_may_move() -> None:
    made = reorder(scattered("attention"), "ag", ["d"])
    assert made.gathers == {"d": "ag_d"}
    assert body(made.program)[2:5] == [
        'd_s = Dropout(rs + b, p=0.1, key="attention.dropout")',
        "ag_d = AllGather(d_s)",
        "out = ag_d + r",
    ]


def test_the_gather_stays_where_someone_else_reads_it() -> None:
    made = reorder(scattered("adam"), "ag", ["avg"])
    assert "ag" not in made.program.by_name
    kept = reorder(made.program, "ag_avg", ["m_"])
    assert [node.name for node in kept.program.readers["ag_avg"]] == ["_v__3", "_v__4"]
    assert kept.gathers == {"m_": "ag_m"}
    gone = reorder(kept.program, "ag_avg", ["v_"])
    assert "ag_avg" not in gone.program.by_name


def test_an_output_keeps_its_gather() -> None:
    g = Tensor("g", f32, [N], Local)
    rs = ReduceScatter("+", g)
    ag = AllGather(rs)
    x = ag + 1
    made = reorder(Execute("kept", [g], [ag, x]), "ag", ["x"])
    assert made.program.outputs == ("ag", "ag_x")


def test_a_gather_that_makes_a_state_whole_stays_without_readers() -> None:
    schedule = ScheduleBuilder(scattered("sgd"))
    schedule.reorder("ag", ["p_"])
    p, g = Tensor("p", f32, [N], Replicated), Tensor("g", f32, [N], Local)
    rs = ReduceScatter("+", g)
    p_ = Update(p, rs * 2)
    ag = AllGather(p_)
    x = ag + 1
    made = reorder(Execute("state", [p, g], [x]), "ag", ["x"])
    assert made.program.readers["ag"] == ()
    assert body(made.program)[2:4] == ["ag = AllGather(p_)", "x_s = p_ + 1"]


def test_slices_of_what_was_gathered_are_what_it_was_gathered_from() -> None:
    g, h = Tensor("g", f32, [N], Local), Tensor("h", f32, [N], Local)
    a, c = ReduceScatter("+", g), ReduceScatter("+", h)
    left, right = AllGather(a), AllGather(c)
    x = left * right
    program = Execute("both", [g, h], [x])
    made = reorder(program, "left", ["x"]).program
    assert body(made)[2:4] == ["x_s = a * c", "ag_x = AllGather(x_s)"]
    of = bindings("both", 3)
    assert_same(program, made, of, values(program, of))


def test_several_values_are_gathered_apart() -> None:
    made = reorder(scattered("adam_f32"), "ag", ["m_", "v_", "m1", "v1", "p_"])
    assert made.made == ("m_s", "v_s", "m1_s", "v1_s", "p_s")
    assert made.gathers == {"m_": "ag_m", "v_": "ag_v", "p_": "ag_p"}
    assert [stage.kind for stage in stages(made.program)] == [
        "reducescatter",
        *("pointwise", "allgather", "pointwise", "allgather", "pointwise", "pointwise", "pointwise", "allgather"),
    ]


def test_a_kernel_in_the_region_stays_one() -> None:
    schedule = ScheduleBuilder(scattered("adam_f32"))
    inner = schedule.fuse(["m_", "m1"], "ComputationFuse", "moment")
    schedule.fuse([inner, "v_", "v1", "p_"], "ComputationFuse", "adam")
    ops, gathers = schedule.reorder("ag", ["adam"])
    assert ops == ("adam_s",)
    assert gathers == {"m": "ag_m", "m_": "ag_m", "v": "ag_v", "v_": "ag_v", "p": "ag_p", "p_": "ag_p"}
    assert 'moment_s = fuse("ComputationFuse", m_s, m1_s)' in body(schedule.program)
    assert 'adam_s = fuse("ComputationFuse", moment_s, v_s, v1_s, p_s)' in body(schedule.program)


def test_norms_of_slices_are_summed_over_the_ranks_and_stay_whole() -> None:
    region = ["avg", "m_", "v_", "m1", "v1", "u", "norm_p", "norm_u", "p_", "ph_"]
    made = reorder(scattered("lamb"), "ag", region)
    assert made.made[6:8] == ("norm_p", "norm_u")
    lines = body(made.program)
    assert 'norm_p = Norm(p_part, per="tensor")' in lines
    assert 'norm_u = Norm(u_s, per="tensor")' in lines
    assert "p_s = Update(p, p_part - lr * (norm_p / norm_u) * u_s)" in lines
    assert set(made.gathers) == {"m_", "v_", "p_", "ph_"}


def test_rows_are_reduced_where_they_are_whole() -> None:
    rows = reorder(scattered("rmsnorm", 0), "ag", ["h", "wide", "square", "out"])
    assert 'square_s = ReduceTensor("+", wide_s * wide_s, dim=1)' in body(rows.program)
    for dim in (1, FLAT):
        program = scattered("rmsnorm", dim)
        witness = "square"
        refused("not-sliceable", witness, lambda p=program: reorder(p, "ag", ["h", "wide", "square", "out"]))


def test_a_matmul_runs_on_rows_of_its_left_operand() -> None:
    x, w = Tensor("x", f32, [B, H], Local), Tensor("w", f32, [H, F], Replicated)
    v = Tensor("v", f32, [F, B], Replicated)

    def program(dim: int) -> Program:
        rs = ReduceScatter("+", x, dim=dim)
        ag = AllGather(rs)
        y = MatMul(ag, w)
        z = MatMul(v, ag)
        return Execute("layers", [x, w, v], [y, z])

    made = reorder(program(0), "ag", ["y"]).program
    assert body(made)[2:4] == ["y_s = MatMul(rs, w)", "ag_y = AllGather(y_s)"]
    of = bindings("", 3)
    given = {"x": 2.0, "w": 3.0, "v": 1.0}
    assert_same(program(0), made, of, given)
    refused("not-sliceable", "y", lambda: reorder(program(1), "ag", ["y"]))
    refused("not-sliceable", "y", lambda: reorder(program(FLAT), "ag", ["y"]))
    refused("not-sliceable", "z", lambda: reorder(program(0), "ag", ["z"]))


def test_a_send_moves_a_slice_and_the_next_group_gathers_it() -> None:
    made = reorder(scattered("pipeline"), "ag", ["c", "o"])
    assert body(made.program)[3:5] == ["o_s = Send(c_s, GroupRank(GROUP + 1, RANK))", "ag_o = AllGather(o_s)"]
    assert str(made.program.by_name["ag_o"].type.group) == "GROUP + 1"


def test_computation_after_a_broadcast_runs_on_the_root() -> None:
    program = split(example("attention"), "sum_", "ARSplitReduceBcast", root=1).program
    made = reorder(program, "bc", ["d", "out"])
    assert body(made.program)[1:-1] == [
        'red = Reduce("+", layer, root=1)',
        "b_part = Load(b, root=1)",
        'd_at = Dropout(red + b_part, p=0.1, key="attention.dropout")',
        "r_part = Load(r, root=1)",
        "out_at = d_at + r_part",
        "bc_out = Broadcast(out_at, root=1)",
    ]
    of = bindings("attention", 3)
    assert_same(example("attention"), made.program, of, values(program, of))
    rows = split(example("rmsnorm"), "sum_", "ARSplitReduceBcast").program
    refused("not-loadable", "h", lambda: reorder(rows, "bc", ["h"]))
    later = reorder(split(example("lamb"), "sum_", "ARSplitReduceBcast").program, "bc", ["avg"])
    assert later.made == ("avg_at",)


def test_elementwise_operations_run_before_an_exchange() -> None:
    x, gate = Tensor("x", f32, [8, H], Local), Tensor("gate", f32, [8, 1], Local)
    scale = Scalars("scale", f32)
    swapped = AllToAll(x)
    y = ReLU(swapped) * scale
    z = y * gate
    d = Dropout(swapped, 0.5, "key")
    program = Execute("moe", [x, gate, scale], [z])
    made = reorder(program, "swapped", ["y"])
    assert made.made == ("y_before",)
    assert body(made.program) == [
        "swapped = AllToAll(x)",
        "y_before = ReLU(x) * scale",
        "a2a_y = AllToAll(y_before)",
        "z = a2a_y * gate",
        'd = Dropout(swapped, p=0.5, key="key")',
        'program = Execute("moe", [x, gate, scale], [z])',
    ]
    of = bindings("moe", 4)
    rows = np.random.default_rng(0).integers(-9, 9, (1, 4, 8, 3))
    assert_same(program, made.program, of, {"x": rows, "gate": 3.0, "scale": -2.0})
    refused("not-unary", "z", lambda: reorder(program, "swapped", ["y", "z"]))
    refused("not-unary", "d", lambda: reorder(program, "swapped", ["d"]))


def test_what_is_no_gather_or_not_read() -> None:
    program = scattered("attention")
    refused("not-a-gather", "rs", lambda: reorder(program, "rs", ["d"]))
    refused("unread", "ag", lambda: reorder(program, "ag", []))
    refused("unread", "ag", lambda: reorder(program, "ag", ["out"]))
    refused("repeated", "d", lambda: reorder(program, "ag", ["d", "d"]))
    refused("fused", "d", lambda: reorder(program, "ag", ["_d_1"]))


def test_a_region_that_is_left_and_entered_again() -> None:
    program = scattered("adam_f32")
    message = refused("not-convex", "m_ -> m1 -> p_", lambda: reorder(program, "ag", ["m_", "p_"]))
    assert message == "reorder: found m_ -> m1 -> p_ leaving the region and coming back, expected it inside"
    g = Tensor("g", f32, [N], Local)
    rs = ReduceScatter("+", g)
    ag = AllGather(rs)
    x = ag + 1
    y = x * ag
    detour = Execute("detour", [g], [y])
    refused("not-convex", "ag -> x -> y", lambda: reorder(detour, "ag", ["y"]))


def test_operands_that_have_other_slices() -> None:
    g = Tensor("g", f32, [B, H], Local)
    other = Tensor("other", f32, [B, H], Sliced(1))
    rs = ReduceScatter("+", g, dim=0)
    ag = AllGather(rs)
    columns = AllGather(other)
    x = ag + columns
    y = ag + g
    program = Execute("other", [g, other], [x, y])
    refused("operand-layout", "g", lambda: reorder(program, "ag", ["y"]))
    made = reorder(program, "ag", ["x"]).program
    assert "columns_part = Slice(columns, dim=0)" in body(made)
    w = Tensor("w", f32, [H, F], Sliced(1))
    product = MatMul(ag, w)
    layer = Execute("layer", [g, w], [product])
    refused("operand-layout", "w", lambda: reorder(layer, "ag", ["product"]))


def test_what_stays_whole_has_no_place_in_a_region() -> None:
    g, b = Tensor("g", f32, [B, H], Local), Tensor("b", f32, [H], Replicated)
    rs = ReduceScatter("+", g, dim=0)
    ag = AllGather(rs)
    bias = b * 2
    x = ag + bias
    program = Execute("whole", [g, b], [x])
    refused("untouched", "bias", lambda: reorder(program, "ag", ["bias", "x"]))
    assert "x_s = rs + bias" in body(reorder(program, "ag", ["x"]).program)
    moved = reorder(scattered("adam_f32"), "ag", ["v_"]).program
    refused("untouched", "v_s", lambda: reorder(moved, "ag", ["m_", "v_s"]))
    both = ScheduleBuilder(program)
    both.fuse(["bias", "x"], "ComputationFuse", "k")
    both.reorder("ag", ["k"])
    assert 'k_s = fuse("ComputationFuse", bias, x_s)' in body(both.program)


@pytest.mark.parametrize("op", ["Permute", "MatMul", "AllToAll"])
def test_operations_that_need_other_slices_stay(op: str) -> None:
    g, index = Tensor("g", f32, [8, H], Local), Tensor("index", i32, [8], Replicated)
    w = Tensor("w", f32, [H, F], Replicated)
    rs = ReduceScatter("+", g, dim=0)
    ag = AllGather(rs)
    x = ag * 2
    rows = Permute(ag, index)
    other = MatMul(AllGather(rs, name="again"), w)
    program = Execute("stay", [g, index, w], [x, rows, other])
    region = {"Permute": ["rows"], "MatMul": ["x", "other"], "AllToAll": ["x", "rs"]}[op]
    witness = {"Permute": "rows", "MatMul": "other", "AllToAll": "rs -> ag -> x"}[op]
    code = "not-convex" if op == "AllToAll" else "not-sliceable"
    refused(code, witness, lambda: reorder(program, "ag", region))


def test_a_kernel_moves_as_a_whole() -> None:
    schedule = ScheduleBuilder(scattered("adam_f32"))
    schedule.fuse(["m_", "v_"], "ComputationFuse", "k")
    refused("fused", "k", lambda: schedule.reorder("ag", ["m_"]))


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("name", ["attention", "lamb", "rmsnorm", "pipeline"])
def test_a_moved_region_means_the_same(name: str, ranks: int) -> None:
    program, of = example(name), bindings(name, ranks)
    schedule = ScheduleBuilder(program)
    _, ag = schedule.split("sum_", "ARSplitRSAG", dim=0 if name == "rmsnorm" else FLAT)
    region = [stage.name for stage in stages(schedule.program)]
    schedule.reorder(ag, region[region.index(ag) + 1 :])
    assert_same(program, schedule.program, of, values(program, of))
