"""The exact method meets the exact model that was written apart from it, on random tiny machines."""

from __future__ import annotations

import random

import pytest

from tests.oracles.exact_collective import exact_time
from tests.planner.passes.collective.build import MESH, machine, problem_for, relay, relay_sketch, ring
from tests.planner.passes.collective.test_oracles import random_machine
from tests.planner.plans import collective_plan
from treadle.planner.errors import InputError
from treadle.planner.passes.collective.bound import PROVED_BY_SEARCH


def lopsided(seed: int):
    """Links whose two directions cost differently: reductions must be charged what they really use."""
    rng = random.Random(seed)
    edges = [(a, b) for a in range(3) for b in range(3) if a != b]
    return machine(3, [(*edge, rng.randint(0, 6), rng.randint(1, 9)) for edge in edges])


def best(problem) -> int:
    links = {edge: (link.alpha_ns, link.beta_ns) for edge, link in problem.links.items()}
    return exact_time(problem.collective, problem.ranks, links, chunkup=problem.chunkup, root=problem.root)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("collective", ["allgather", "alltoall", "broadcast", "reducescatter"])
def test_optimum_and_proof(collective, seed):
    hardware = random_machine(seed) if seed % 2 else lopsided(seed)
    problem = problem_for(collective, hardware)
    plan = collective_plan(collective, hardware, MESH, size_bytes=problem.input_bytes, method="exact")
    assert plan.decisions.makespan_ns == best(problem)
    assert plan.certificate.optimal


@pytest.mark.parametrize("seed", range(3))
def test_allreduce_is_the_best_with_sums_at_one_rank_but_not_called_optimal(seed):
    hardware = lopsided(seed)
    problem = problem_for("allreduce", hardware)
    plan = collective_plan("allreduce", hardware, MESH, size_bytes=problem.input_bytes, method="exact")
    assert best(problem) <= plan.decisions.makespan_ns <= 1.1 * best(problem)
    assert plan.certificate.argument != PROVED_BY_SEARCH


def test_reductions_of_milp_are_near_the_optimum_at_the_median():
    ratios = []
    for seed in range(9):
        hardware = random_machine(seed) if seed % 2 else lopsided(seed)
        problem = problem_for("reducescatter", hardware)
        plan = collective_plan("reducescatter", hardware, MESH, size_bytes=problem.input_bytes)
        exact = collective_plan("reducescatter", hardware, MESH, size_bytes=problem.input_bytes, method="exact")
        assert exact.decisions.makespan_ns <= plan.decisions.makespan_ns
        ratios.append(plan.decisions.makespan_ns / exact.decisions.makespan_ns)
    assert sorted(ratios)[len(ratios) // 2] <= 1.05


def test_batches_of_milp_are_kept_where_they_win():
    hardware, sketch = relay(2, 10, 5), relay_sketch(batching=True)
    problem = problem_for("allgather", hardware, sketch)
    plan = collective_plan("allgather", hardware, sketch, size_bytes=problem.input_bytes, method="exact")
    assert plan.decisions.makespan_ns == 26_000


def test_a_large_machine_is_refused():
    with pytest.raises(InputError, match="possible moves, expected at most"):
        collective_plan("allgather", ring(32), MESH, size_bytes=2**20, method="exact")
