"""In-switch collectives: hand-worked times and bounds of eight H100, and bounds that no plan beats."""

from __future__ import annotations

from contextlib import suppress

import pytest
from msgspec.structs import replace

from tests.planner.passes.collective.build import MB, MESH, in_network, switch
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.sketch import IntranodeSketch, Sketch
from treadle.planner.errors import InputError
from treadle.planner.passes.collective.bound import is_searchable, is_unrestricted, lower_bound
from treadle.planner.passes.collective.check import check
from treadle.planner.passes.collective.collectives import IN_SWITCH
from treadle.planner.passes.collective.decisions import decisions_of
from treadle.planner.passes.collective.limits import Effort
from treadle.planner.passes.collective.nvls import synthesize
from treadle.planner.passes.collective.planning import METHODS, CollectiveOptions, plan_collective
from treadle.planner.passes.collective.synthesis import Draft, Request
from treadle.planner.passes.collective.universal import universal_bound
from treadle.probe.resolve import load_hardware

H100 = load_hardware("ndv5")


def made(collective, hardware: Hardware, size: int, sketch: Sketch = MESH) -> Draft:
    draft = synthesize(Request(collective, hardware, sketch, size), Effort())
    assert check(decisions_of(draft, None, None)) == []
    return draft


def plain(hardware: Hardware) -> Hardware:
    return replace(hardware, switches=tuple(replace(each, in_network=()) for each in hardware.switches))


# Eight H100: alpha 0.7 us, beta 2.33017 us/MiB, so n bytes hold a port for n / MiB * 2330.17 ns at full rate.
# With NVLink SHARP each port carries at least 9/8 of the buffer, without it 14/8.
#   1 GiB   1024 * 2330.17 = 2,386,094.08. Bounds: * 9/8 = 2,684,355.84, rounded up, + 700; * 14/8 = 4,175,664.64.
#           Plan in 64 pieces of 2 MiB, each 4,661 ns (4660.34 rounded up): sums of the first and multicasts of the last
#           take 8 of these each, the 63 between 9 (8 + 1 on each port): (16 + 63 * 9) * 4661 = 2,717,363, + 2 * 700.
#   64 KiB  145.64; bounds: 163.84 -> 164 + 700; without, 3 rounds of 701 ns (alpha and one byte).
#           4 pieces of 2 KiB, 5 ns each (4.55): (16 + 3 * 9) * 5 + 1400.
#   1 KiB   2.28 out of one rank -> 3 + 700. One piece of 128 B, 1 ns (0.28): 16 * 1 + 1400.
@pytest.mark.parametrize(
    ("size", "time", "bound", "without"),
    [(2**30, 2_718_763, 2_685_056, 4_176_365), (2**16, 1_615, 864, 2_103), (2**10, 1_416, 703, 2_103)],
)
def test_an_allreduce_of_eight_h100(size, time, bound, without):
    assert made("allreduce", H100, size).makespan_ns == time
    assert universal_bound("allreduce", H100, MESH, size).time_ns == bound
    assert universal_bound("allreduce", plain(H100), MESH, size).time_ns == without


def test_the_plan_says_what_the_switch_does_and_why_it_is_good():
    request = Request("allreduce", H100, MESH, 2**30)
    plan = plan_collective(request, options=CollectiveOptions("nvls"))
    assert plan.provenance.method == "nvls: 64 pieces"
    assert plan.certificate.argument == (
        "Whatever the pieces, routes and orders, what a switch adds up leaves all 8 ranks and what it multicasts "
        "enters all, so an allreduce moves 19327352832 bytes through the 16 ports, which takes 2685056 ns."
    )
    assert [switch.name for switch in plan.decisions.switches] == ["nvswitch"]


# One MiB holds a port for 8 us, alpha is 1 us. Halves of an allreduce take 8 us at full rate for the whole buffer: two
# halves one after the other and two alphas in one piece, 18 us; an allgather of 4 MiB enters every port whole.
@pytest.mark.parametrize(
    ("collective", "ns"),
    [("broadcast", 9_000), ("reduce", 9_000), ("reducescatter", 9_000), ("allgather", 33_000)],
)
def test_one_half_alone_takes_one_pass(collective, ns):
    draft = made(collective, in_network(4), MB)
    assert draft.makespan_ns == ns
    assert {step.op for step in draft.switched} == {*IN_SWITCH[collective]}


def test_a_broadcast_and_a_reduce_meet_their_bounds():
    for collective in ("broadcast", "reduce"):
        assert universal_bound(collective, in_network(4), MESH, MB).time_ns == 9_000


@pytest.mark.parametrize("collective", sorted(IN_SWITCH))
@pytest.mark.parametrize(("ranks", "alpha", "beta"), [(2, 1, 8), (3, 5, 1), (5, 0, 4)])
def test_no_plan_beats_its_bounds(collective, ranks, alpha, beta):
    hardware = in_network(ranks, alpha, beta)
    for size in (1000, 2**16):
        drafts = [made(collective, hardware, size)]
        for name in ("all-pairs", "halving-doubling", "trees"):
            with suppress(InputError):  # some are not for every collective
                drafts.append(METHODS[name](Request(collective, hardware, MESH, size), Effort()))
        for draft in drafts:
            assert universal_bound(collective, hardware, MESH, size).time_ns <= draft.makespan_ns
            assert lower_bound(draft.problem).time_ns <= draft.makespan_ns


# The claim of the bound: every rank sends and receives a byte at least once, and without the switch 2 (N - 1) transfers
# are needed, so t transfers, r reductions and m multicasts pass at least 2 (N + 1) ports.
@pytest.mark.parametrize("ranks", range(3, 9))
def test_ports_that_a_byte_passes(ranks):
    passed = [
        2 * t + (ranks + 1) * (r + m)
        for t in range(2 * ranks)
        for r in range(4)
        for m in range(4)
        if t + ranks * r + m >= ranks and t + r + ranks * m >= ranks and (r + m > 0 or t >= 2 * (ranks - 1))
    ]
    assert min(passed) == 2 * (ranks + 1)


def test_a_sketch_that_leaves_out_the_switch_changes_nothing():
    pairs = tuple((a, (a + step) % 8) for a in range(8) for step in (1, 7))
    ring = Sketch(version=1, name="ring", intranode_sketch=IntranodeSketch(strategy="direct", direct_links=pairs))
    with pytest.raises(InputError, match="no switch that joins all ranks and has in_network reduce, multicast"):
        made("allreduce", H100, MB, ring)
    for collective in ("allreduce", "allgather", "reduce"):
        there, here = (universal_bound(collective, each, ring, MB) for each in (H100, plain(H100)))
        assert there == here


def test_what_a_switch_cannot_do_is_refused():
    with pytest.raises(InputError, match="found alltoall, a switch can only help allgather, allreduce, "):
        made("alltoall", H100, MB)
    with pytest.raises(InputError, match="in_network reduce, multicast, which allreduce needs"):
        made("allreduce", in_network(4, ops=("multicast",)), MB)
    with pytest.raises(InputError, match="no switch that joins all ranks"):
        made("allreduce", switch(4), MB)


def test_bounds_of_several_nodes_count_only_what_is_between_them():
    two = replace(H100, nodes=2)
    with pytest.raises(InputError, match="no switch that joins all ranks"):
        made("allreduce", two, MB)
    # 1 GiB out of each node over eight NICs of 20.9715 us/MiB: 1024 * 20,971.5 / 8 = 2,684,352, + 1.7 us.
    assert universal_bound("allreduce", two, MESH, 2**30).time_ns == 2_686_052
    small = universal_bound("allreduce", two, MESH, 1024).time_ns
    assert small < universal_bound("allreduce", plain(two), MESH, 1024).time_ns
    assert small <= METHODS["hierarchical"](Request("allreduce", two, MESH, 1024), Effort()).makespan_ns


def test_proofs_of_routes_and_orders_do_not_hold_with_such_a_switch():
    for hardware, holds in ((switch(3), True), (in_network(3), False)):
        problem = Request("allgather", hardware, MESH, MB).problem(1, restricted=True)
        assert is_searchable(problem) == is_unrestricted(problem) == holds


def test_auto_takes_the_switch_only_where_it_may():
    request = Request("allreduce", in_network(3), MESH, 1536)
    assert plan_collective(request, options=CollectiveOptions("auto")).provenance.options["chosen"] == "nvls"
    other = plan_collective(request, options=CollectiveOptions("auto", in_switch=False))
    assert not other.decisions.switched
    assert "nvls" not in other.provenance.options["candidates_ns"]
