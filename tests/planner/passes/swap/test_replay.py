"""The compiled simulator against treadle.planner.timeline.simulator, and copies in both directions."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from tests.planner.passes.swap import cases
from tests.planner.passes.swap.plans import decide, random_order, random_pool
from treadle.planner.errors import InputError
from treadle.planner.passes.swap.arrays import KINDS, Nodes, arrays_of, ints, rows
from treadle.planner.passes.swap.decisions import SwapDecisions, SwapNode
from treadle.planner.passes.swap.layout import Pool
from treadle.planner.passes.swap.problem import SwapMachine
from treadle.planner.passes.swap.replay import replay
from treadle.planner.passes.swap.timeline_of import tasks_of
from treadle.planner.passes.swap.two_pass import Settings, plan_once, plan_pool
from treadle.planner.timeline.simulator import simulate


@pytest.mark.parametrize(
    ("in_bytes", "out_bytes", "time"),
    [(1_200_000_000, 0, 0.100), (1_200_000_000, 1_200_000_000, 0.120), (1_200_000_000, 600_000_000, 0.110)],
)
def test_copies_in_both_directions_share_the_bus(in_bytes, out_bytes, time):
    """O9: 12 GB/s alone, 20 GB/s together."""
    problem = cases.duplex(in_bytes, out_bytes)
    pool = {1: Pool((1,), (1 + bool(out_bytes),)), 2: Pool((1, 2), (1, 1))}[len(problem.object_sizes)]
    arrays = arrays_of(problem)
    nodes = plan_once(arrays, range(len(problem.ops)), pool)
    assert nodes is not None
    assert replay(arrays, nodes).makespan_ns == time * 1e9


def expect_timeline(nodes: Nodes, decisions: SwapDecisions) -> None:
    """The memory of plans that no planner made is left out."""
    found = replay(arrays_of(decisions.problem), nodes)
    tasks, resources = tasks_of(decisions)
    wanted = simulate([replace(task, alloc=(), free=()) for task in tasks], resources)
    assert (found.start.tolist(), found.end.tolist()) == (wanted.start, wanted.end)
    assert found.makespan_ns == wanted.makespan
    assert found.idle_ns == wanted.makespan - decisions.problem.ideal_ns


def test_plans_take_the_time_of_the_timeline_simulator_to_the_bit():
    for seed in range(250):
        rng = random.Random(seed)
        problem = cases.random_problem(rng, together=rng.choice(((1, 1), (1, 2), (5, 6), (997, 1000))))
        order, pool = random_order(rng, problem), random_pool(rng, problem)
        settings = Settings(rng.randint(0, 3))
        nodes = plan_pool(arrays_of(problem), order, pool, settings)
        decisions = decide(problem, order, pool, settings)
        expect_timeline(nodes, decisions)
        assert decisions.time_ns == replay(arrays_of(problem), nodes).makespan_ns


def test_any_graph_of_nodes_takes_the_time_of_the_timeline_simulator():
    """Nodes no planner would make: several operators ready at once, priorities against the order, chains of drops."""
    for seed in range(150):
        rng = random.Random(seed)
        problem = cases.random_problem(rng, ops=6, together=rng.choice(((1, 2), (5, 6))))
        count = rng.randint(1, 40)
        kinds = [rng.randrange(4) for _ in range(count)]
        item = [rng.randrange(len(problem.ops) if kind == 0 else len(problem.tensors)) for kind in kinds]
        serves = [rng.randrange(5) for _ in range(count)]
        after = [sorted(rng.sample(range(i), min(i, rng.randint(0, 3)))) for i in range(count)]
        nothing = ints(())
        after_ptr, flat = rows(after)
        nodes = Nodes(
            ints(kinds), ints(item), ints(serves), after_ptr, flat, np.zeros(count + 1, np.int64), nothing, nothing,
            nothing, nothing,
        )  # fmt: skip
        decisions = SwapDecisions(
            problem=problem,
            allocator="bytes",
            order=(),
            nodes=tuple(
                SwapNode(kind=KINDS[kind], item=i, serves=s, after=tuple(a), at=())
                for kind, i, s, a in zip(kinds, item, serves, after, strict=True)
            ),
            time_ns=0,
            idle_ns=0,
            in_bytes=0,
            out_bytes=0,
            peak_bytes=0,
        )
        expect_timeline(nodes, decisions)


def test_the_fixed_cost_of_a_copy_is_part_of_its_work():
    problem = cases.figure_4_3()
    machine = structs.replace(problem.machine, copy_ns=10)
    slow = arrays_of(structs.replace(problem, machine=machine))
    nodes = plan_once(slow, range(3), Pool((1,), (4,)))
    assert replay(slow, nodes).makespan_ns == 3 * 11 + 1


def test_nodes_that_wait_for_each_other_are_refused():
    problem = cases.figure_4_3()
    arrays = arrays_of(problem)
    nodes = plan_once(arrays, range(3), Pool((1,), (4,)))
    ring = nodes.after.copy()
    ring[0] = len(nodes.kind) - 2
    with pytest.raises(InputError, match="wait for each other"):
        replay(arrays, nodes._replace(after=ring))


def test_big_numbers_stay_exact():
    """Terabytes at a slow link: work times the denominator of `together` is far from 64 bits."""
    machine = SwapMachine(memory_bytes=2**42, in_bandwidth=10**9, out_bandwidth=10**9, together=(999, 1000))
    problem = structs.replace(cases.duplex(2**41, 2**41), machine=machine)
    nodes = plan_once(arrays_of(problem), range(2), Pool((1,), (2,)))
    alone = machine.in_ns(2**41)
    assert replay(arrays_of(problem), nodes).makespan_ns == -(-alone * 1000 // 999)
