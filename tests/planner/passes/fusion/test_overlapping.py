"""Overlap: chains of stages that start on what the one before has finished."""

# ruff: noqa: F403, F405 (programs are written as programs are)
from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.planner.passes.fusion.by_hand import by_hand
from tests.planner.passes.fusion.schedule_builder import ScheduleBuilder
from tests.planner.passes.fusion.transform_samples import example, refused
from treadle.fusion import *
from treadle.planner.passes.fusion.program import Program
from treadle.planner.passes.fusion.stages import groups, stages
from treadle.planner.passes.fusion.transforms.overlapping import overlap

N, B, H, F = dims("N", "B", "H", "F")


def rejected(program: Program, code: str, witness: str, members: Sequence[str]) -> str:
    return refused(code, witness, lambda: overlap(program, members))


def launched(program: Program) -> list[tuple[str, ...]]:
    return [tuple(stage.name for stage in group) for group in groups(program)]


def test_overlapped_stages_are_launched_together() -> None:
    program = example("attention")
    made = overlap(program, ["layer", "sum_"])
    assert made.made == ("ol",)
    assert launched(made.program) == [("layer", "sum_"), ("d",), ("out",)]
    both = overlap(made.program, ["d", "out"], "tail").program
    assert launched(both) == [("layer", "sum_"), ("d", "out")]


def test_a_chain_is_launched_when_all_of_it_can_be() -> None:
    x, y = Tensor("x", f32, [N], Replicated), Tensor("y", f32, [N], Replicated)
    a = x * 2
    b = y * 3
    c = a + b
    program = Execute("late", [x, y], [c])
    assert launched(overlap(program, ["a", "c"]).program) == [("b",), ("a", "c")]


def test_values_read_elsewhere_do_not_break_a_chain() -> None:
    x = Tensor("x", f32, [N], Replicated)
    a = x * 2
    b = a + 1
    c = a - 1
    program = Execute("read", [x], [b, c])
    assert launched(overlap(program, ["a", "b"]).program) == [("a", "b"), ("c",)]


def test_every_cut_of_the_kinds_of_section_7_is_legal() -> None:
    schedule = ScheduleBuilder(example("sgd"))
    rs, ag = schedule.split("sum_", "ARSplitRSAG")
    assert launched(overlap(schedule.program, [rs, ag, "p_"]).program) == [("rs", "ag", "p_")]
    schedule.reorder(ag, ["p_"])
    assert launched(overlap(schedule.program, ["rs", "p_s", "ag_p"]).program) == [("rs", "p_s", "ag_p")]


@pytest.mark.parametrize("fixture", ["sgd extended", "attention", "attention apart", "pipeline"])
def test_the_stages_of_the_fixtures_are_chains(fixture: str) -> None:
    for program in by_hand(fixture).values():
        names = [stage.name for stage in stages(program)]
        if len(names) > 1:
            assert launched(overlap(program, names).program) == [tuple(names)]


def test_what_is_no_chain() -> None:
    program = example("attention")
    rejected(program, "single", "layer", ["layer"])
    rejected(program, "repeated", "d", ["d", "d"])
    rejected(program, "unknown", "e", ["d", "e"])
    rejected(program, "not-a-chain", "layer -> d", ["layer", "d"])
    rejected(program, "not-a-chain", "sum_ -> layer", ["sum_", "layer"])
    chained = overlap(program, ["layer", "sum_"]).program
    rejected(chained, "overlapped", "ol", ["sum_", "d"])
    refused("name", "layer", lambda: overlap(program, ["d", "out"], "layer"))


def test_a_chain_that_is_left_and_entered_again() -> None:
    x = Tensor("x", f32, [N], Replicated)
    a = x * 2
    b = a + 1
    c = a * b
    program = Execute("left", [x], [c])
    message = rejected(program, "not-convex", "a -> b -> c", ["a", "c"])
    assert message == "overlap: found a -> b -> c leaving the chain and coming back"


def test_chains_must_not_wait_for_each_other() -> None:
    x = Tensor("x", f32, [N], Replicated)
    a, b = x * 2, x * 3
    c = a + b
    d = b - a
    program = Execute("cross", [x], [c, d])
    first = overlap(program, ["a", "c"]).program
    rejected(first, "cycle", "a -> b -> a", ["b", "d"])


def test_a_norm_breaks_the_stream() -> None:
    program = example("lamb")
    rejected(program, "not-streamable", "norm_u", ["u", "norm_u"])
    schedule = ScheduleBuilder(program)
    schedule.fuse(["u", "norm_u", "p_"], "ComputationFuse", "k")
    rejected(schedule.program, "not-streamable", "norm_u", ["m1", "k"])
    rows = example("rmsnorm")
    assert ("square", "out") in launched(overlap(rows, ["square", "out"]).program)


def test_rows_by_an_index_break_the_stream() -> None:
    rejected(example("moe"), "not-streamable", "rows", ["rows", "weighted"])


def test_a_tensor_is_not_overwritten_while_it_is_read_otherwise() -> None:
    w = Tensor("w", f32, [B, B], Replicated)
    x = Tensor("x", f32, [B, B], Replicated)
    y = MatMul(x, w)
    z = x * w
    w_ = Update(w, y + z)
    program = Execute("written", [w, x], [w_])
    rejected(program, "anti-dependence", "y -> w", ["y", "w_"])
    overlap(program, ["z", "w_"])
