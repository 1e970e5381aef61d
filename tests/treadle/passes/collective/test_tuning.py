"""Protocol and instances by simulated time: what is chosen is as fast as anything that a full search finds."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
from msgspec.structs import replace

from treadle.check.plan import check_against, check_plan
from treadle.codegen.collective.lower import lower
from treadle.codegen.collective.simulate_xml import simulate_xml
from treadle.passes.collective import tuning
from treadle.planner.errors import InputError
from treadle.planner.passes.collective.check import check
from treadle.planner.passes.collective.planning import plan_collective
from treadle.planner.passes.collective.sketching import propose
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
    decisions = plan.decisions
    price = tuning.pricing(hardware, None, None)(decisions)
    every = {}
    for protocol, instances in product(tuning.PROTOCOLS, (1, 2, 4, 8, 16)):
        program = lower(replace(plan.decisions, protocol=protocol, instances=instances, fused=price.fused))
        if max(len(rank.threadblocks) for rank in program.ranks) <= tuning.BLOCKS or instances == 1:
            whole = program.chunks_per_loop * decisions.chunk_bytes // instances
            every[protocol, instances] = simulate_xml(program, hardware, whole).time_us
    assert every[price.protocol, price.instances] <= (1 + tuning.GAIN) * 1.01 * min(every.values())
    assert price.transport["chosen"] == f"{price.protocol} x {price.instances}"
    assert price.time_us == price.transport["simulated_us"][price.transport["chosen"]]
    for name, time in price.transport["simulated_us"].items():
        protocol, count = name.split(" x ")
        assert time == pytest.approx(every[protocol, int(count)], rel=0.03)
    assert price == tuning.pricing(hardware, "auto", None)(decisions)


def test_small_calls_take_flags_and_large_ones_slots():
    for size, protocol in ((2**10, "LL"), (2**28, "Simple")):
        plan, hardware = planned("allreduce", "mi300x", size, "all-pairs")
        assert tuning.pricing(hardware, None, None)(plan.decisions).protocol == protocol


def test_what_is_given_is_kept():
    plan, hardware = planned("allreduce", "mi300x", 2**20, "all-pairs")
    for protocol, instances in (("LL", None), (None, 4), ("LL128", None)):
        found = tuning.pricing(hardware, protocol, instances)(plan.decisions)
        assert protocol in (None, found.protocol)
        assert instances in (None, found.instances)
    kept = tuning.pricing(hardware, "LL", 3)(replace(plan.decisions, protocol="LL", instances=3))
    assert (kept.protocol, kept.instances) == ("LL", 3)
    assert kept.time_us is not None


def test_once_it_is_over_one_program_is_simulated():
    plan, hardware = planned("allreduce", "mi300x", 2**20, "all-pairs")
    price = tuning.pricing(hardware, None, None)(plan.decisions, lambda: True)
    assert (list(price.transport["simulated_us"]), price.ordered) == (["Simple x 1"], False)
    assert price.time_us == price.transport["program_us"]


def test_what_is_not_simulated_says_why(monkeypatch):
    plan, hardware = planned("allreduce", "cpu-2x2", 2**20, "two-level")
    price = tuning.pricing(hardware, None, None)(plan.decisions)
    assert (price.protocol, price.instances) == (plan.decisions.protocol, plan.decisions.instances)
    assert "GPUs" in price.transport["by_size"]
    plan, hardware = planned("allreduce", "mi300x", 2**20, "all-pairs")
    monkeypatch.setattr(tuning, "MOST_TRANSFERS", 10)
    price = tuning.pricing(hardware, None, None)(plan.decisions)
    assert price.time_us is None
    assert "more than the 10" in price.transport["by_size"]


def test_auto_takes_the_program_that_is_soonest_done_not_the_schedule():
    """Eight H100: on links alone five methods tie, as programs a ring takes a fifth of the first one's time; in two
    pieces and on twice as many threadblocks its program takes a quarter longer than on links."""
    hardware = load_hardware("ndv5", 1)
    sketch = propose(hardware, collective="allreduce", size_bytes=2**26)
    price = tuning.pricing(hardware, None, None)
    plan = plan_collective("allreduce", hardware, sketch, size_bytes=2**26, method="auto", pricing=price)
    options = plan.provenance.options
    assert options["chosen"] == "ring"
    assert (plan.decisions.chunkup, plan.decisions.fused) == (2, False)
    assert plan.prediction.time_us <= 4 / 3 * plan.decisions.makespan_ns / 1000
    assert plan.prediction.time_us == min(options["candidates_us"].values()) < options["candidates_us"]["greedy"] / 4
    assert check_plan(plan) == check_against(plan, {"hardware": hardware, "sketch": sketch}) == []
    other = replace(plan, prediction=replace(plan.prediction, time_us=100.0))
    assert "prediction: time 100 us, the plan takes 349.983 us" in check_plan(other)
    transport = {**options["transport"], "program_us": 100.0}
    claimed = replace(other, provenance=replace(plan.provenance, options={**options, "transport": transport}))
    assert check_plan(claimed) == []
    assert "this version simulates 349.983 us" in check_against(claimed, {"hardware": hardware, "sketch": sketch})[0]


def test_smaller_pieces_bring_a_program_to_its_schedule():
    """Eight H100 in 64 MiB: in one piece a message leaves its sender before its receiver begins."""
    hardware = load_hardware("ndv5", 1)
    sketch = propose(hardware, collective="alltoall", size_bytes=2**26)
    pricing = tuning.pricing(hardware, None, None)
    plain, _ = planned("alltoall", "ndv5", 2**26, "all-pairs", 1)
    whole = pricing(plain.decisions)
    assert whole.time_us > 1.6 * plain.decisions.makespan_ns / 1000
    plan = plan_collective("alltoall", hardware, sketch, size_bytes=2**26, method="auto", pricing=pricing)
    assert plan.decisions.chunkup > 1
    assert plan.prediction.time_us <= 0.85 * whole.time_us
    assert plan.prediction.time_us <= 1.4 * plain.decisions.makespan_ns / 1000
    assert check(plan.decisions) == check_plan(plan) == []


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
        ends = used.simulated_us[tuning.label(used.protocol, used.instances)]
        sizes = (used.min_bytes, used.max_bytes)
        assert ends == tuple(found.time_us((used.protocol, used.instances), size) for size in sizes)
    assert tuning.settings(plan.decisions, load_hardware("cpu-2x2", None), low, high, None, None) == []


def test_ll128_is_refused_over_pcie():
    """Stores of 128 bytes may arrive in parts there: not chosen by size or by time, refused when asked for."""
    hardware = load_hardware("cluster-10gbe", 1)
    sketch = propose(hardware, collective="allreduce", size_bytes=2**18)
    arguments = {"size_bytes": 2**18, "method": "ring"}
    plan = plan_collective("allreduce", hardware, sketch, **arguments)
    assert plan.decisions.protocol == "Simple"
    price = tuning.pricing(hardware, None, None)(plan.decisions)
    assert not [name for name in price.transport["simulated_us"] if name.startswith("LL128")]
    with pytest.raises(InputError, match="--protocol: found LL128, expected Simple or LL"):
        plan_collective("allreduce", hardware, sketch, protocol="LL128", **arguments)
    claimed = replace(plan.decisions, protocol="LL128")
    assert "over pcie link 0 -> 1" in check(claimed)[0]
    with pytest.raises(InputError, match="gpu 0 sends to gpu 1 over pcie"):
        simulate_xml(lower(claimed), hardware, 2**18)
