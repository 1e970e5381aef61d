"""Split and merge: an AllReduce as two collectives and back."""

# ruff: noqa: F403, F405 (programs are written as programs are)
from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.planner.passes.fusion.transform_samples import assert_same, bindings, example, refused, values
from treadle.fusion import *
from treadle.planner.errors import InputError
from treadle.planner.passes.fusion.canonical import canonical_hash
from treadle.planner.passes.fusion.program import Program
from treadle.planner.passes.fusion.stages import stages
from treadle.planner.passes.fusion.text import show
from treadle.planner.passes.fusion.transforms.fusing import fuse
from treadle.planner.passes.fusion.transforms.merge import merge
from treadle.planner.passes.fusion.transforms.overlapping import overlap
from treadle.planner.passes.fusion.transforms.split import split

N = dims("N")


GIVEN = ("= Tensor(", "= Scalars(", "= dims(")


def read_twice() -> Program:
    g = Tensor("g", f32, [N], Local)
    a = AllReduce("max", g)
    x = a + 1
    return Execute("twice", [g], [a, x])


def body(program: Program) -> list[str]:
    """The lines of a program that compute or launch."""
    lines = show(program).splitlines()
    return [line for line in lines if " = " in line and not any(x in line for x in GIVEN)]


def test_reduce_scatter_and_all_gather_take_the_place_of_all_uses() -> None:
    made = split(read_twice(), "a", "ARSplitRSAG")
    assert made.made == ("rs", "ag")
    assert body(made.program) == [
        'rs = ReduceScatter("max", g)',
        "ag = AllGather(rs)",
        "x = ag + 1",
        'program = Execute("twice", [g], [ag, x])',
    ]


def test_reduce_and_broadcast_have_one_root() -> None:
    made = split(read_twice(), "a", "ARSplitReduceBcast", root=1)
    assert body(made.program)[:2] == ['red = Reduce("max", g, root=1)', "bc = Broadcast(red, root=1)"]


def test_slices_follow_the_dimension_and_the_map_that_are_asked_for() -> None:
    rows = split(example("attention"), "sum_", "ARSplitRSAG", dim=1).program
    assert 'rs = ReduceScatter("+", layer, dim=1)' in show(rows)
    tiles = split(example("attention"), "sum_", "ARSplitRSAG", map="ring_tile(2,4,1)").program
    assert 'rs = ReduceScatter("+", layer, map=RingTile(2, 4, 1))' in show(tiles)


@pytest.mark.parametrize("policy", ["ARSplitRSAG", "ARSplitReduceBcast"])
def test_merge_undoes_a_split(policy: str) -> None:
    program = read_twice()
    halves = split(program, "a", policy)
    merged = merge(halves.program, *halves.made)
    assert merged.made == ("ar",)
    assert canonical_hash(merged.program) == canonical_hash(program)


@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize("policy", ["ARSplitRSAG", "ARSplitReduceBcast"])
def test_a_split_program_means_the_same(policy: str, ranks: int) -> None:
    program, of = example("attention"), bindings("attention", ranks)
    assert_same(program, split(program, "sum_", policy).program, of, values(program, of))


def test_what_cannot_be_split() -> None:
    program = example("attention")
    refused("unknown", "absent", lambda: split(program, "absent", "ARSplitRSAG"))
    refused("not-allreduce", "layer", lambda: split(program, "layer", "ARSplitRSAG"))
    refused("policy", "ARSplit", lambda: split(program, "sum_", "ARSplit"))
    refused("dim", "3", lambda: split(program, "sum_", "ARSplitRSAG", dim=3))
    refused("dim", "-2", lambda: split(program, "sum_", "ARSplitRSAG", dim=-2))
    refused("root", "-1", lambda: split(program, "sum_", "ARSplitReduceBcast", root=-1))
    tiles = "ring_tile(2,4,1)"
    refused("map", tiles, lambda: split(program, "sum_", "ARSplitRSAG", dim=1, map=tiles))


def test_values_that_are_the_same_everywhere_are_not_scattered() -> None:
    p = Tensor("p", f32, [1, N], Replicated)
    g = Tensor("g", f32, [1, N], Local)
    with pytest.warns(UserWarning, match="Replicated"):
        a = AllReduce("+", p)
    b = AllReduce("+", g)
    program = Execute("whole", [p, g], [a, b])
    refused("not-local", "p", lambda: split(program, "a", "ARSplitRSAG"))
    refused("not-local", "p", lambda: split(program, "a", "ARSplitReduceBcast"))
    refused("extent", "0", lambda: split(program, "b", "ARSplitRSAG", dim=0))


def test_a_scalar_has_no_slices() -> None:
    g = Tensor("g", f32, [N], Local)
    most = ReduceTensor("max", g)
    a = AllReduce("max", most)
    program = Execute("scalar", [g], [a])
    refused("dim", "-1", lambda: split(program, "a", "ARSplitRSAG"))
    split(program, "a", "ARSplitReduceBcast")


def test_launches_that_are_decided_stay_as_they_are() -> None:
    program = example("attention")
    chained = overlap(program, ["layer", "sum_"]).program
    message = refused("overlapped", "ol", lambda: split(chained, "sum_", "ARSplitRSAG"))
    assert message == "split: found sum_ inside ol, expected overlap last"
    fused = fuse(program, ["d", "out"], "ComputationFuse").program
    refused("fused", "fused", lambda: split(fused, "d", "ARSplitRSAG"))
    refused("fused", "fused", lambda: split(fused, "fused", "ARSplitRSAG"))


def test_what_cannot_be_merged() -> None:
    halves = split(read_twice(), "a", "ARSplitRSAG").program
    refused("not-a-pair", "ag, rs", lambda: merge(halves, "ag", "rs"))
    g, h = (Tensor(name, f32, [N], Local) for name in "gh")
    first, second = ReduceScatter("+", g), ReduceScatter("+", h)
    whole, other = AllGather(first), AllGather(second)
    double = first * 2
    program = Execute("two", [g, h], [whole, other, double])
    refused("not-adjacent", "other", lambda: merge(program, "first", "other"))
    refused("read", "double", lambda: merge(program, "first", "whole"))
    merge(program, "second", "other")


def test_a_program_that_reads_what_it_has_overwritten_has_no_order() -> None:
    p, g = Tensor("p", f32, [N], Replicated), Tensor("g", f32, [N], Local)
    a = AllReduce("+", g)
    p_ = Update(p, a * 2)
    x = p_ + 1
    program = Execute("late", [p, g], [x])
    (late,) = (node for node in program.nodes if node.name == "x")
    circle = replace(late, op="Add", inputs=("p_", "p"))
    wrong = replace(program, nodes=tuple(circle if node is late else node for node in program.nodes))
    refused("anti-dependence", "p_ -> x -> p_", lambda: split(wrong, "a", "ARSplitRSAG"))
    with pytest.raises(InputError, match=re.escape("late: found launches that wait for each other (p_ -> x -> p_)")):
        stages(wrong)
