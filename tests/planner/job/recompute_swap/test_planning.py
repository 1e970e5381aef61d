"""Swapping and recomputation together: never slower than either pass, faster where that pays, sound and proved."""

from __future__ import annotations

import time
from dataclasses import replace as replace_options

import pytest
from msgspec.structs import replace

from tests.planner.job.recompute_swap.steps import MIB, captured, chain, machine_for
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import InfeasibleError
from treadle.planner.graph.unrolling import plain_runs, unrolled
from treadle.planner.job.recompute_swap.memory_runs import allowed
from treadle.planner.job.recompute_swap.planning import JointOptions, JointProblem, plan_joint
from treadle.planner.job.recompute_swap.programs import memory_alone, sides
from treadle.planner.job.recompute_swap.relaxation import joint_bound
from treadle.planner.job.recompute_swap.scoring import Scorer, quick_plan
from treadle.planner.passes.memory.planning import MemoryOptions
from treadle.planner.passes.swap.bound import lower_bound
from treadle.planner.passes.swap.check import check
from treadle.planner.passes.swap.decisions import Allocator, SwapDecisions
from treadle.planner.passes.swap.evaluate import decisions
from treadle.planner.passes.swap.extract import problem_from_trace
from treadle.planner.passes.swap.planning import SwapOptions, inplace_problem, plan_swap
from treadle.planner.passes.swap.problem import SwapMachine
from treadle.planner.passes.swap.search.options import Method

SWAP = SwapOptions(method="genetic", population=8, generations=3, patience=2, time_limit_s=120.0)
MEMORY = MemoryOptions(method="heuristic")
ALLOCATORS: tuple[Allocator, ...] = ("pool", "bytes", "offset")
JOINT = JointOptions(swap=SWAP, memory=MEMORY, evaluations=30, starts=1, finalists=1)


def decided(plan: Plan) -> SwapDecisions:
    return plan.decisions


def memory_time(trace: Trace, machine: SwapMachine, allocator: Allocator = "pool") -> int | None:
    """The memory pass in isolation, in the memory of the device; its swap plan need not copy activations."""
    try:
        runs = memory_alone(sides(allowed(trace), machine, 0), MEMORY, time.monotonic() + 60, lambda: False)
    except InfeasibleError:
        return None
    found = quick_plan(problem_from_trace(unrolled(trace, runs), machine), runs, "memory", allocator)
    return None if found is None else found.time_ns


@pytest.mark.parametrize(
    ("name", "share", "copies", "method"),
    [
        ("mlp", 0.9, 2.0, "genetic"),
        pytest.param("convnet", 0.7, 4.0, "auto", marks=pytest.mark.slow),
        pytest.param("unet", 0.5, 1.5, "auto", marks=pytest.mark.slow),
    ],
)
def test_never_behind_either_pass_alone(name: str, share: float, copies: float, method: Method) -> None:
    trace = captured(name)
    machine = machine_for(trace, share, copies)
    options = replace_options(SWAP, method=method)
    plan = plan_joint(JointProblem(trace, machine), options=replace_options(JOINT, swap=options))
    ours = decided(plan)
    assert check(ours) == []
    alone = decided(plan_swap(inplace_problem(trace, machine), options=options))
    assert ours.time_ns <= alone.time_ns
    memory = memory_time(trace, machine)
    assert memory is None or ours.time_ns <= memory
    assert plan.certificate.lower_bound <= ours.time_ns
    solved = problem_from_trace(unrolled(trace, ours.runs) if ours.runs else trace, machine)
    assert ours.problem == solved


def test_ahead_of_both_where_some_tensors_are_cheap_to_copy_and_others_to_make() -> None:
    """Every second layer is slow to run, every second one fast; copies take as long as a slow layer."""
    trace = chain(16)
    slow = {f"f{i}" for i in range(1, 17, 2)}
    trace = replace(trace, ops=tuple(replace(op, time_ns=9000 if op.id in slow else op.time_ns) for op in trace.ops))
    machine = SwapMachine(memory_bytes=9 * MIB, in_bandwidth=MIB * 10**9 // 9000, out_bandwidth=MIB * 10**9 // 9000)
    ours = decided(plan_joint(JointProblem(trace, machine), options=JOINT))
    alone = decided(plan_swap(inplace_problem(trace, machine), options=SWAP))
    memory = memory_time(trace, machine)
    assert memory is not None
    assert ours.runs
    assert ours.in_bytes > 0
    assert ours.time_ns < min(alone.time_ns, memory)


def test_the_bound_is_below_every_plan_and_above_compute_where_memory_is_short() -> None:
    trace = chain(16)
    machine = SwapMachine(memory_bytes=7 * MIB, in_bandwidth=MIB * 10**9 // 20000, out_bandwidth=MIB * 10**9 // 20000)
    bound, sets = joint_bound(trace, machine, 0)
    compute = sum(op.time_ns or 0 for op in trace.ops)
    ours = decided(plan_joint(JointProblem(trace, machine), options=JOINT))
    assert compute < bound.time_ns <= ours.time_ns
    assert bound.scope == "any order"
    assert sets
    endless = replace(machine, memory_bytes=100 * MIB)
    assert joint_bound(trace, endless, 0)[0].time_ns <= compute + 2 * 20000


def test_inference_and_updates_are_planned_too() -> None:
    whole = captured("mlp", "sgd")
    machine = machine_for(whole, 0.95, 2.0)
    ours = decided(plan_joint(JointProblem(whole, machine), options=JOINT))
    assert check(ours) == []
    trace = chain(6)
    forward = tuple(op for op in trace.ops if op.phase == "forward")
    made = {t for op in forward for t in op.outputs}
    kept = tuple(t for t in trace.tensors if t.id in made or t.id in ("a0", "w"))
    inference = replace(trace, mode="infer", ops=forward, tensors=kept, tangents=())
    assert check(decided(plan_joint(JointProblem(inference, machine_for(inference, 1.0)), options=JOINT))) == []


def test_the_same_inputs_give_the_same_plan() -> None:
    trace = chain(10)
    machine = SwapMachine(memory_bytes=7 * MIB, in_bandwidth=MIB * 10**6, out_bandwidth=MIB * 10**6)
    assert plan_joint(JointProblem(trace, machine), options=JOINT) == plan_joint(
        JointProblem(trace, machine), options=JOINT
    )


def test_what_cannot_be_says_so() -> None:
    trace = chain(4)
    machine = SwapMachine(memory_bytes=3 * MIB, in_bandwidth=10**9, out_bandwidth=10**9)
    with pytest.raises(InfeasibleError, match="b4 holds"):
        plan_joint(JointProblem(trace, machine), options=JOINT)


@pytest.mark.parametrize("allocator", ["pool", "bytes"])
def test_a_limit_that_fires_at_once_leaves_the_plan_of_the_memory_pass(allocator: Allocator) -> None:
    trace = chain(16)
    machine = SwapMachine(memory_bytes=9 * MIB, in_bandwidth=MIB * 10**9 // 90000, out_bandwidth=MIB * 10**9 // 90000)
    plans: list[Plan] = []
    options = JointOptions(swap=replace_options(SWAP, time_limit_s=0.01, allocator=allocator), memory=MEMORY)
    plan = plan_joint(JointProblem(trace, machine), options=options, on_plan=plans.append)
    ours = decided(plan)
    memory = memory_time(trace, machine, allocator)
    assert memory is not None
    assert ours.time_ns <= memory
    assert check(ours) == []
    assert plan.provenance.limit_fired
    assert plans
    assert decided(plans[-1]) == ours


def test_swapping_alone_is_left_out_only_where_it_cannot_be_ahead() -> None:
    """Copies take as long as the step: recomputation is faster than the bound of plans that only copy."""
    trace = chain(16)
    machine = SwapMachine(memory_bytes=9 * MIB, in_bandwidth=MIB * 10**9 // 90000, out_bandwidth=MIB * 10**9 // 90000)
    plan = plan_joint(JointProblem(trace, machine), options=JOINT)
    assert "swap alone" not in plan.provenance.parts
    assert decided(plan).time_ns <= lower_bound(problem_from_trace(trace, machine)).time_ns
    assert decided(plan).time_ns < decided(plan_swap(inplace_problem(trace, machine), options=SWAP)).time_ns


def test_quick_scores_are_those_of_the_allocator() -> None:
    trace = captured("convnet")
    machine = machine_for(trace, 0.6, 4.0)
    scored = {each: Scorer(trace, machine, 0, each).score(plain_runs(trace), "own") for each in ALLOCATORS}
    for allocator, one in scored.items():
        assert one is not None
        assert (one.pool is not None) == (allocator == "pool")
        order = tuple(range(len(one.problem.ops)))
        assert check(decisions(one.problem, one.arrays, order, one.nodes, one.pool, allocator)) == []
    assert scored["bytes"] is not None
    assert scored["pool"] is not None
    assert scored["bytes"].time_ns < scored["pool"].time_ns


def test_swapping_alone_chooses_its_allocator() -> None:
    """Tensors are enlarged, for an object of the pool is 512 bytes at least."""
    small = captured("mlp")
    trace = replace(small, tensors=tuple(replace(t, bytes=512 * (t.bytes or 0)) for t in small.tensors))
    machine = machine_for(trace, 0.8, 1.0)
    both = replace_options(SWAP, allocators=("pool", "offset"))
    plan = plan_joint(JointProblem(trace, machine), options=replace_options(JOINT, swap=both))
    assert "swap alone" in plan.provenance.parts
    assert decided(plan).allocator == "offset"
    assert decided(plan).time_ns < decided(plan_joint(JointProblem(trace, machine), options=JOINT)).time_ns
