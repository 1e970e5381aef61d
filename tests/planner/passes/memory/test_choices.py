"""The choices of each op are those of the program."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.planner.passes.memory.instances import instance
from treadle.planner.passes.memory.choices import ForwardChoice, Use, forward_choices, short_name, uses
from treadle.planner.passes.memory.decisions import MemoryDecisions
from treadle.planner.passes.memory.methods.least_peak import least_peak_schedule
from treadle.planner.passes.memory.planning import decide
from treadle.planner.passes.memory.problem import Backward, BackwardNode, Forward, ForwardNode, MemoryProblem
from treadle.planner.passes.memory.program import Drop, EnterStage, RunBackward, RunForward

CONVOLUTION = ForwardNode(
    op="aten.convolution.default",
    out_bytes=4,
    impls=(Forward(time_ns=5), Forward(name="winograd", family="conv", time_ns=3)),
)
NORM = ForwardNode(
    op="aten.batch_norm.default", out_bytes=4, inputs=(0,), impls=(Forward(time_ns=4, recompute_time_ns=2),)
)
RELU = ForwardNode(
    op="aten.relu.default", out_bytes=4, inputs=(1,), inplace_of=1, inplace_saves_ns=1, impls=(Forward(time_ns=2),)
)
MASK = ForwardNode(op="treadle.relu_mask", out_bytes=1, inputs=(2,), kind="intermediate", creator=2)
BY_MASK = BackwardNode(
    op="aten.threshold_backward.default",
    out_grad_bytes=4,
    live_grad_bytes=4,
    impls=(Backward(needs=(1,)), Backward(name="mask", family="int", needs=(3,))),
)
LAST = BackwardNode(op="norm_backward", out_grad_bytes=0, live_grad_bytes=4, impls=(Backward(needs=(1,)),))
PROGRAM = (
    *(EnterStage(3), RunForward(0, 1), RunForward(1), RunForward(2, 0, True), RunForward(3), Drop(2)),
    *(EnterStage(2), RunBackward(0, 1), Drop(3)),
    *(EnterStage(1), RunForward(1), Drop(0), RunBackward(1), Drop(1)),
)


def decisions() -> MemoryDecisions:
    problem = MemoryProblem(
        version=1, budget_bytes=100, base={}, fwd=(CONVOLUTION, NORM, RELU, MASK), bwd=(BY_MASK, LAST)
    )
    return replace(decide(problem, least_peak_schedule(problem)), program=PROGRAM)


def test_each_forward_node_is_kept_or_made_again_by_what_the_program_says() -> None:
    assert forward_choices(decisions()) == [
        ForwardChoice(0, RunForward(0, 1), True, (), 0),
        ForwardChoice(1, RunForward(1), False, (RunForward(1),), 2),
        ForwardChoice(2, RunForward(2, 0, True), False, (), 0),
        ForwardChoice(3, RunForward(3), True, (), 0),
    ]


def test_uses_count_ops_by_family() -> None:
    assert uses(decisions()) == [
        Use("conv", "convolution", "winograd", 1),
        Use("inplace", "relu", "default", 1),
        Use("int", "threshold_backward", "mask", 1),
        Use("statistics", "batch_norm", "default", 1),
    ]
    assert [str(use) for use in uses(decisions())] == [
        "1 convolution by winograd",
        "1 relu",
        "1 threshold_backward by mask",
        "1 batch_norm",
    ]


def test_names_are_shortened_only_where_they_are_operators() -> None:
    assert short_name("aten.native_dropout.default") == "native_dropout"
    assert short_name("treadle.max_pool2d") == "max_pool2d"
    assert short_name("block.1") == "block.1"


@settings(max_examples=60)
@given(st.integers(0, 10**6))
def test_times_of_recomputations_are_those_of_the_plan(seed: int) -> None:
    """Everything runs once in the forward pass but intermediates, and what is more costs what the plan says."""
    problem = instance(seed)
    made = decide(problem, least_peak_schedule(problem))
    found = forward_choices(made)
    forward = sum(
        problem.fwd[choice.node].time(choice.first.impl, False, choice.first.inplace)
        for choice in found
        if choice.first
    )
    backward = sum(
        problem.bwd[step.node].impls[step.impl].time_ns for step in made.program if isinstance(step, RunBackward)
    )
    assert forward + backward + sum(choice.again_ns for choice in found) == made.objective_ns
