"""Lower bounds: exact on textbook machines, never above brute force over all cuts, and worded for a person."""

from __future__ import annotations

from fractions import Fraction
from itertools import chain, combinations

import pytest

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
    shipped,
    switch,
)
from tests.planner.passes.collective.test_oracles import random_machine
from treadle.planner.passes.collective.bound import _network, _worst_cuts, capacity, lower_bound, sentence
from treadle.planner.passes.collective.problem import build_problem


@pytest.mark.parametrize(
    ("collective", "hardware", "rounds"),
    [
        ("allgather", ring(4), 2),
        ("allgather", ring(4, one_way=True), 3),
        ("allgather", switch(4), 3),
        ("alltoall", ring(4), 2),
        ("alltoall", line(3), 2),
        ("alltoall", complete(4), 1),
        ("alltoall", switch(4), 3),
        ("reducescatter", complete(4), 2),
        ("reducescatter", switch(4), 3),
        ("allreduce", switch(4), 6),
        ("broadcast", line(4), 3),
        ("reduce", line(4), 3),
    ],
)
def test_textbook(collective, hardware, rounds):
    assert lower_bound(problem_for(collective, hardware)).time_ns == rounds * 9000


def test_half_chunks_on_a_ring():
    assert lower_bound(problem_for("allgather", ring(4), RING, MB // 2)).time_ns == 15_000


def test_whole_chunks_are_counted():
    # Three chunks over two equal links take two rounds, not one and a half.
    hardware = machine(3, [(0, 2), (1, 2), (2, 0), (2, 1), (0, 1), (1, 0)])
    assert lower_bound(problem_for("alltoall", hardware)).time_ns == 9_000
    assert lower_bound(problem_for("allgather", relay(8, 1, 8), MESH)).time_ns >= 17_000


def test_the_relay_of_a_node_adds_the_last_hop():
    bound = lower_bound(problem_for("allgather", relay(2, 2, 20), relay_sketch(batching=False)))
    assert bound.time_ns == 46_000
    assert "2 chunks must go out of ranks 0 to 1" in sentence(bound)
    assert "2000 ns after the last" in sentence(bound)


def test_batches_share_alpha_in_the_bound():
    apart = lower_bound(problem_for("allgather", relay(2, 50, 1), relay_sketch(batching=False))).time_ns
    together = lower_bound(problem_for("allgather", relay(2, 50, 1), relay_sketch(batching=True))).time_ns
    assert apart == 104_000
    assert together == 55_000


def test_published_sketches_come_close_to_the_bound():
    bound = lower_bound(build_problem("allgather", *shipped("dgx2", 2, "dgx2-sk-1")))
    assert bound.time_ns == 291_400
    bound = lower_bound(build_problem("allgather", *shipped("ndv2", 2, "ndv2-sk-1")))
    assert 8 * 106_000 + 2 * 1_700 < bound.time_ns <= 925_200


def test_reductions_are_bound_by_the_links_towards_the_root():
    hardware = machine(2, [(0, 1, 0, 1), (1, 0, 0, 9)])
    assert lower_bound(problem_for("broadcast", hardware)).time_ns == 1_000
    assert lower_bound(problem_for("reduce", hardware)).time_ns == 9_000


@pytest.mark.parametrize("seed", range(8))
def test_dinkelbach_finds_the_worst_of_all_cuts(seed):
    problem = problem_for("allgather", random_machine(seed))
    network = _network(problem)
    n = problem.ranks
    subsets = chain.from_iterable(combinations(range(n), size) for size in range(1, n))
    worst = max(Fraction(len(s)) / capacity(network, frozenset(s)) for s in subsets)
    singles = [frozenset(range(n)) - {rank} for rank in range(n)]
    found = max(Fraction(len(s)) / capacity(network, s) for s in [*singles, *_worst_cuts(problem, network)])
    assert found == worst


def test_dinkelbach_finds_a_bottleneck_between_groups():
    # Two triangles of fast links joined by one slow pair; no rank and no node is the worst cut.
    fast = [(a, b, 0, 1) for group in ((0, 1, 2), (3, 4, 5)) for a in group for b in group if a != b]
    hardware = machine(6, [*fast, (2, 3, 0, 7), (3, 2, 0, 7)])
    assert lower_bound(problem_for("allgather", hardware)).time_ns >= 21_000


def test_one_rank_needs_no_time():
    assert lower_bound(problem_for("allgather", machine(1, ()))).time_ns == 0
