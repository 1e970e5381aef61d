"""The hand-checked times of the spec, and the exact unrelaxed model as brute force on tiny machines."""

from __future__ import annotations

import random

import pytest

from tests.oracles.exact_collective import exact_time
from tests.planner.passes.collective.build import (
    MB,
    MESH,
    RING,
    complete,
    line,
    machine,
    problem_for,
    relay,
    relay_sketch,
    ring,
    switch,
)
from tests.planner.plans import collective_plan
from treadle.planner.passes.collective.bound import lower_bound


def planned(collective, hardware, sketch=MESH, chunk=MB, method="milp") -> int:
    problem = problem_for(collective, hardware, sketch, chunk)
    plan = collective_plan(collective, hardware, sketch, size_bytes=problem.input_bytes, method=method)
    return plan.decisions.makespan_ns


def exact(problem) -> int:
    links = {edge: (link.alpha_ns, link.beta_ns) for edge, link in problem.links.items()}
    return exact_time(
        problem.collective,
        problem.ranks,
        links,
        chunkup=problem.chunkup,
        ports=[set(port.links) for port in problem.ports],
        batched=problem.batching.links,
        root=problem.root,
    )


def test_allgather_on_a_ring_of_four():
    assert planned("allgather", ring(4)) == 18_000
    assert planned("allgather", ring(4, one_way=True)) == 27_000
    assert planned("allgather", ring(4), RING, MB // 2) == 15_000


# rounds of 9 us: allgather, alltoall, reducescatter as planned, reducescatter at best, allreduce as planned, at best
ROUNDS = {
    "line of 3": (line(3), 2, 2, 3, 3, 5, 5),
    "triangle": (complete(3), 1, 1, 2, 2, 3, 3),
    "ring of 4": (ring(4), 2, 2, 2, 2, 4, 4),
    "complete 4": (complete(4), 1, 1, 3, 2, 4, 3),
    "switch of 3": (switch(3), 2, 2, 2, 2, 4, 4),
    "switch of 4": (switch(4), 3, 3, 3, 3, 6, None),
}


@pytest.mark.parametrize("name", ROUNDS)
def test_rounds(name):
    hardware, *rounds = ROUNDS[name]
    found = [
        planned(c, hardware) // 9000 if best is None else exact(problem_for(c, hardware)) // 9000
        for c, best in (
            ("allgather", None),
            ("alltoall", None),
            ("reducescatter", None),
            ("reducescatter", True),
            ("allreduce", None),
        )
    ]
    assert found == rounds[:5]
    if rounds[5] is not None:
        assert exact(problem_for("allreduce", hardware)) // 9000 == rounds[5]
    assert planned("reducescatter", hardware, method="exact") // 9000 == rounds[3]
    assert planned("allreduce", hardware, method="exact") // 9000 == (rounds[5] or rounds[4])


@pytest.mark.parametrize(("pieces", "time"), [(1, 27), (2, 20), (4, 18), (8, 20)])
def test_broadcast_along_a_line(pieces, time):
    from msgspec.structs import replace

    from treadle.planner.documents.sketch import Hyperparameters

    sketch = replace(MESH, hyperparameters=Hyperparameters(input_chunkup=pieces))
    plan = collective_plan("broadcast", line(4), sketch, size_bytes=MB)
    assert plan.decisions.makespan_ns == time * 1000
    assert plan.certificate.optimal


@pytest.mark.parametrize(("inside", "a", "b"), [(2, 10, 5), (2, 2, 20), (2, 4, 10), (2, 5, 10)])
@pytest.mark.parametrize("batching", [False, True])
def test_relay_allgather_is_optimal(inside, a, b, batching):
    problem = problem_for("allgather", relay(inside, a, b), relay_sketch(batching=batching))
    assert planned("allgather", relay(inside, a, b), relay_sketch(batching=batching)) == exact(problem)


def random_machine(seed: int):
    rng = random.Random(seed)
    n = rng.choice((3, 4))
    edges = {(i, (i + 1) % n) for i in range(n)} | {((i + 1) % n, i) for i in range(n)}
    pairs = [(a, b) for a in range(n) for b in range(a) if (a, b) not in edges]
    for a, b in rng.sample(pairs, rng.randint(0, len(pairs))):
        edges |= {(a, b), (b, a)}
    costs = {frozenset(edge): (rng.randint(0, 6), rng.randint(1, 9)) for edge in sorted(edges)}
    return machine(n, [(*edge, *costs[frozenset(edge)]) for edge in sorted(edges)])


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("collective", ["allgather", "alltoall", "broadcast", "reducescatter"])
def test_bound_then_optimum_then_plan(collective, seed):
    hardware = random_machine(seed)
    problem = problem_for(collective, hardware)
    best = exact(problem)
    plan = collective_plan(collective, hardware, MESH, size_bytes=problem.input_bytes)
    assert lower_bound(problem).time_ns <= plan.certificate.lower_bound <= best
    assert best <= plan.decisions.makespan_ns <= 2 * best


@pytest.mark.parametrize("seed", range(3))
def test_allreduce_bound_then_optimum_then_plan(seed):
    hardware = random_machine(3 * seed + 1)
    hardware = hardware if hardware.devices_per_node == 3 else complete(3)
    problem = problem_for("allreduce", hardware)
    best = exact(problem)
    assert lower_bound(problem).time_ns <= best <= planned("allreduce", hardware)
