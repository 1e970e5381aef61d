"""Kernels that read and overwrite a tensor: refused by fuse, in schedules of others and by the independent checker."""

# ruff: noqa: F403, F405, F841 (programs are written as programs are)
from __future__ import annotations

import pytest

from tests.planner.passes.fusion.transform_samples import example, refused
from treadle.fusion import *
from treadle.planner.passes.fusion.check_overwriting import overwriting, streaming
from treadle.planner.passes.fusion.program import Kernel, Policy, Program
from treadle.planner.passes.fusion.stages import stages
from treadle.planner.passes.fusion.transforms.fusing import fuse
from treadle.planner.passes.fusion.transforms.overlapping import overlap
from treadle.planner.passes.fusion.transforms.validate import validate

N, T, H = dims("N", "T", "H")


def scalar_state() -> Program:
    g, p, s = Tensor("g", f32, [N], Replicated), Tensor("p", f32, [N], Replicated), Scalars("s", f32)
    n = Norm(g)
    p_ = Update(p, p - s * n * g)
    s_ = Update(s, n)
    return Execute("scalar", [g, p, s], [p_])


def scalar_state_read_anew() -> Program:
    g, p, s = Tensor("g", f32, [N], Replicated), Tensor("p", f32, [N], Replicated), Scalars("s", f32)
    n = Norm(g)
    s_ = Update(s, s * 0.5 + n)
    p_ = Update(p, p - s_ * g)
    return Execute("anew", [g, p, s], [p_])


def columns() -> Program:
    x, t = Tensor("x", f32, [T, H], Replicated), Tensor("t", f32, [1, H], Replicated)
    s = ReduceTensor("+", x, dim=0)
    z = x * t + s
    t_ = Update(t, s)
    return Execute("columns", [x, t], [z])


def tensors() -> Program:
    g, p = Tensor("g", f32, [N], Replicated), Tensor("p", f32, [N], Replicated)
    q = Tensor("q", f32, [parts(N)], Replicated)
    n = Norm(g, per="tensor")
    p_ = Update(p, p - q * n * g)
    q_ = Update(q, n)
    return Execute("tensors", [g, p, q], [p_])


def rows() -> Program:
    x, t = Tensor("x", f32, [T, H], Replicated), Tensor("t", f32, [T, 1], Replicated)
    s = ReduceTensor("+", x, dim=1)
    z = x * t + s
    t_ = Update(t, s)
    return Execute("rows", [x, t], [z])


def permuted() -> Program:
    x, order = Tensor("x", f32, [T, H], Local), Tensor("order", i32, [T], Local)
    rows = Permute(x, order)
    x_ = Update(x, rows * 2)
    out = AllToAll(x_)
    return Execute("permuted", [x, order], [out])


RACES = [
    (scalar_state, ("n", "p_", "s_"), "ComputationFuse", "s_ -> _p__1"),
    (scalar_state_read_anew, ("n", "s_", "p_"), "ComputationFuse", "s_ -> _s__1"),
    (columns, ("s", "z", "t_"), "ComputationFuse", "t_ -> _z_1"),
    (tensors, ("n", "p_", "q_"), "ComputationFuse", "q_ -> _p__1"),
    (rows, ("s", "z", "t_"), "ComputationFuse", "t_ -> _z_1"),
    (permuted, ("rows", "x_", "out"), "AllToAllFuse", "x_ -> rows"),
]


@pytest.mark.parametrize(("program", "members", "policy", "witness"), RACES)
def test_old_values_that_other_threads_overwrite(program, members, policy: Policy, witness: str) -> None:  # type: ignore[no-untyped-def]
    made: Program = program()
    refused("anti-dependence", witness, lambda: fuse(made, members, policy, "k"))
    hand = Program(made.name, made.inputs, made.nodes, made.outputs, (Kernel("k", policy, members),))
    refused("anti-dependence", witness, lambda: validate(hand))
    assert [line.split(":")[0] for line in overwriting(hand, "k", hand.nodes)] == ["kernel k"]


def test_old_values_that_nobody_else_overwrites() -> None:
    g, p, s = Tensor("g", f32, [N], Replicated), Tensor("p", f32, [N], Replicated), Scalars("s", f32)
    d = g * s
    n = Norm(d)
    length = Norm(p)
    p_ = Update(p, p - n * g * length)
    s_ = Update(s, n)
    made = Execute("fine", [g, p, s], [p_])
    kernel = fuse(made, ["d", "n", "length", "p_", "s_"], "ComputationFuse", "k").program
    assert len(stages(kernel)) == 1
    assert list(overwriting(kernel, "k", kernel.nodes)) == []


def test_what_an_exchange_makes_is_computed_on_elsewhere() -> None:
    x = Tensor("x", f32, [T, H], Local)
    y = AllToAll(x)
    z = y * 2
    x_ = Update(x, y * 3)
    program = Execute("after", [x], [z])
    refused("after-sink", "z", lambda: fuse(program, ["y", "z"], "AllToAllFuse"))
    refused("after-sink", "_x__1", lambda: fuse(program, ["y", "x_"], "AllToAllFuse"))


def test_sums_over_rows_that_come_later_break_the_stream() -> None:
    x, w = Tensor("x", f32, [T, H], Sliced(1)), Tensor("w", f32, [H, H], Sliced(0))
    product = MatMul(x, w)
    s = AllReduce("+", product)
    m = ReduceTensor("max", s, dim=0)
    r = ReduceTensor("max", s, dim=1)
    program = Execute("sums", [x, w], [m, r])
    refused("not-streamable", "m", lambda: overlap(program, ["product", "s", "m"]))
    assert overlap(program, ["product", "s", "r"]).made
    chain = [[node] for node in program.nodes if node.name != "r"]
    assert [line.split(":")[1] for line in streaming(program, "ol", chain)] == [
        " m needs all elements before its first output"
    ]


def test_a_stage_that_overlaps_overwrites_what_another_reads_broadcast() -> None:
    x, t = Tensor("x", f32, [T, H], Local), Tensor("t", f32, [T, 1], Replicated)
    a = x * t
    s = AllReduce("+", a)
    r = ReduceTensor("+", s, dim=1)
    t_ = Update(t, r)
    program = Execute("chain", [x, t], [s])
    refused("anti-dependence", "a -> t", lambda: overlap(program, ["a", "s", "r", "t_"]))
    assert list(streaming(program, "ol", [[node] for node in program.nodes])) == [
        "overlap ol: a reads t, which t_ overwrites"
    ]


def test_norms_of_what_a_later_phase_overwrites() -> None:
    program = example("lamb")
    computing = [stage.name for stage in stages(program) if stage.kind in ("pointwise", "reduction")]
    kernel = fuse(program, computing, "ComputationFuse", "k").program
    nodes = [node for stage in stages(kernel) if stage.name == "k" for node in stage.nodes]
    assert len(nodes) > 10
    assert list(overwriting(kernel, "k", nodes)) == []
