"""Stage 1: T1 of the published sizes, switch policies, symmetry, and what the printed model forgets."""

from __future__ import annotations

from functools import cache

import pytest
from msgspec.structs import replace

from tests.planner.passes.collective.build import (
    MB,
    MESH,
    complete,
    line,
    problem_for,
    relay,
    ring,
    shipped,
    switch,
    switch_sketch,
)
from treadle.planner.documents.sketch import Symmetry
from treadle.planner.errors import InfeasibleError
from treadle.planner.passes.collective.limits import Effort
from treadle.planner.passes.collective.problem import build_problem
from treadle.planner.passes.collective.routing import route, routing_model


def used_links(routing) -> int:
    return len({edge for tree in routing.trees for edge in tree})


def arrivals(problem, routing) -> int:
    """Sum of start over all targets, recomputed from the trees."""
    total = 0
    for chunk, tree in zip(problem.chunks, routing.trees, strict=True):
        came = {dst: src for src, dst in tree}
        for rank in chunk.targets - {chunk.owner}:
            while rank != chunk.owner:
                link = problem.topology.routing.links[came[rank], rank]
                total += link.alpha_ns + link.beta_ns
                rank = came[rank]
    return total


@cache
def published(profile: str, nodes: int, name: str):
    problem = build_problem("allgather", *shipped(profile, nodes, name))
    return problem, route(problem, Effort())


@pytest.mark.parametrize(
    ("profile", "nodes", "name", "t1", "switched"),
    [
        ("ndv2", 2, "ndv2-sk-1", 861_600, None),
        ("ndv2", 4, "ndv2-sk-1", 2_584_800, None),
        ("dgx2", 2, "dgx2-sk-1", 291_400, 32),
        ("dgx2", 2, "dgx2-sk-2", 16_284, 480),
    ],
)
def test_published_sizes(profile, nodes, name, t1, switched):
    _, routing = published(profile, nodes, name)
    assert routing.optimal
    assert routing.time_ns == routing.bound_ns == t1
    if switched is not None:
        inside = {e for tree in routing.trees for e in tree if e[0] // 16 == e[1] // 16}
        assert len(inside) == switched


def test_published_size_of_alltoall():
    hardware, sketch = shipped("ndv2", 2, "ndv2-sk-1")
    assert route(build_problem("alltoall", hardware, sketch, 16 * MB), Effort()).time_ns == 6_892_800


def test_the_port_of_the_nic_triples_t1_on_four_nodes():
    hardware, sketch = shipped("ndv2", 4, "ndv2-sk-1")
    free = build_problem("allgather", hardware, replace(sketch, ib_ports="none"))
    assert Effort().solve(routing_model(free).model, 20).objective == 861_600


def test_printed_constraints_alone_are_vacuous():
    built = routing_model(problem_for("allgather", ring(4)), reception=False)
    assert Effort().solve(built.model, 10).objective == 0


@pytest.mark.parametrize(("n", "fewest", "most"), [(3, 3, 6), (4, 4, 12), (8, 8, 56)])
def test_policies_change_the_links_and_not_the_time(n, fewest, most):
    sums = {}
    for policy, links in (("uc-min", fewest), ("uc-max", most)):
        sketch = replace(switch_sketch(n, policy), symmetry_offsets=((1, n),) if n == 8 else ())
        problem = problem_for("allgather", switch(n), sketch)
        routing = route(problem, Effort())
        assert routing.time_ns == (n - 1) * 9000
        assert used_links(routing) == links
        sums[policy] = arrivals(problem, routing)
    if n == 4:
        assert sums == {"uc-min": 216_000, "uc-max": 108_000}


@pytest.mark.parametrize("policy", ["uc-min", "uc-max"])
def test_alltoall_on_a_switch_uses_direct_links_only(policy):
    routing = route(problem_for("alltoall", switch(4), switch_sketch(4, policy)), Effort())
    assert routing.time_ns == 27_000
    assert used_links(routing) == 12


def test_t1_bounds_of_a_pipelined_line():
    found = [route(build_problem("broadcast", line(4), MESH, MB, chunkup=k), Effort()).time_ns for k in (1, 2, 4, 8)]
    assert found == [27_000, 15_000, 12_000, 16_000]


@pytest.mark.parametrize("collective", ["allgather", "alltoall", "broadcast"])
@pytest.mark.parametrize("hardware", [ring(4), line(3), complete(4), switch(4), relay(2, 10, 5)])
def test_every_route_is_a_tree_that_reaches_all_targets(collective, hardware):
    problem = problem_for(collective, hardware)
    for number, tree in enumerate(route(problem, Effort()).trees):
        chunk = problem.chunks[number]
        came = {dst: src for src, dst in tree}
        assert len(came) == len(tree)
        assert set(tree) <= set(problem.allowed[number])
        reached = set(came) | {chunk.owner}
        assert chunk.targets <= reached
        leaves = reached - {src for src, _ in tree}
        assert leaves <= chunk.targets | {chunk.owner}
        for rank in came:
            for _ in range(problem.ranks):
                rank = came.get(rank, rank)
            assert rank == chunk.owner


def test_routes_are_symmetric_where_ties_say_so():
    problem, routing = published("dgx2", 2, "dgx2-sk-1")
    trees = [set(tree) for tree in routing.trees]
    assert problem.ties
    for tie in problem.ties:
        for number, tree in enumerate(trees):
            image = {(tie.ranks[s], tie.ranks[d]) for s, d in tree if tie.block[s] == tie.block[d]}
            other = {(s, d) for s, d in trees[tie.chunks[number]] if tie.block[s] == tie.block[d]}
            assert image == other


def test_symmetry_that_leaves_no_route_is_proved_infeasible():
    # Turning the line around ties 0 -> 1 to 2 -> 1 for the chunk of the middle, whose links into 1 do not exist.
    swap = Symmetry(perm=(2, 1, 0), partition=((0, 1, 2),))
    assert route(problem_for("allgather", line(3), replace(MESH, symmetries=(swap,))), Effort()).time_ns == 18_000
    turn = replace(MESH, symmetry_offsets=((1, 4), (2, 4)))
    assert route(problem_for("alltoall", ring(4), turn), Effort()).time_ns >= 18_000
    # A reflection maps chunk 0 onto itself and 0 -> 1 onto 0 -> 3, so rank 2 would be reached twice or never.
    mirror = Symmetry(perm=(0, 3, 2, 1), partition=((0, 1, 2, 3),))
    folded = problem_for("allgather", ring(4), replace(MESH, symmetries=(mirror,)))
    with pytest.raises(InfeasibleError, match="symmetries"):
        route(folded, Effort())
