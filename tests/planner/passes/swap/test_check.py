"""The checker of swap plans: what it accepts runs right on the worst of machines, what it rejects can go wrong."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

import pytest
from msgspec.structs import replace

from tests.planner.passes.swap.adversary import survives
from tests.planner.passes.swap.cases import activation, built, figure_4_1, parameter, random_problem
from tests.planner.passes.swap.plans import decide, random_order
from treadle.planner.documents.trace import OpRun
from treadle.planner.passes.swap.arrays import arrays_of
from treadle.planner.passes.swap.check import check
from treadle.planner.passes.swap.decisions import Allocator, PoolClass, Resident, SwapDecisions, SwapNode
from treadle.planner.passes.swap.evaluate import decisions
from treadle.planner.passes.swap.happens_before import happens_before
from treadle.planner.passes.swap.layout import Pool, least_pool
from treadle.planner.passes.swap.minimum import least_memory
from treadle.planner.passes.swap.overlap import clashes, crowd
from treadle.planner.passes.swap.problem import SwapProblem, SwapTensor
from treadle.planner.passes.swap.residencies import START, Residency
from treadle.planner.passes.swap.spans import plan_spans
from treadle.planner.passes.swap.timeline_of import label, start_bytes, tasks_of
from treadle.planner.passes.swap.two_pass import Settings
from treadle.planner.timeline.simulator import simulate

FIGURES = ("time_ns", "idle_ns", "in_bytes", "out_bytes", "peak_bytes")


def figured(decisions: SwapDecisions) -> SwapDecisions:
    """With the figures of the simulation."""
    schedule = simulate(*tasks_of(decisions), start_bytes(decisions))
    size = {
        kind: sum(decisions.problem.tensors[node.item].bytes for node in decisions.nodes if node.kind == kind)
        for kind in ("in", "out")
    }
    return replace(
        decisions,
        time_ns=schedule.makespan,
        idle_ns=schedule.makespan - decisions.problem.ideal_ns,
        in_bytes=size["in"],
        out_bytes=size["out"],
        peak_bytes=schedule.peak["memory"],
    )


def as_offset(plan: SwapDecisions) -> SwapDecisions:
    """The same plan with its addresses alone."""
    return figured(replace(plan, allocator="offset", pool=(), class_of=()))


def as_bytes(plan: SwapDecisions) -> SwapDecisions:
    """The same plan without addresses."""
    return figured(
        replace(
            plan,
            allocator="bytes",
            pool=(),
            class_of=(),
            initial=tuple(replace(resident, at=0) for resident in plan.initial),
            final=tuple(replace(resident, at=0) for resident in plan.final),
            nodes=tuple(replace(node, at=()) for node in plan.nodes),
        )
    )


def random_plan(seed: int, ops: int | None = None) -> SwapDecisions:
    """A plan of the three allocators by turns, in some order; with offsets the pool's where there is no hole."""
    rng = random.Random(seed)
    problem = random_problem(rng, ops)
    order = random_order(rng, problem)
    settings = Settings(threshold=seed % 4, keep_initial=seed % 2 == 0)
    allocator: Allocator = ("pool", "offset", "bytes")[seed % 3]  # type: ignore[assignment]
    plan = decide(problem, order, least_pool(problem), settings)
    if allocator == "pool":
        return plan
    beside = problem.scratch_bytes + problem.reserve_bytes
    room = rng.randint(least_memory(problem, allocator).memory_bytes - beside, problem.arena_bytes)
    problem = replace(problem, machine=replace(problem.machine, memory_bytes=room + beside))
    arrays = arrays_of(problem)
    nodes = plan_spans(arrays, order, room, allocator, settings)
    if nodes is None:
        return as_offset(plan) if plan.initial == plan.final else plan
    return decisions(problem, arrays, order, nodes, None, allocator)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_plans_are_accepted_and_run_right_whatever_copies_take(seed: int) -> None:
    plan = random_plan(seed)
    assert check(plan) == []
    assert survives(plan, random.Random(seed), 5)


def test_random_plans_are_of_all_three_allocators() -> None:
    assert {random_plan(seed).allocator for seed in range(6)} == {"pool", "offset", "bytes"}


def unsafe(plan: SwapDecisions) -> list[str]:
    """Findings other than those on figures."""
    return [finding for finding in check(plan) if not finding.startswith(FIGURES)]


def without_edges(plan: SwapDecisions) -> Iterator[tuple[bool, SwapDecisions]]:
    """The plan without one of its edges each, and whether that one joins two operators."""
    for at, node in enumerate(plan.nodes):
        for before in node.after:
            rest = replace(node, after=tuple(other for other in node.after if other != before))
            chain = node.kind == plan.nodes[before].kind == "compute"
            yield chain, replace(plan, nodes=(*plan.nodes[:at], rest, *plan.nodes[at + 1 :]))


@pytest.mark.parametrize("seed", range(15))
def test_an_edge_is_needed_exactly_where_a_machine_can_go_wrong_without_it(seed: int) -> None:
    plan = random_plan(seed, ops=random.Random(seed).randint(3, 7))
    rng = random.Random(seed)
    for chain, damaged in without_edges(plan):
        if chain:
            assert any("the operator before it" in finding for finding in check(damaged))
        elif unsafe(damaged):
            assert not survives(damaged, rng, 400), unsafe(damaged)
        else:
            assert survives(damaged, rng, 30)


# One plan with every named corruption.

TENSORS = [
    parameter("w1", 4),
    parameter("w2", 4),
    SwapTensor(id="x", bytes=4, role="input"),
    activation("a1", 4),
    activation("a2", 4, kept=True),
    activation("g", 4),
    activation("h", 4),
]
STEP = built(
    12,
    TENSORS,
    [
        ("f1", "x w1", "a1"),
        ("f2", "a1 w2", "a2"),
        ("b2", "a2 w2", "g"),
        ("b1", "a1 g", "h"),
        ("u1", "w1 h", "", "w1"),
        ("u2", "w2 g", "", "w2"),
    ],
)
NAMES = {tensor.id: at for at, tensor in enumerate(STEP.tensors)}
PLAN = SwapDecisions(
    problem=STEP,
    allocator="pool",
    order=(0, 1, 2, 3, 4, 5),
    pool=(PoolClass(object_bytes=4, count=3, address=0),),
    class_of=(1,),
    initial=(Resident(tensor=0, at=0),),
    final=(Resident(tensor=0, at=0),),
    nodes=(
        SwapNode(kind="in", item=2, serves=0, at=(4,)),
        SwapNode(kind="compute", item=0, serves=0, after=(0,), at=(8,)),
        SwapNode(kind="in", item=1, serves=1, after=(1,), at=(4,)),
        SwapNode(kind="out", item=0, serves=1, after=(1,)),
        SwapNode(kind="compute", item=1, serves=1, after=(1, 2, 3), at=(0,)),
        SwapNode(kind="out", item=3, serves=2, after=(4,)),
        SwapNode(kind="compute", item=2, serves=2, after=(4, 5), at=(8,)),
        SwapNode(kind="out", item=4, serves=3, after=(6,)),
        SwapNode(kind="in", item=3, serves=3, after=(5, 7), at=(0,)),
        SwapNode(kind="drop", item=1, serves=3, after=(6,)),
        SwapNode(kind="compute", item=3, serves=3, after=(6, 8, 9), at=(4,)),
        SwapNode(kind="in", item=0, serves=4, after=(3, 10), at=(0,)),
        SwapNode(kind="compute", item=4, serves=4, after=(10, 11)),
        SwapNode(kind="in", item=1, serves=5, after=(9, 12), at=(4,)),
        SwapNode(kind="compute", item=5, serves=5, after=(12, 13)),
        SwapNode(kind="out", item=1, serves=6, after=(14,)),
    ),
    time_ns=38,
    idle_ns=32,
    in_bytes=20,
    out_bytes=16,
    peak_bytes=12,
)


def node(name: str, plan: SwapDecisions = PLAN, nth: int = 0) -> int:
    """The index of the nth node of a label such as `in w1` or `f2`."""
    return [at for at, found in enumerate(plan.nodes) if label(plan.problem, found) == name][nth]


def with_node(at: int, plan: SwapDecisions = PLAN, /, **fields: Any) -> SwapDecisions:
    nodes = list(plan.nodes)
    nodes[at] = replace(nodes[at], **fields)
    return replace(plan, nodes=tuple(nodes))


def without_edge(before: int, at: int, plan: SwapDecisions = PLAN) -> SwapDecisions:
    assert before in plan.nodes[at].after
    return with_node(at, plan, after=tuple(other for other in plan.nodes[at].after if other != before))


def without_node(at: int, plan: SwapDecisions = PLAN) -> SwapDecisions:
    """The plan without a node; who waited for it waits for what it waited for."""
    nodes = []
    for place, found in enumerate(plan.nodes):
        after = {other for before in found.after for other in ((before,) if before != at else plan.nodes[at].after)}
        if place != at:
            nodes.append(replace(found, after=tuple(sorted(other - (other > at) for other in after))))
    return replace(plan, nodes=tuple(nodes))


def with_machine(**fields: Any) -> SwapDecisions:
    return replace(PLAN, problem=replace(STEP, machine=replace(STEP.machine, **fields)))


def with_residents(*residents: Resident) -> SwapDecisions:
    return replace(PLAN, initial=residents, final=residents)


def with_op(at: int, **fields: Any) -> SwapProblem:
    ops = list(STEP.ops)
    ops[at] = replace(ops[at], **fields)
    return replace(STEP, ops=tuple(ops))


def test_the_plan_is_right_before_it_is_corrupted() -> None:
    assert check(PLAN) == []
    assert check(as_offset(PLAN)) == []
    assert check(as_bytes(PLAN)) == []
    assert check(decide(STEP, PLAN.order, Pool((1,), (3,)))) == []


SWAPPED = (0, 2, 1, 3, 4, 5)
CORRUPTIONS: dict[str, tuple[Callable[[], SwapDecisions], str]] = {
    # the eight edges of SwapAdvisor, section 4.3
    "last user to out": (
        lambda: without_edge(node("b2"), node("out a2")),
        "node 7 (out a2) does not wait for node 6 (b2), the last to use a2",
    ),
    "arrival to out": (
        lambda: with_node(node("out w2"), without_edge(node("in w2", nth=1), node("u2")), after=(node("u1"),)),
        "node 15 (out w2) does not wait for node 14 (u2), the last to use w2",
    ),
    "out to the arrival that takes the object": (
        lambda: without_edge(node("out a2"), node("in a1")),
        "node 8 (in a1) takes the place of a2 at 0, which leaves after node 7 (out a2), and does not wait for that",
    ),
    "arrival to user": (
        lambda: without_edge(node("in a1"), node("b1")),
        "node 10 (b1) uses a1, but does not wait for node 8 (in a1)",
    ),
    "out to the operator whose output takes the object": (
        lambda: without_edge(node("out a1"), node("b2")),
        "node 6 (b2): g takes the place of a1 at 8, which leaves after node 5 (out a1), and does not wait for that",
    ),
    "out of a tensor to its own arrival": (
        lambda: with_node(node("in a1"), after=()),
        "node 8 (in a1) does not wait for node 5 (out a1), by which a1 left",
    ),
    "last user of a dead tensor to the arrival that takes the object": (
        lambda: with_node(node("in w2"), after=(node("in x"),)),
        "node 2 (in w2) takes the place of x at 4, which leaves after node 1 (f1), and does not wait for that",
    ),
    "operator to operator": (
        lambda: without_edge(node("u1"), node("u2")),
        "node 14 (u2) does not wait for node 12 (u1), the operator before it",
    ),
    # data
    "dirty initial resident dropped": (
        lambda: with_node(node("out w1"), kind="drop"),
        "node 3 (drop w1) loses w1: the host has an old value of w1",
    ),
    "activation dropped before its last use": (
        lambda: with_node(node("out a1"), kind="drop"),
        "node 5 (drop a1) loses a1: the host has no copy of a1",
    ),
    "activation read from the host without a copy": (
        lambda: with_node(node("out a1"), kind="drop"),
        "node 8 (in a1) reads the host, which has no copy of a1",
    ),
    "kept activation dropped": (
        lambda: with_node(node("out a2"), kind="drop"),
        "node 7 (drop a2) loses a2: the host has no copy of a2",
    ),
    "written parameter dropped at the end": (
        lambda: with_node(node("out w2"), kind="drop"),
        "node 15 (drop w2) loses w2: the host has an old value of w2",
    ),
    "tail write-back missing": (
        lambda: without_node(node("out w2")),
        "final: w2 is on the device when the iteration ends and is not listed, so that what was written to it is lost",
    ),
    "stale host copy read": (
        lambda: replace(PLAN, problem=with_op(2, writes=(NAMES["w2"],), after=(1,))),
        "node 13 (in w2) reads the host, which has an old value of w2",
    ),
    "input evicted before its user": (
        lambda: replace(
            without_node(node("in x")),
            nodes=(SwapNode(kind="in", item=2, serves=0, at=(4,)), SwapNode(kind="drop", item=2, serves=0, after=(0,)),
                   *(replace(found, after=tuple(b + 1 for b in found.after)) for found in PLAN.nodes[1:])),
        ),
        "uses x, which is not on the device since node 1 (drop x)",
    ),
    "arrival missing": (
        lambda: without_node(node("in w2")),
        "uses w2, which is not on the device",
    ),
    "arrival of what is there": (
        lambda: with_node(node("in x"), item=NAMES["w1"]),
        "node 0 (in w1), but w1 is on the device already",
    ),
    "departure of what is not there": (
        lambda: with_node(node("drop w2"), item=NAMES["a2"]),
        "node 9 (drop a2), but a2 is not on the device since node 7 (out a2)",
    ),
    # steady state
    "initial resident lost": (
        lambda: replace(PLAN, final=()),
        "initial: w1 is not in final, so the plan cannot run again",
    ),
    "final resident never there before": (
        lambda: replace(PLAN, final=(*PLAN.final, Resident(tensor=1, at=4))),
        "final: w2 is not in initial, so the plan cannot run again",
    ),
    "final resident that left": (
        lambda: with_residents(Resident(tensor=0, at=0), Resident(tensor=1, at=8)),
        "final: w2 is not on the device since node 15 (out w2) when the iteration ends",
    ),
    "final resident elsewhere": (
        lambda: replace(PLAN, final=(Resident(tensor=0, at=8),)),
        "final: w1 is at 0 when the iteration ends, not at 8",
    ),
    "initial activation": (
        lambda: replace(PLAN, initial=(*PLAN.initial, Resident(tensor=3, at=8))),
        "initial[1]: activation a1 is no parameter and no state",
    ),
    "initial resident twice": (
        lambda: replace(PLAN, initial=PLAN.initial * 2),
        "initial[1]: w1 a second time",
    ),
    "final resident twice": (
        lambda: replace(PLAN, final=PLAN.final * 2),
        "final: a tensor twice",
    ),
    # places
    "overlap of neighbours": (
        lambda: with_node(node("f1"), at=(0,)),
        "node 1 (f1): a1 takes the place of w1 at 0, which leaves after node 3 (out w1), and does not wait for that",
    ),
    "output in the place of an input of its operator": (
        lambda: with_node(node("f1"), at=(4,)),
        "node 1 (f1): a1 takes the place of x at 4, which leaves after node 1 (f1), and does not wait for that",
    ),
    "place of a resident that stays": (
        lambda: with_node(node("in w2", nth=1), at=(0,)),
        "node 13 (in w2) takes the place of w1 at 0, which stays to the end, and does not wait for that",
    ),
    "two initial residents in one place": (
        lambda: with_residents(Resident(tensor=0, at=0), Resident(tensor=1, at=0)),
        "initial: w2 takes the place of w1 at 0",
    ),
    "address between objects": (
        lambda: with_node(node("in x"), at=(6,)),
        "node 0 (in x) is at 6, which is no object of its class of 3 x 4 bytes",
    ),
    "address beyond the objects": (
        lambda: with_node(node("in x"), at=(12,)),
        "node 0 (in x) is at 12, which is no object of its class of 3 x 4 bytes",
    ),
    "object too small": (
        lambda: replace(PLAN, pool=(PoolClass(object_bytes=3, count=4, address=0),)),
        "class_of: tensors of 4 bytes have class 1, whose objects have 3 bytes",
    ),
    "pool beyond memory": (
        lambda: with_machine(memory_bytes=11),
        "pool: ends at 12 bytes (12 B), more than the 11 bytes that tensors have",
    ),
    "pool over scratch": (
        lambda: replace(PLAN, problem=with_op(3, scratch_bytes=1)),
        "pool: ends at 12 bytes (12 B), more than the 11 bytes that tensors have",
    ),
    "pool over reserve": (
        lambda: replace(PLAN, problem=replace(STEP, reserve_bytes=2)),
        "pool: ends at 12 bytes (12 B), more than the 10 bytes that tensors have",
    ),
    "classes that overlap": (
        lambda: replace(PLAN, pool=tuple(PoolClass(object_bytes=4, count=2 - n, address=4 * n) for n in range(2))),
        "pool: the classes at addresses 0 and 4 overlap",
    ),
    "class that is not there": (
        lambda: replace(PLAN, class_of=(2,)),
        "class_of: 2 for tensors of 4 bytes, expected 1 to 1",
    ),
    "classes for other sizes": (
        lambda: replace(PLAN, class_of=(1, 1)),
        "class_of: 2 classes for 1 different sizes of tensors",
    ),
    "address missing": (
        lambda: with_node(node("f1"), at=()),
        "node 1 (f1) has 0 addresses, expected 1",
    ),
    "pool with allocator offset": (
        lambda: replace(PLAN, allocator="offset"),
        "pool: 1 classes, expected none with allocator offset",
    ),
    "beyond memory with allocator offset": (
        lambda: with_node(node("in x"), as_offset(PLAN), at=(9,)),
        "node 0 (in x) ends at 13, beyond the 12 bytes that tensors have",
    ),
    "partial overlap with allocator offset": (
        lambda: with_node(node("in x"), as_offset(PLAN), at=(3,)),
        "node 0 (in x) takes the place of w1 at 3",
    ),
    "moved between iterations with allocator offset": (
        lambda: with_node(node("in w1"), replace(as_offset(PLAN), final=(Resident(tensor=0, at=1),)), at=(1,)),
        "final: w1 is at 1, where the iteration began it was at 0",
    ),
    "too much at one time with allocator bytes": (
        lambda: replace(as_bytes(PLAN), problem=with_machine(memory_bytes=11).problem),
        "more than the 11 bytes that tensors have",
    ),
    "departure not awaited with allocator bytes": (
        lambda: without_edge(node("out a1"), node("b2"), as_bytes(PLAN)),
        "node 6 (b2): g waits for too little: 4 tensors of 16 bytes in all may be on the device together",
    ),
    "address with allocator bytes": (
        lambda: replace(as_bytes(PLAN), initial=(Resident(tensor=0, at=4),)),
        "initial: w1 is at 4, expected 0 with allocator bytes",
    ),
    "scratch alone beyond memory with allocator bytes": (
        lambda: replace(as_bytes(PLAN), problem=with_op(3, scratch_bytes=13)),
        "memory: scratch and reserve alone take 1 bytes more than there are",
    ),
    # order
    "order not topological": (
        lambda: replace(PLAN, order=SWAPPED, nodes=tuple(
            replace(found, item=SWAPPED[found.item]) if found.kind == "compute" else found for found in PLAN.nodes)),
        "order: b2 runs before f2, which makes a2 for it",
    ),
    "order against an explicit wait": (
        lambda: replace(PLAN, order=(0, 1, 2, 3, 5, 4), problem=with_op(5, after=(1, 2, 4)), nodes=tuple(
            replace(found, item={4: 5, 5: 4}.get(found.item, found.item)) if found.kind == "compute" else found
            for found in PLAN.nodes)),
        "order: u2 runs before u1, which it waits for",
    ),
    "operator twice": (
        lambda: replace(PLAN, order=(0, 1, 2, 3, 4, 4)),
        "order: 6 operators, 5 of them different, expected each of 6 once",
    ),
    "operator missing": (
        lambda: replace(PLAN, order=(0, 1, 2, 3, 4)),
        "order: 5 operators, 5 of them different, expected each of 6 once",
    ),
    "nodes in another order": (
        lambda: with_node(node("u2"), with_node(node("u1"), item=5), item=4),
        "nodes: the compute nodes do not run the operators in the plan's order",
    ),
    "priority of another operator": (
        lambda: with_node(node("u1"), serves=2),
        "node 12 (u1) serves operator 2 of the order, not itself",
    ),
    "priority beyond the order": (
        lambda: with_node(node("in x"), serves=7),
        "node 0 (in x) serves 7, expected at most 6",
    ),
    "runs of other operators": (
        lambda: replace(PLAN, runs=tuple(OpRun(op=op.id) for op in STEP.ops[:5])),
        "runs: not the operators of the problem in their order",
    ),
    "a run twice": (
        lambda: replace(PLAN, runs=tuple(OpRun(op=STEP.ops[max(at, 1)].id) for at in range(6))),
        "runs: not the operators of the problem in their order",
    ),
    # host and figures
    "host too small": (
        lambda: with_machine(host_bytes=19),
        "host: tensors that are copied take 20 bytes, the host has 19",
    ),
    **{
        f"wrong {name}": (
            lambda name=name: replace(PLAN, **{name: getattr(PLAN, name) + 1}),  # type: ignore[misc]
            f"{name}: {getattr(PLAN, name) + 1}, the plan makes it {getattr(PLAN, name)}",
        )
        for name in FIGURES
    },
    "index out of range": (
        lambda: with_node(node("in x"), item=99),
        "$.decisions.nodes[0].item: found 99, expected below 7",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_corruption_is_rejected_in_words_that_name_it(name: str) -> None:
    corrupt, words = CORRUPTIONS[name]
    findings = check(corrupt())
    assert any(words in finding for finding in findings), "\n".join(findings)


def test_a_drop_is_free_where_the_host_has_the_newest_value() -> None:
    plan = with_node(node("drop w2"), kind="out")
    assert check(figured(plan)) == []


def test_a_dirty_initial_resident_may_be_dropped_where_the_iteration_before_copied_it_out() -> None:
    tensors = [parameter("w"), activation("a"), activation("b")]
    problem = built(2, tensors, [("u", "w", "", "w"), ("f", "", "a b"), ("g", "w", "")])
    plan = SwapDecisions(
        problem=problem,
        allocator="pool",
        order=(0, 1, 2),
        pool=(PoolClass(object_bytes=1, count=2, address=0),),
        class_of=(1,),
        initial=(Resident(tensor=0),),
        final=(Resident(tensor=0),),
        nodes=(
            SwapNode(kind="compute", item=0, serves=0),
            SwapNode(kind="out", item=0, serves=1, after=(0,)),
            SwapNode(kind="compute", item=1, serves=1, after=(0, 1), at=(0, 1)),
            SwapNode(kind="in", item=0, serves=2, after=(1, 2), at=(0,)),
            SwapNode(kind="compute", item=2, serves=2, after=(2, 3)),
        ),
        time_ns=0,
        idle_ns=0,
        in_bytes=0,
        out_bytes=0,
        peak_bytes=0,
    )
    assert check(figured(plan)) == []
    assert survives(plan, random.Random(0), 20)


def test_tensors_of_no_bytes_are_always_there() -> None:
    problem = figure_4_1()
    empty = replace(problem, tensors=tuple(replace(tensor, bytes=0) for tensor in problem.tensors))
    nodes = tuple(
        SwapNode(kind="compute", item=at, serves=at, after=(at - 1,) if at else (), at=(0,) * len(op.outputs))
        for at, op in enumerate(empty.ops)
    )
    plan = SwapDecisions(
        problem=empty, allocator="offset", order=tuple(range(6)), nodes=nodes, time_ns=6, idle_ns=0, in_bytes=0,
        out_bytes=0, peak_bytes=0,
    )  # fmt: skip
    assert check(plan) == []


# The parts, against all pairs and all subsets.


def random_stays(rng: random.Random) -> tuple[list[SwapNode], list[Residency], list[int]]:
    """A chain of operators with copies between, and stays over it, in the order of their arrivals."""
    nodes: list[SwapNode] = []
    last = -1
    for at in range(rng.randint(4, 14)):
        compute = rng.random() < 0.4
        after = set(rng.sample(range(at), min(at, rng.randint(0, 2))))
        if compute and last >= 0:
            after.add(last)
        nodes.append(SwapNode(kind="compute" if compute else "out", item=0, serves=0, after=tuple(sorted(after))))
        last = at if compute else last
    order = happens_before(nodes)
    sizes = [rng.randint(1, 5) for _ in range(8)]
    stays = []
    for tensor in range(8):
        begin = rng.choice([START, *range(len(nodes))])
        ends = [at for at in range(len(nodes)) if begin == START or order.before(begin, at)]
        end = rng.choice([None, *ends])
        stays.append(Residency(tensor, rng.randint(0, 9), begin, begin, begin, end=end, stays=end is None))
    return nodes, sorted(stays, key=lambda stay: stay.begin), sizes


def test_reachability_is_that_of_the_graph() -> None:
    rng = random.Random(1)
    for _ in range(200):
        nodes, _, _ = random_stays(rng)
        order = happens_before(nodes)
        reached: list[set[int]] = []
        for found in nodes:
            reached.append({other for before in found.after for other in (before, *reached[before])})
        for first in range(len(nodes)):
            for second in range(len(nodes)):
                assert order.before(first, second) == (first in reached[second])


def comes_before(first: Residency, second: Residency, order: Any) -> bool:
    return first.leaves is not None and second.begin != START and order.before(first.leaves, second.begin)


def test_clashes_are_found_wherever_two_stays_overlap() -> None:
    rng = random.Random(2)
    some = 0
    for _ in range(500):
        nodes, stays, sizes = random_stays(rng)
        stays = rng.sample(stays, rng.randint(2, 4))
        stays.sort(key=lambda stay: stay.begin)
        order = happens_before(nodes)
        expected = any(
            first.at < second.at + sizes[second.tensor]
            and second.at < first.at + sizes[first.tensor]
            and not comes_before(first, second, order)
            for first, second in combinations(stays, 2)
        )
        assert any(clashes(stays, sizes, order)) == expected
        some += expected
    assert 100 < some < 400


def test_a_crowd_is_the_heaviest_set_of_stays_none_of_which_comes_before_another() -> None:
    rng = random.Random(3)
    for _ in range(150):
        nodes, stays, sizes = random_stays(rng)
        order = happens_before(nodes)

        def together(chosen: tuple[Residency, ...], order: Any = order) -> bool:
            return not any(
                comes_before(first, second, order) or comes_before(second, first, order)
                for first, second in combinations(chosen, 2)
            )

        heaviest = max(
            sum(sizes[stay.tensor] for stay in chosen)
            for count in range(9)
            for chosen in combinations(stays, count)
            if together(chosen)
        )
        assert crowd(stays, sizes, order, heaviest) == ((), 0)
        found, taken = crowd(stays, sizes, order, heaviest - 1)
        assert together(tuple(found))
        assert taken == sum(sizes[stay.tensor] for stay in found) == heaviest


def test_thousands_of_nodes_are_checked_in_a_moment() -> None:
    problem = random_problem(random.Random(0), ops=1200, slack=0.05)
    plan = decide(problem, range(len(problem.ops)), least_pool(problem))
    assert len(plan.nodes) > 4000
    for version in (plan, as_bytes(plan)):
        assert check(version) == []
