"""Protocol and instances by simulated time: what is chosen is as fast as anything that a full search finds."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
from msgspec.structs import replace

from codegen.lower import lower
from codegen.simulate_xml import simulate_xml
from planner.collective.algorithm import CollectiveDecisions
from planner.collective.planning import plan_collective
from planner.sketching import propose
from treadle import tuning
from treadle.check_plan import check_plan
from treadle.probe.resolve import load_hardware


def planned(collective: str, profile: str, size: int, method: str, nodes: int | None = None):
    hardware = load_hardware(profile, nodes)
    sketch = propose(hardware, collective=collective, size_bytes=size)
    return plan_collective(collective, hardware, sketch, size_bytes=size, method=method), hardware


@pytest.mark.parametrize(
    ("collective", "size", "method"),
    [("allreduce", 2**10, "all-pairs"), ("allreduce", 2**24, "all-pairs"), ("allgather", 2**17, "halving-doubling")],
)
def test_the_choice_is_near_the_best_of_a_full_search(collective, size, method):
    """Against every protocol and number of instances, simulated without any shortcut."""
    plan, hardware = planned(collective, "mi300x", size, method)
    made = tuning.tuned(plan, hardware, None, None)
    decisions = made.decisions
    assert isinstance(decisions, CollectiveDecisions)
    every = {}
    for protocol, instances in product(tuning.PROTOCOLS, (1, 2, 4, 8, 16)):
        program = lower(replace(plan.decisions, protocol=protocol, instances=instances))
        if max(len(rank.threadblocks) for rank in program.ranks) <= tuning.BLOCKS or instances == 1:
            whole = program.chunks_per_loop * decisions.chunk_bytes // instances
            every[protocol, instances] = simulate_xml(program, hardware, whole).time_us
    assert every[decisions.protocol, decisions.instances] <= (1 + tuning.GAIN) * 1.01 * min(every.values())
    told = made.provenance.options["transport"]
    assert told["chosen"] == f"{decisions.protocol} x {decisions.instances}"
    for name, time in told["simulated_us"].items():
        protocol, count = name.split(" x ")
        assert time == pytest.approx(every[protocol, int(count)], rel=0.03)
    assert check_plan(made) == []
    assert made == tuning.tuned(plan, hardware, "auto", None)


def test_small_calls_take_flags_and_large_ones_slots():
    small = planned("allreduce", "mi300x", 2**10, "all-pairs")
    large = planned("allreduce", "mi300x", 2**28, "all-pairs")
    assert tuning.tuned(*small, None, None).decisions.protocol == "LL"
    assert tuning.tuned(*large, None, None).decisions.protocol == "Simple"


def test_what_is_given_is_kept():
    plan, hardware = planned("allreduce", "mi300x", 2**20, "all-pairs")
    for protocol, instances in (("LL", None), (None, 4), ("LL128", None)):
        found = tuning.tuned(plan, hardware, protocol, instances).decisions
        assert protocol in (None, found.protocol)
        assert instances in (None, found.instances)
    given = replace(plan, decisions=replace(plan.decisions, protocol="LL", instances=3))
    kept = tuning.tuned(given, hardware, "LL", 3)
    assert kept.decisions == given.decisions
    assert "given" in kept.provenance.options["transport"]["by_size"]


def test_what_is_not_simulated_says_why(monkeypatch):
    plan, hardware = planned("allreduce", "cpu-2x2", 2**20, "two-level")
    told = tuning.tuned(plan, hardware, None, None)
    assert told.decisions == plan.decisions
    assert "GPUs" in told.provenance.options["transport"]["by_size"]
    plan, hardware = planned("allreduce", "mi300x", 2**20, "all-pairs")
    monkeypatch.setattr(tuning, "MOST_TRANSFERS", 10)
    told = tuning.tuned(plan, hardware, None, None)
    assert "more than the 10" in told.provenance.options["transport"]["by_size"]


def test_ranges_follow_each_other_and_hold_at_every_size_simulated():
    plan, hardware = planned("allreduce", "mi300x", 2**20, "all-pairs")
    low, high = 2**10, 2**28
    ranges = tuning.settings(plan.decisions, hardware, low, high, None, None)
    assert (ranges[0].min_bytes, ranges[-1].max_bytes) == (low, high)
    assert all(other.min_bytes == one.max_bytes + 1 for one, other in pairwise(ranges))
    assert len(ranges) > 1
    found = tuning.tuner(plan.decisions, hardware, None, None)
    assert isinstance(found, tuning.Tuner)
    for size in tuning.places(low, high):
        used = next(one for one in ranges if one.min_bytes <= size <= one.max_bytes)
        least = found.time_us(tuning.best(found.search(size)), size)
        assert found.time_us((used.protocol, used.instances), size) <= 1.05 * least
    for used in ranges:
        ends = used.simulated_us[tuning.label((used.protocol, used.instances))]
        sizes = (used.min_bytes, used.max_bytes)
        assert ends == tuple(found.time_us((used.protocol, used.instances), size) for size in sizes)
    assert tuning.settings(plan.decisions, load_hardware("cpu-2x2", None), low, high, None, None) == []
