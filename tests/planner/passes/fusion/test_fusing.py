"""Fuse: several stages as one kernel, and every reason not to."""

# ruff: noqa: F403, F405 (programs are written as programs are)
from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.planner.passes.fusion.schedule_builder import ScheduleBuilder
from tests.planner.passes.fusion.transform_samples import example, refused
from treadle.fusion import *
from treadle.planner.passes.fusion.program import Program
from treadle.planner.passes.fusion.stages import stages
from treadle.planner.passes.fusion.transforms.fusing import fuse
from treadle.planner.passes.fusion.transforms.slicing import as_slice

N, B, H, F = dims("N", "B", "H", "F")


def sliced(name: str, region: Sequence[str], dim: int = FLAT) -> ScheduleBuilder:
    schedule = ScheduleBuilder(example(name))
    _, ag = schedule.split(schedule.find("AllReduce"), "ARSplitRSAG", dim=dim)
    schedule.reorder(ag, region)
    return schedule


def kinds(program: Program) -> list[str]:
    return [stage.kind for stage in stages(program)]


def rejected(program: Program, code: str, witness: str, members: Sequence[str], policy: str = "ComputationFuse") -> str:
    return refused(code, witness, lambda: fuse(program, members, policy))


def test_a_kernel_takes_the_anonymous_parts_of_its_members_along() -> None:
    made = fuse(example("attention"), ["d", "out"], "ComputationFuse")
    (kernel,) = (stage for stage in stages(made.program) if stage.kernel)
    assert (made.made, kernel.name, kernel.kind) == (("fused",), "fused", "pointwise")
    assert [node.name for node in kernel.nodes] == ["_d_1", "d", "out"]
    assert [stage.name for stage in kernel.inside] == ["d", "out"]
    assert kernel.named == ("d", "out")


def test_kernels_may_hold_kernels() -> None:
    schedule = sliced("attention", ["d", "out"])
    inner = schedule.fuse(["d_s", "out_s"], "ComputationFuse")
    schedule.fuse(["rs", inner, "ag_out"], "AllReduceFuse", "far")
    assert kinds(schedule.program) == ["matmul", "fused allreduce"]
    far = stages(schedule.program)[1]
    assert [(stage.name, stage.kind, len(stage.nodes)) for stage in far.inside] == [
        ("rs", "reducescatter", 1),
        ("fused", "pointwise", 3),
        ("ag_out", "allgather", 1),
    ]


def test_kernels_are_called_after_what_they_reduce() -> None:
    rows = fuse(example("rmsnorm"), ["wide", "square", "out"], "ComputationFuse").program
    assert kinds(rows) == ["allreduce", "pointwise", "rows"]
    norms = fuse(example("lamb"), ["u", "norm_u", "p_"], "ComputationFuse").program
    assert "reduction" in kinds(norms)


@pytest.mark.parametrize(
    ("policy", "members", "kind"),
    [
        ("ReduceScatterFuse", ["rs", "d_s", "out_s"], "fused reducescatter"),
        ("AllGatherFuse", ["d_s", "out_s", "ag_out"], "fused allgather"),
        ("AllReduceFuse", ["rs", "d_s", "out_s", "ag_out"], "fused allreduce"),
    ],
)
def test_computation_in_a_collective(policy: str, members: list[str], kind: str) -> None:
    schedule = sliced("attention", ["d", "out"])
    schedule.fuse(members, policy)
    assert kind in kinds(schedule.program)


def test_computation_on_the_root() -> None:
    schedule = ScheduleBuilder(example("attention"))
    schedule.split("sum_", "ARSplitReduceBcast")
    schedule.reorder("bc", ["d", "out"])
    both = schedule.program
    assert kinds(fuse(both, ["red", "d_at"], "ReduceFuse").program)[1] == "fused reduce"
    assert kinds(fuse(both, ["out_at", "bc_out"], "BroadcastFuse").program)[-1] == "fused broadcast"


def test_an_exchange_takes_computation_and_the_order_of_its_rows() -> None:
    program = example("moe")
    assert kinds(fuse(program, ["rows", "weighted", "out"], "AllToAllFuse").program) == ["fused alltoall"]
    rejected(program, "not-pointwise", "rows", ["rows", "weighted"])
    x, order = Tensor("x", f32, [8, H], Local), Tensor("order", i32, [8], Local)
    scaled, tripled = x * 2, x * 3
    rows = Permute(scaled, order)
    out = AllToAll(rows)
    back = Permute(out, order)
    w = Tensor("w", f32, [H, H], Replicated)
    last = MatMul(out, w)
    program = Execute("rows", [x, order, w], [back, last, tripled])
    rejected(program, "phases", "rows", ["scaled", "rows", "out"], "AllToAllFuse")
    rejected(program, "phases", "back", ["out", "back"], "AllToAllFuse")
    rejected(program, "streams", "last", ["rows", "out", "last"], "AllToAllFuse")
    rejected(program, "sources", "AllToAll", ["scaled", "rows"], "AllToAllFuse")
    rejected(program, "disconnected", "out", ["tripled", "out"], "AllToAllFuse")


def test_the_last_computation_goes_out_from_registers() -> None:
    program = fuse(example("pipeline"), ["c", "o"], "SendFuse").program
    assert kinds(program) == ["allreduce", "fused send"]


def test_names() -> None:
    program = example("attention")
    assert fuse(program, ["d", "out"], "ComputationFuse", "tail").made == ("tail",)
    refused("name", "layer", lambda: fuse(program, ["d", "out"], "ComputationFuse", "layer"))


def test_what_is_no_kernel() -> None:
    program = example("attention")
    rejected(program, "policy", "Fuse", ["d", "out"], "Fuse")
    rejected(program, "single", "d", ["d"])
    rejected(program, "repeated", "d", ["d", "d"])
    rejected(program, "unknown", "e", ["d", "e"])
    rejected(program, "not-pointwise", "layer", ["layer", "sum_"])
    rejected(program, "streams", "sum_", ["sum_", "d"])
    views = sliced("attention", ["d", "out"]).program
    rejected(views, "view", "r_part", ["r_part", "out_s"])
    rejected(
        fuse(views, ["d_s", "out_s"], "ComputationFuse").program, "fused", "fused", ["rs", "d_s"], "ReduceScatterFuse"
    )


def test_launches_would_wait_for_each_other() -> None:
    program = example("adam_f32")
    rejected(program, "cycle", "fused -> m1 -> fused", ["m_", "p_"])
    rejected(example("attention"), "cycle", "fused -> sum_ -> d -> fused", ["layer", "out"])
    p, g = Tensor("p", f32, [N], Replicated), Tensor("g", f32, [N], Replicated)
    y = g * 2
    x = p * y
    _ = Update(p, g * 3, name="p_")
    program = Execute("written", [p, g], [x])
    message = rejected(program, "cycle", "fused -> x -> fused", ["y", "p_"])
    assert message == "fuse: found launches that would wait for each other (fused -> x -> fused)"
    fuse(program, ["y", "x", "p_"], "ComputationFuse")


def test_one_group() -> None:
    schedule = sliced("pipeline", ["c", "o"])
    rejected(schedule.program, "streams", "o_s", ["c_s", "o_s"], "ComputationFuse")
    y, z = Tensor("y", f32, [N], Replicated, GROUP), Tensor("z", f32, [N], Replicated, GROUP)
    o = Send(y, GroupRank(GROUP + 1, RANK))
    here, there = z * 2, o * 3
    rejected(Execute("apart", [y, z], [here, there]), "groups", "here, there", ["here", "there"])


def test_one_iteration_space() -> None:
    x, y = Tensor("x", f32, [B, H], Replicated), Tensor("y", f32, [B, H], Local)
    b, c = Tensor("b", f32, [H], Replicated), Tensor("c", f32, [F], Replicated)
    left, right, bias, other = x * 2, y * 2, b * 2, c * 2
    total = left + bias
    program = Execute("spaces", [x, y, b, c], [total, right, other])
    rejected(program, "space", "left, right", ["left", "right"])
    rejected(program, "space", "left, other", ["left", "other"])
    fuse(program, ["left", "bias", "total"], "ComputationFuse")
    rejected(program, "space", "left, bias", ["left", "bias"])
    column = Tensor("column", f32, [B, 1], Replicated)
    rows, columns = b * 3, column * 3
    rejected(Execute("cross", [b, column], [rows, columns]), "space", "rows, columns", ["rows", "columns"])


def test_what_is_written_is_written_once_for_every_element() -> None:
    x, b = Tensor("x", f32, [B, H], Replicated), Tensor("b", f32, [H], Replicated)
    total = x + b
    _ = Update(b, b * 2, name="b_")
    program = Execute("race", [x, b], [total])
    rejected(program, "space", "total, b_", ["total", "b_"])


def test_what_is_written_beside_a_reduction_has_its_elements() -> None:
    """A kernel of slices of rows would store those of a whole column that the rank's rows have."""
    x, column = Tensor("x", f32, [B, H], Sliced(0)), Tensor("column", f32, [B, 1], Replicated)
    total = ReduceTensor("+", x, dim=1)
    part, whole = Slice(column, dim=0) * 2, column * 2
    program = Execute("beside", [x, column], [total, part, whole])
    message = rejected(program, "space", "total, whole", ["total", "whole"])
    assert "found total Sliced(0) and whole Replicated, which is written to memory" in message
    fuse(program, ["total", "part"], "ComputationFuse")


def test_slices_of_one_kernel_are_the_same() -> None:
    x, y = Tensor("x", f32, [B, H], Local), Tensor("y", f32, [B, H], Sliced(1))
    rs = ReduceScatter("+", x, dim=0)
    left, right = rs * 2, y * 2
    ag = AllGather(left)
    again = AllGather(right)
    program = Execute("slices", [x, y], [ag, again])
    rejected(program, "space", "left, right", ["left", "right"])
    rejected(program, "disconnected", "again", ["rs", "left", "again"], "AllReduceFuse")
    rejected(program, "sinks", "ag, again", ["rs", "left", "ag", "again"], "AllReduceFuse")
    rejected(program, "sinks", "AllGather", ["rs", "left"], "AllReduceFuse")
    rejected(program, "sources", "ReduceScatter", ["left", "ag"], "AllReduceFuse")
    rejected(program, "disconnected", "rs", ["rs", "right"], "ReduceScatterFuse")


def test_slices_that_are_regrouped_between_are_two_streams() -> None:
    x = Tensor("x", f32, [B, H], Local)
    rs = ReduceScatter("+", x, dim=0)
    total = ReduceTensor("+", rs)
    w = Tensor("w", f32, [B, H], Sliced(1))
    scaled = w * total
    ag = AllGather(scaled)
    program = Execute("regrouped", [x, w], [ag])
    rejected(program, "maps", "rs, ag", ["rs", "total", "scaled", "ag"], "AllReduceFuse")


def test_computation_stands_between_the_collectives() -> None:
    x = Tensor("x", f32, [B, H], Local)
    first = x * 2
    rs = ReduceScatter("+", first)
    ag = AllGather(rs)
    last = ag + 1
    program = Execute("around", [x], [last])
    rejected(program, "before-source", "first", ["first", "rs"], "ReduceScatterFuse")
    rejected(program, "after-sink", "last", ["ag", "last"], "AllGatherFuse")
    rejected(program, "no-computation", "rs", ["rs", "ag"], "AllReduceFuse")


def test_the_must_be_rejected_list_of_7_1() -> None:
    schedule = ScheduleBuilder(example("sgd"))
    rs, ag = schedule.split("sum_", "ARSplitRSAG")
    rejected(schedule.program, "disconnected", "rs", [rs, ag, "p_"], "AllReduceFuse")


def test_the_must_be_rejected_list_of_7_3() -> None:
    schedule = ScheduleBuilder(example("adam_f32"))
    schedule.fuse(["m_", "v_", "m1", "v1", "p_"], "ComputationFuse", "C")
    _, ag = schedule.split("sum_", "ARSplitRSAG")
    schedule.reorder(ag, ["C"])
    members = ["rs", "C_s", "ag_p"]
    rejected(schedule.program, "gathers", "ag_m", members, "AllReduceFuse")
    alive = as_slice(schedule.program, "m").program
    rejected(alive, "gathers", "ag_m", members, "AllReduceFuse")
    schedule.as_slice("m")
    schedule.dead("ag_m")
    rejected(schedule.program, "gathers", "ag_v", members, "AllReduceFuse")
    rejected(schedule.program, "gathers", "ag_p", ["rs", "C_s", "ag_v"], "AllReduceFuse")
    schedule.as_slice("v")
    schedule.dead("ag_v")
    schedule.fuse(members, "AllReduceFuse")
    assert kinds(schedule.program) == ["fused allreduce"]


def test_only_slices_leave_a_fused_all_reduce() -> None:
    x = Tensor("x", f32, [N], Local)
    m = Tensor("m", f32, [N], Replicated)
    rs = ReduceScatter("+", x)
    y = rs * 2
    most = ReduceTensor("max", y)
    kept = y * most
    ag = AllGather(kept)
    other = y + 1
    program = Execute("leaving", [x, m], [ag, most, other])
    rejected(program, "live-out", "most", ["rs", "y", "most", "kept", "ag"], "AllReduceFuse")
    fuse(Execute("leaving", [x, m], [ag, other]), ["rs", "y", "most", "kept", "ag"], "AllReduceFuse")


def test_a_send_takes_only_what_feeds_it() -> None:
    y = Tensor("y", f32, [N], Replicated, GROUP)
    s = Tensor("s", f32, [N], Replicated, GROUP)
    x = y * 2
    norm = Norm(x)
    z = x / norm
    o = Send(z, GroupRank(GROUP + 1, RANK))
    s_ = Update(s, y * 3)
    q = s_ + 1
    o2 = Send(q, GroupRank(GROUP + 1, RANK))
    program = Execute("sends", [y, s], [o, x, o2])
    rejected(program, "phases", "norm", ["x", "norm", "z", "o"], "SendFuse")
    rejected(program, "live-out", "s_", ["s_", "q", "o2"], "SendFuse")
    w = y * 5
    o3 = Send(w, GroupRank(GROUP + 1, RANK))
    rejected(Execute("twice", [y], [o3, w]), "live-out", "w", ["w", "o3"], "SendFuse")


def test_what_is_overwritten_is_not_read_in_a_later_phase() -> None:
    m, g = Tensor("m", f32, [N], Replicated), Tensor("g", f32, [N], Replicated)
    norm = Norm(g)
    x = m * norm
    m_ = Update(m, g * 2)
    program = Execute("phases", [m, g], [x, m_])
    rejected(program, "anti-dependence", "m_ -> x", ["norm", "x", "m_"])
    fuse(program, ["x", "m_"], "ComputationFuse")
