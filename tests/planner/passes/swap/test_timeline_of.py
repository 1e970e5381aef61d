"""Swap plans as tasks: durations, the bus, priorities, and the bytes in use."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from tests.planner.passes.swap.cases import activation, built, duplex, parameter, random_problem
from tests.planner.passes.swap.plans import decide
from tests.planner.samples import SWAP_PLAN
from treadle.planner.passes.swap.decisions import PoolClass, Resident, SwapDecisions, SwapNode
from treadle.planner.passes.swap.layout import least_pool
from treadle.planner.passes.swap.problem import PERSISTENT, SwapProblem
from treadle.planner.passes.swap.timeline_of import MEMORY, footprints, label, start_bytes, tasks_of
from treadle.planner.timeline.simulator import Schedule, simulate


def plan_of(problem: SwapProblem, nodes: list[SwapNode], **fields: object) -> SwapDecisions:
    order = tuple(node.item for node in nodes if node.kind == "compute")
    return SwapDecisions(
        problem=problem, allocator="bytes", order=order, nodes=tuple(nodes), time_ns=0, idle_ns=0, in_bytes=0,
        out_bytes=0, peak_bytes=0, **fields,  # type: ignore[arg-type]
    )  # fmt: skip


def ran(decisions: SwapDecisions) -> Schedule:
    return simulate(*tasks_of(decisions), start_bytes(decisions))


GB = 10**9


@pytest.mark.parametrize(
    ("in_bytes", "out_bytes", "seconds"),
    [(1.2 * GB, 0, 0.1), (1.2 * GB, 1.2 * GB, 0.12), (1.2 * GB, 0.6 * GB, 0.11), (0.6 * GB, 1.2 * GB, 0.11)],
)
def test_copies_in_both_directions_share_the_bus(in_bytes: float, out_bytes: float, seconds: float) -> None:
    """O9: 12 GB/s alone, 20 GB/s together."""
    problem = duplex(round(in_bytes), round(out_bytes))
    if out_bytes:
        nodes = [
            SwapNode(kind="in", item=0, serves=1),
            SwapNode(kind="compute", item=0, serves=0),
            SwapNode(kind="out", item=1, serves=1, after=(1,)),
            SwapNode(kind="compute", item=1, serves=1, after=(0, 1, 2)),
        ]
    else:
        nodes = [SwapNode(kind="in", item=0, serves=0), SwapNode(kind="compute", item=0, serves=0, after=(0,))]
    assert ran(plan_of(problem, nodes)).makespan == round(seconds * 1e9)


def test_a_stream_takes_the_ready_node_that_serves_the_earliest_operator() -> None:
    problem = built(9, [parameter("a", 2), parameter("b", 2), parameter("c", 2)], [("f", "a b c", "")])
    nodes = [
        SwapNode(kind="in", item=0, serves=0),
        SwapNode(kind="in", item=1, serves=2),
        SwapNode(kind="in", item=2, serves=1),
        SwapNode(kind="compute", item=0, serves=0, after=(0, 1, 2)),
    ]
    assert ran(plan_of(problem, nodes)).start == [0, 4, 2, 6]


def test_drops_and_copies_of_nothing_take_no_time() -> None:
    problem = built(9, [parameter("a", 2), activation("b", 0)], [("f", "a", "b"), ("g", "b", "")])
    nodes = [
        SwapNode(kind="in", item=0, serves=0),
        SwapNode(kind="compute", item=0, serves=0, after=(0,)),
        SwapNode(kind="drop", item=0, serves=1, after=(1,)),
        SwapNode(kind="out", item=1, serves=1, after=(1,)),
        SwapNode(kind="in", item=1, serves=1, after=(3,)),
        SwapNode(kind="compute", item=1, serves=1, after=(1, 4)),
    ]
    schedule = ran(plan_of(problem, nodes))
    assert schedule.start == [0, 2, 3, 3, 3, 3]
    assert schedule.makespan == 4


def test_a_plan_has_its_streams_labels_and_whole_objects() -> None:
    decisions = SWAP_PLAN.decisions
    tasks, resources = tasks_of(decisions)
    assert [task.name for task in tasks] == ["in w1", "o1", "out w1", "o2"]
    assert [task.resources for task in tasks] == [("in",), ("compute",), ("out",), ("compute",)]
    assert [resource.name for resource in resources] == ["compute", "in", "out", "bus"]
    assert footprints(decisions) == [6, 6, 6, 6]  # a2 has 4 bytes and takes an object of 6
    assert start_bytes(decisions) == {MEMORY: 6}
    # w2 from the start; w1 at 0; a1 at 7; w1 leaves at 23 and a2 takes its place; a1 dies with o2
    assert ran(decisions).memory[MEMORY] == [(0, 6), (0, 12), (7, 18), (32, 12)]
    assert ran(decisions).makespan == decisions.time_ns


def test_what_is_dead_is_free_at_once_and_what_is_kept_stays() -> None:
    tensors = [activation("dead", 1), activation("kept", 2, kept=True), activation("unread", 4)]
    problem = built(9, tensors, [("f", "", "dead kept unread"), ("g", "dead kept", "")])
    nodes = [
        SwapNode(kind="compute", item=0, serves=0),
        SwapNode(kind="compute", item=1, serves=1, after=(0,)),
    ]
    assert ran(plan_of(problem, nodes)).memory[MEMORY] == [(0, 0), (0, 7), (1, 3), (2, 2)]


def test_without_a_slower_bus_there_is_none() -> None:
    problem = built(9, [parameter("a", 2)], [("f", "a", "")])
    nodes = [SwapNode(kind="in", item=0, serves=0), SwapNode(kind="compute", item=0, serves=0, after=(0,))]
    tasks, resources = tasks_of(plan_of(problem, nodes))
    assert [resource.name for resource in resources] == ["compute", "in", "out"]
    assert not any(task.shares for task in tasks)
    assert [label(problem, node) for node in nodes] == ["in a", "f"]


def test_initial_residents_count_with_their_objects() -> None:
    problem = built(9, [parameter("a", 2), parameter("b", 3)], [("f", "a b", "")])
    decisions = plan_of(
        problem,
        [SwapNode(kind="compute", item=0, serves=0)],
        initial=(Resident(tensor=0), Resident(tensor=1, at=3)),
    )
    assert start_bytes(decisions) == {MEMORY: 5}
    pooled = replace(
        decisions, allocator="pool", class_of=(1, 1), pool=(PoolClass(object_bytes=3, count=2, address=0),)
    )
    assert start_bytes(pooled) == {MEMORY: 6}


@pytest.mark.parametrize("seed", range(30))
def test_bytes_in_use_are_those_of_whoever_is_there(seed: int) -> None:
    problem = random_problem(random.Random(seed))
    decisions = decide(problem, range(len(problem.ops)), least_pool(problem))
    schedule = ran(decisions)
    size = footprints(decisions)
    left = schedule.memory[MEMORY][-1][1]
    there = {resident.tensor for resident in decisions.initial}
    for node in decisions.nodes:
        if node.kind == "compute":
            there |= set(problem.ops[node.item].outputs)
        elif node.kind == "in":
            there.add(node.item)
        else:
            there.discard(node.item)
    wanted = [t for t in there if problem.tensors[t].kept]
    assert left == sum(size[t] for t in wanted)
    assert {t for t in wanted if problem.tensors[t].role in PERSISTENT} == {r.tensor for r in decisions.final}
    assert (
        schedule.peak[MEMORY] == decisions.peak_bytes <= sum(part.object_bytes * part.count for part in decisions.pool)
    )
