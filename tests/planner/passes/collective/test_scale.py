"""Greedy and hierarchical synthesis: every plan passes the checker, symmetric machines come near their bounds, and
translations are what they say."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from benchmarks.collective.machines import EVERY_LINK, ODD_TO_EVEN, RAILS, dgx2, ndv2, rails, torus
from tests.planner.passes.collective.build import (
    MB,
    MESH,
    both,
    complete,
    line,
    machine,
    relay,
    relay_sketch,
    ring,
    switch,
)
from treadle.planner.documents.collective import Demand
from treadle.planner.errors import InputError
from treadle.planner.passes.collective import greedy, hierarchical
from treadle.planner.passes.collective.check import check
from treadle.planner.passes.collective.decisions import decisions_of
from treadle.planner.passes.collective.limits import Effort
from treadle.planner.passes.collective.matching import Rules, match
from treadle.planner.passes.collective.problem import build_problem
from treadle.planner.passes.collective.synthesis import Draft, Request
from treadle.planner.passes.collective.translations import Translations, node_translations, translations

MACHINES = {
    "ring": (ring(5), MESH),
    "line": (line(3), MESH),
    "switch": (switch(4), MESH),
    "torus": (torus(3), EVERY_LINK),
    "pipelined": (replace(ring(4), latency="pipelined"), MESH),
    "relay": (relay(2, 10, 5), relay_sketch(batching=False)),
    "rails": (rails(2), RAILS),
    "ndv2": (ndv2(2), EVERY_LINK),
}
NODES = ("relay", "rails", "switch")
COLLECTIVES = ("allgather", "reducescatter", "allreduce", "alltoall", "broadcast", "reduce", "gather", "scatter")


@cache
def draft(method, collective: str, name: str, size: int = MB, root: int = 0) -> Draft:
    return method(Request(collective, *MACHINES[name], size, root), Effort())


def accepted(found: Draft) -> bool:
    return check(decisions_of(found, None, None)) == []


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("name", ["ring", "line", "switch", "torus", "pipelined", "relay"])
def test_greedy_plans_are_right(collective, name):
    assert accepted(draft(greedy.synthesize, collective, name))


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("name", NODES)
def test_hierarchical_plans_are_right(collective, name):
    assert accepted(draft(hierarchical.synthesize, collective, name))


@pytest.mark.parametrize("collective", ["broadcast", "reduce", "gather", "scatter"])
def test_any_rank_may_be_the_root(collective):
    assert accepted(draft(hierarchical.synthesize, collective, "ndv2", root=11))
    assert accepted(draft(greedy.synthesize, collective, "relay", root=3))


def test_irregular_patterns():
    demands = (Demand((0,), (1, 2)), Demand((2, 3), (4,)), Demand((1,), (0,)))
    request = Request("custom", *MACHINES["ring"], MB, 0, demands)
    assert accepted(greedy.synthesize(request, Effort()))
    with pytest.raises(InputError, match="use greedy"):
        hierarchical.synthesize(request, Effort())


def test_the_same_request_gives_the_same_plan():
    for method in (greedy.synthesize, hierarchical.synthesize):
        request = Request("allgather", *MACHINES["relay"], MB)
        assert method(request, Effort()) == method(request, Effort())


def test_a_torus_is_planned_for_one_rank():
    hardware, part = torus(7), MB
    problem = build_problem("allgather", hardware, EVERY_LINK, part, restricted=False)
    group = translations(problem)
    assert (group.digits, group.order, group.roots) == (((1, 7), (7, 49)), 49, [0])
    found = greedy.synthesize(Request("allgather", hardware, EVERY_LINK, part), Effort())
    cost = problem.links[0, 1]
    assert found.makespan_ns == 12 * (cost.alpha_ns + cost.beta_ns)  # 48 chunks over four links into every rank
    assert accepted(found)


def test_without_symmetry_matching_still_comes_near_the_bound():
    problem = build_problem("allgather", torus(7), EVERY_LINK, MB, restricted=False)
    group = Translations(problem.ranks)
    hops = match(problem.topology.routing, group, list(range(49)), list(range(49)), Rules())
    assert hops is not None
    assert sorted((hop.chunk, hop.dst) for hop in hops) == [(c, r) for c in range(49) for r in range(49) if c != r]


@pytest.mark.parametrize(("collective", "above"), [("allgather", 1.06), ("allreduce", 1.1)])
def test_rails_come_near_what_the_network_needs(collective, above):
    nodes = 16
    size = 4 * MB if collective == "allgather" else 4 * MB * 8 * nodes
    found = hierarchical.synthesize(Request(collective, rails(nodes), RAILS, size), Effort())
    least = (nodes - 1) * 4 * MB / 25 * (1 if collective == "allgather" else 2)  # ns at 25 GB/s of every NIC
    assert least < found.makespan_ns < above * least
    assert accepted(found)


def test_a_shared_nic_is_kept_busy():
    found = draft(hierarchical.synthesize, "allgather", "ndv2", 64 * MB)
    assert accepted(found)
    least = 8 * 64 * MB / 12.5  # ns: the chunks of the other node over one NIC
    assert found.makespan_ns < 1.03 * least


def test_translations_leave_the_problem_as_it_is():
    for hardware, sketch, digits in (
        (ring(6), MESH, ((1, 6),)),
        (complete(4), MESH, ((1, 4),)),
        (line(4), MESH, ()),
        (dgx2(2), EVERY_LINK, ((2, 16), (16, 32))),  # two GPUs of one NIC are not taken to each other: the port stays
        (dgx2(2), replace(EVERY_LINK, ib_ports="per_nic"), ((2, 16), (16, 32))),
        (machine(4, both((0, 1), (2, 3), (0, 2))), MESH, ()),
    ):
        problem = build_problem("allgather", hardware, sketch, MB, restricted=False)
        group = translations(problem)
        if digits and sketch is not EVERY_LINK:
            assert group.digits == digits
        for row in group.table.tolist():
            for (src, dst), link in problem.links.items():
                image = problem.links[row[src], row[dst]]
                assert (image.alpha_ns, image.beta_ns) == (link.alpha_ns, link.beta_ns)
            ports = {frozenset(port.links) for port in problem.ports}
            moved = [frozenset((row[src], row[dst]) for src, dst in port.links) for port in problem.ports]
            assert ports == set(moved)
            if row != list(range(problem.ranks)):
                assert all(frozenset(port.links) != image for port, image in zip(problem.ports, moved, strict=True))


def test_a_root_or_an_odd_sketch_leaves_no_translations():
    assert translations(build_problem("broadcast", ring(4), MESH, MB, restricted=False)).order == 1
    problem = build_problem("allgather", dgx2(2), ODD_TO_EVEN, MB, restricted=False)
    assert node_translations(problem, 16).digits == ((16, 32),)


@given(st.lists(st.integers(2, 4), min_size=1, max_size=3), st.data())
def test_moving_there_and_back(radices, data):
    digits, size = [], 1
    for radix in radices:
        digits.append((size, size * radix))
        size *= radix
    group = Translations(size, tuple(digits))
    by, rank = data.draw(st.integers(0, size - 1)), data.draw(st.integers(0, size - 1))
    assert group.moved(group.moved(rank, by), by, back=True) == rank
    assert group.moved(group.representative[by], by) == by
    assert sorted(group.table[:, rank].tolist()) == list(range(size))
