"""Direct plans are known as such, and what they cost over symmetric memory is what a hand works out."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.planner.passes.collective.build import MESH, SYMMETRIC, complete, in_network, readable, switch, switch_sketch
from tests.planner.plans import collective_plan
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.scalars import MEBIBYTE
from treadle.planner.documents.transports import Transports
from treadle.planner.passes.collective.algorithm import CollectiveDecisions
from treadle.planner.passes.collective.direct import is_direct, is_in_switch, symmetric_us
from treadle.planner.passes.collective.sketching import propose
from treadle.probe.resolve import load_hardware

RANKS = 4


def planned(collective: str, hardware: Hardware, method: str = "all-pairs", sketch=MESH) -> CollectiveDecisions:
    return collective_plan(collective, hardware, sketch, size_bytes=MEBIBYTE, method=method).decisions


MACHINE = readable(complete(RANKS))


@pytest.mark.parametrize("collective", ["allreduce", "reducescatter", "allgather", "broadcast"])
def test_what_goes_straight_is_direct(collective):
    decisions = planned(collective, MACHINE)
    assert is_direct(decisions)
    assert not is_direct(replace(decisions, transfers=decisions.transfers[:-1]))
    assert not is_direct(replace(decisions, links=tuple(replace(link, kind="pcie") for link in decisions.links)))


@pytest.mark.parametrize(
    ("collective", "method"),
    [("alltoall", "all-pairs"), ("allreduce", "ring"), ("allreduce", "recursive-doubling")],
)
def test_what_goes_another_way_is_not(collective, method):
    assert not is_direct(planned(collective, MACHINE, method))


def test_one_rank_that_sums_all_is_not_direct():
    """Every rank must do its share, as the runtime cuts the buffer in equal parts."""
    decisions = planned("allreduce", MACHINE)
    first = [move for move in decisions.transfers if move.chunk == 0]
    unequal = tuple(replace(move, chunk=chunk) for chunk in range(RANKS) for move in first)
    assert not is_direct(replace(decisions, transfers=unequal))


def test_the_price_on_links_of_their_own():
    """`complete` has 8 us for a MB on every link; half of the rate is reached, so 1 MiB takes 16 us: in one shot whole
    buffers over every link, in two a quarter twice. Both copy 2 MiB."""
    prices = symmetric_us(planned("allreduce", MACHINE), MACHINE, MEBIBYTE)
    assert prices == {"one-shot": 3 + 3 + 16 + 1, "two-shot": 3 + 2 * (3 + 4) + 1}
    small = symmetric_us(planned("allreduce", MACHINE), MACHINE, MEBIBYTE // 16)
    assert small == {"one-shot": pytest.approx(6 + 17 / 16, abs=1e-3), "two-shot": pytest.approx(9 + 9 / 16, abs=1e-3)}
    assert symmetric_us(planned("reducescatter", MACHINE), MACHINE, MEBIBYTE) == {"one-shot": 3 + 3 + 4 + 1}


def test_the_price_through_one_port():
    """Through a switch what a rank reads from the three others passes one port."""
    hardware = readable(switch(RANKS))
    decisions = planned("allreduce", hardware, sketch=switch_sketch(RANKS, "free"))
    whole = decisions.links[0].beta_ns * RANKS / 1000 / SYMMETRIC.link_efficiency
    prices = symmetric_us(decisions, hardware, MEBIBYTE)
    assert prices["one-shot"] == pytest.approx(3 + 3 + 3 * whole + 1, abs=1e-3)
    assert prices["two-shot"] == pytest.approx(3 + 6 + 2 * 3 / 4 * whole + 1, abs=1e-3)


def test_what_is_not_carried_has_no_price():
    decisions = planned("allreduce", MACHINE)
    assert symmetric_us(decisions, replace(MACHINE, transports=Transports()), MEBIBYTE) == {}
    assert symmetric_us(planned("allreduce", MACHINE, "ring"), MACHINE, MEBIBYTE) == {}
    assert symmetric_us(decisions, replace(MACHINE, nodes=2), MEBIBYTE) == {}


def test_the_shipped_profile_gives_the_public_figure():
    """MSCCL++ on eight H100: 7.5 us for an allreduce of 1 KiB; then two shots are quicker from some 0.3 MiB on."""
    hardware = load_hardware("ndv5", 1)
    sketch = propose(hardware, collective="allreduce", size_bytes=2**10)
    decisions = collective_plan("allreduce", hardware, sketch, size_bytes=2**20, method="all-pairs").decisions
    at = {size: symmetric_us(decisions, hardware, size) for size in (2**10, 2**17, 2**19)}
    assert at[2**10]["one-shot"] == pytest.approx(7.5, rel=0.01)
    assert at[2**17]["one-shot"] < at[2**17]["two-shot"]
    assert at[2**19]["two-shot"] < at[2**19]["one-shot"]


@pytest.mark.parametrize(
    ("collective", "shots", "ports_us"),
    [("allreduce", "two-shot", 4 * 5 / 4 * 8 / 4), ("allgather", "one-shot", 4 * 8), ("reducescatter", "one-shot", 8)],
)
def test_the_price_in_the_switch(collective, shots, ports_us):
    """In one piece: ports are busy for 8 us a MB of each rank's part, in either direction; half of the rate counts."""
    hardware = readable(in_network(RANKS))
    decisions = planned(collective, hardware, "nvls", switch_sketch(RANKS, "free"))
    assert is_in_switch(decisions)
    assert not is_direct(decisions)
    alpha_ns = decisions.switches[0].alpha_ns
    meetings = 2 if shots == "two-shot" else 1
    busy_us = (decisions.makespan_ns - meetings * alpha_ns) / 1000
    assert busy_us == pytest.approx(ports_us, rel=0.3)
    copied = 1 + (RANKS if collective == "allgather" else 1)
    expected = 3 + meetings * 3 + busy_us / SYMMETRIC.link_efficiency + copied * 0.5
    assert symmetric_us(decisions, hardware, MEBIBYTE) == {shots: pytest.approx(expected, abs=2e-3)}


def test_a_switch_of_some_ranks_or_for_another_collective_is_not_executed():
    decisions = planned("allreduce", readable(in_network(RANKS)), "nvls", switch_sketch(RANKS, "free"))
    some = tuple(replace(each, members=each.members[:-1]) for each in decisions.switches)
    assert not is_in_switch(replace(decisions, switches=some))
    assert not is_in_switch(replace(decisions, collective="reduce"))
