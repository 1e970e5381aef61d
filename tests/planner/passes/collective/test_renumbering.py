"""Racks whose ranks are apart get the plans of racks whose ranks follow each other."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.planner.passes.collective.test_uplinks import planned, racks
from treadle.planner.documents.hardware import NodeGroup
from treadle.planner.documents.pattern import Pattern
from treadle.planner.passes.collective.check import check, check_against_inputs
from treadle.planner.passes.collective.planning import CollectiveOptions, make_request, plan_collective
from treadle.planner.passes.collective.sketching import propose

KB = 1024
TOGETHER, APART = ((0, 1, 2, 3), (4, 5, 6, 7)), ((0, 2, 4, 6), (1, 3, 5, 7))
BY_GROUP = ("hierarchical", "two-level", "greedy", "ring", "all-pairs")


def accepted(collective, hardware, size, method):
    plan = planned(collective, hardware, size, method)
    assert check(plan.decisions) == []
    sketch = propose(hardware, collective=collective, size_bytes=size)
    assert check_against_inputs(plan.decisions, hardware, sketch) == []
    return plan.decisions.makespan_ns


@pytest.mark.parametrize("method", BY_GROUP)
@pytest.mark.parametrize("collective", ["allreduce", "allgather", "reducescatter", "alltoall"])
def test_the_numbers_of_the_ranks_cost_nothing(collective, method):
    if (collective, method) == ("alltoall", "ring"):
        return
    for size in (64 * KB, 8192 * KB):
        together, apart = (accepted(collective, racks(*order, alpha=3, latency="serial"), size, method)
                           for order in (TOGETHER, APART))  # fmt: skip
        assert apart <= together


def test_a_reducescatter_halves_without_its_largest_round_between_racks():
    """Parts of 64 KiB take 0.5 us, an alpha 2.3. With four parts of every host on an uplink that carries one at a time
    three rounds take 2.3 + 16 * 0.5, 2.3 + 2 * 0.5 and 2.3 + 0.5 us."""
    hardware = racks(*TOGETHER, alpha=2.3, latency="serial")
    assert accepted("reducescatter", hardware, 512 * KB, "halving-doubling") < 14_000


@pytest.mark.parametrize("collective", ["broadcast", "reduce", "gather", "scatter"])
def test_roots_stay_where_they_are(collective):
    hardware = racks(*APART, latency="serial")
    sketch = propose(hardware, collective=collective, size_bytes=64 * KB)
    for root in (0, 5):
        request = make_request(collective, hardware, sketch, 64 * KB, root)
        plan = plan_collective(request, options=CollectiveOptions("two-level"))
        assert plan.decisions.root == root
        assert check_against_inputs(plan.decisions, hardware, sketch) == []


def test_a_pattern_keeps_its_ranks():
    hardware = racks(*APART, latency="serial")
    pairs = tuple((rank, (rank + 3) % 8) for rank in range(8))
    pattern = Pattern(version=1, name="shift", pairs=pairs)
    sketch = propose(hardware)
    request = make_request("sendrecv", hardware, sketch, 64 * KB, pattern=pattern)
    plan = plan_collective(request, options=CollectiveOptions("all-pairs"))
    assert {(move.src, move.dst) for move in plan.decisions.transfers} == set(pairs)
    assert check_against_inputs(plan.decisions, hardware, sketch) == []


def test_racks_of_unlike_networks_are_groups_too():
    """Latencies that differ between hosts make treadle see one node of eight ranks, which two-level refused."""
    together, apart = (racks(*order, alpha=9, latency="serial") for order in (TOGETHER, APART))

    def near(hardware, order):
        groups = tuple(NodeGroup(name=f"rack {i}", nodes=rack, alpha_us=3) for i, rack in enumerate(order))
        return replace(hardware, network=replace(hardware.network, groups=groups))

    times = [
        accepted("allreduce", near(hardware, order), 8192 * KB, "two-level")
        for hardware, order in ((together, TOGETHER), (apart, APART))
    ]
    assert times[0] == times[1]
