"""Racks and nodes as groups of ranks."""

from __future__ import annotations

from tests.planner.passes.collective.build import MB
from tests.planner.passes.collective.test_uplinks import racks
from treadle.planner.passes.collective.groups import disjoint, group_by_group, level_sizes, partitions, renumbered
from treadle.planner.passes.collective.planning import make_request
from treadle.planner.passes.collective.sketching import propose


def topology(*members, **more):
    hardware = racks(*members, **more)
    return make_request("allgather", hardware, propose(hardware), MB).problem(1).topology


def test_ranks_outside_all_racks_are_a_group():
    assert disjoint([frozenset({1, 2})], 4) == (frozenset({0, 3}), frozenset({1, 2}))
    assert disjoint([], 4) == ()


def test_levels_are_racks_and_nodes_of_consecutive_ranks():
    assert level_sizes(topology((0, 1), (2, 3), devices=2)) == (4, 2)
    assert level_sizes(topology((0, 2), (1, 3), devices=2)) == (2,)
    assert len(partitions(topology((0, 2), (1, 3), devices=2))) == 2
    assert level_sizes(topology((0, 1), (2, 3, 4))) == (1,)


def test_group_by_group_a_topology_is_that_of_consecutive_racks():
    apart, together = topology((0, 2), (1, 3), devices=2), topology((0, 1), (2, 3), devices=2)
    order = group_by_group(apart)
    assert order == (0, 1, 4, 5, 2, 3, 6, 7)
    assert group_by_group(together) == tuple(range(8))
    same = renumbered(apart, order)
    assert same.plan.links == together.plan.links
    assert {(port.links, port.beta_ns) for port in same.plan.ports} == {
        (port.links, port.beta_ns) for port in together.plan.ports
    }
    assert set(same.racks) == set(together.racks)
