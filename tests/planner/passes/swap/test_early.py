"""Copies out that begin while operators still read their tensor: they are safe, and they save time."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from tests.planner.passes.swap import cases
from tests.planner.passes.swap.adversary import survives
from tests.planner.passes.swap.plans import random_order, random_pool
from tests.planner.passes.swap.test_check import unsafe, without_edges
from treadle.planner.passes.swap.arrays import Nodes, arrays_of
from treadle.planner.passes.swap.check import check
from treadle.planner.passes.swap.decisions import SwapDecisions
from treadle.planner.passes.swap.early import last_writes, split, write_back_early
from treadle.planner.passes.swap.evaluate import decisions, time_ns
from treadle.planner.passes.swap.layout import Pool
from treadle.planner.passes.swap.planning import SwapOptions, SwapTask, plan_swap
from treadle.planner.passes.swap.problem import SwapProblem
from treadle.planner.passes.swap.timeline_of import dropped
from treadle.planner.passes.swap.two_pass import plan_pool

QUICK = {"population": 8, "generations": 4, "patience": 3}


def read_for_long() -> SwapProblem:
    """`a` is made in 1 ns, read for 8, and leaves for `d`: its copy of 4 ns can hide behind the reader."""
    tensors = [cases.activation(name, 4) for name in "abc"] + [cases.activation("d", 4, kept=True)]
    problem = cases.built(
        12, tensors, [("make", "", "a"), ("read", "a", "b"), ("next", "b", "c"), ("last", "b c", "d"),
                              ("end", "a d", "")],
    )  # fmt: skip
    slow = tuple(replace(op, time_ns=8) if op.id == "read" else op for op in problem.ops)
    return replace(problem, ops=slow)


def small(seed: int, ops: int | None = None) -> tuple[SwapProblem, list[int], Pool, Nodes | None]:
    rng = random.Random(seed)
    problem = cases.random_problem(rng, ops)
    order, pool = random_order(rng, problem), random_pool(rng, problem)
    problem = replace(problem, machine=replace(problem.machine, memory_bytes=2**20))
    return problem, order, pool, plan_pool(arrays_of(problem), order, pool)


def all_early(seed: int, ops: int | None = None) -> SwapDecisions | None:
    """A plan with every copy out early that can be; None for one without any."""
    problem, order, pool, nodes = small(seed, ops)
    arrays = arrays_of(problem)
    if nodes is None or not (written := last_writes(arrays, nodes)):
        return None
    changed, early = split(nodes, written)
    return decisions(problem, arrays, order, changed, pool, early=early)


PLANS = [6, 9, 10, 13, 19, 20, 26, 29, 35, 37, 41, 42, 48, 56, 58, 61, 62, 63, 68, 77, 79, 86, 90, 99, 103, 112]
"""Seeds whose plans have copies out that can be early."""


def test_a_copy_hides_behind_the_reader_of_its_tensor():
    problem, pool = read_for_long(), Pool((1,), (3,))
    arrays, order = arrays_of(problem), list(range(len(problem.ops)))
    nodes = plan_pool(arrays, order, pool)
    assert nodes is not None
    late = decisions(problem, arrays, order, nodes, pool)
    changed, early = write_back_early(arrays, nodes)
    plan = decisions(problem, arrays, order, changed, pool, early=early)
    assert check(late) == check(plan) == []
    assert len(early) == 1
    assert (late.out_bytes, late.in_bytes) == (plan.out_bytes, plan.in_bytes)
    assert (late.time_ns, plan.time_ns) == (19, 16)
    assert dropped(plan) == dropped(late) == []


@pytest.mark.parametrize("seed", PLANS)
def test_early_copies_are_accepted_and_run_right_whatever_copies_take(seed):
    plan = all_early(seed)
    assert plan is not None
    assert any(node.early for node in plan.nodes)
    assert unsafe(plan) == []
    assert survives(plan, random.Random(seed), 5)


@pytest.mark.parametrize("seed", PLANS[:12])
def test_an_edge_is_needed_exactly_where_a_machine_can_go_wrong_without_it(seed):
    plan = all_early(seed)
    assert plan is not None
    rng = random.Random(seed)
    for chain, damaged in without_edges(plan):
        if chain:
            continue
        if unsafe(damaged):
            assert not survives(damaged, rng, 400), unsafe(damaged)
        else:
            assert survives(damaged, rng, 30)


def test_what_copies_a_tensor_while_it_is_written_is_refused():
    """A parameter is updated after an early copy of it: nothing else than a wait keeps the two apart."""
    problem = cases.built(
        20, [cases.parameter("w", 4), cases.activation("a", 4), cases.activation("b", 4)],
        [("set", "w", "a", "w"), ("read", "w a", "b"), ("again", "w b", "", "w")],
    )  # fmt: skip
    arrays = arrays_of(problem)
    nodes = plan_pool(arrays, range(3), Pool((1,), (3,)))
    assert nodes is not None
    plan = decisions(problem, arrays, range(3), nodes, Pool((1,), (3,)))
    assert check(plan) == []
    set_, read, again = (at for at, node in enumerate(plan.nodes) if node.kind == "compute")
    copy = replace(plan.nodes[set_], kind="out", item=0, at=(), after=(set_,), early=True)
    rest = [replace(node, after=tuple(at + (at > read) for at in node.after)) for node in plan.nodes[read + 1 :]]
    hasty = replace(plan, nodes=(*plan.nodes[: read + 1], copy, *rest))
    assert f"node {again + 1} (again) writes w, but does not wait for node {read + 1} (out w)" in unsafe(hasty)
    assert not survives(hasty, random.Random(0), 100)
    waiting = replace(rest[again - read - 1], after=(*rest[again - read - 1].after, read + 1))
    rest[again - read - 1] = waiting
    assert unsafe(replace(plan, nodes=(*plan.nodes[: read + 1], copy, *rest))) == []
    unmade = replace(copy, after=())
    sooner = replace(plan, nodes=(*plan.nodes[: read + 1], unmade, *rest))
    assert f"node {read + 1} (out w) does not wait for node {set_} (set), which writes w" in unsafe(sooner)


def test_only_copies_out_are_early():
    plan = all_early(PLANS[0])
    assert plan is not None
    nodes = (replace(plan.nodes[0], kind="compute", early=True), *plan.nodes[1:])
    assert any(
        ".early: found true for compute, expected copies out only" in x for x in check(replace(plan, nodes=nodes))
    )


def test_an_early_copy_needs_a_drop():
    plan = all_early(PLANS[0])
    assert plan is not None
    at = next(at for at, node in enumerate(plan.nodes) if node.early)
    (end,) = (k for k, node in enumerate(plan.nodes) if node.kind == "drop" and at in node.after)
    compute = next(node for node in plan.nodes if node.kind == "compute")
    assert compute.kind == "compute"
    lost = replace(plan.nodes[end], kind="out")
    assert unsafe(replace(plan, nodes=(*plan.nodes[:end], lost, *plan.nodes[end + 1 :]))) == [], "copied twice is safe"


@pytest.mark.parametrize("seed", PLANS)
def test_a_choice_of_copies_is_never_slower(seed):
    problem, order, pool, nodes = small(seed)
    assert nodes is not None
    arrays = arrays_of(problem)
    changed, early = write_back_early(arrays, nodes)
    before, after = time_ns(arrays, nodes), time_ns(arrays, changed)
    assert before is not None
    assert after is not None
    assert after < before if early else after == before
    assert check(decisions(problem, arrays, order, changed, pool, early=early)) == []


def test_some_choices_are_faster():
    early = [write_back_early(arrays_of(small(seed)[0]), nodes)[1] for seed in PLANS if (nodes := small(seed)[3])]
    assert sum(map(bool, early)) > 5


def test_plans_have_early_copies_where_they_are_faster_and_faithful_ones_never():
    plan, plain = (
        plan_swap(SwapTask(read_for_long()), options=SwapOptions(**QUICK, faithful=faithful))
        for faithful in (False, True)
    )
    assert [node.early for node in plan.decisions.nodes].count(True) == 1
    assert not any(node.early for node in plain.decisions.nodes)
    assert plan.decisions.time_ns < plain.decisions.time_ns
    assert plan.certificate.scope == "any order", "what the exact search proves holds without early copies"
