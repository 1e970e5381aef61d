"""Protocol and instances by simulated time: what is chosen is as fast as anything that a full search finds."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
from msgspec.structs import replace

from tests.planner.passes.collective.build import readable, switch, switch_sketch
from tests.planner.plans import collective_plan
from treadle.check.plan import check_against, check_plan
from treadle.check.selection import against_plans, against_times
from treadle.codegen.collective.lower import lower
from treadle.codegen.collective.simulate_cpu import simulate_cpu
from treadle.codegen.collective.simulate_rounds import simulate_rounds
from treadle.codegen.collective.simulate_xml import simulate_xml
from treadle.passes.collective import tuning
from treadle.passes.collective.section import candidates
from treadle.planner.documents.transports import CpuTransport, MessageCost, Transports
from treadle.planner.errors import InputError
from treadle.planner.passes.collective import auto, planning
from treadle.planner.passes.collective.check import check
from treadle.planner.passes.collective.limits import Effort
from treadle.planner.passes.collective.planning import METHODS, references
from treadle.planner.passes.collective.sketching import propose
from treadle.planner.passes.collective.sweep import Guide, sweep
from treadle.planner.passes.collective.synthesis import Request
from treadle.probe.resolve import load_hardware

MESSAGES = tuple(name for name in METHODS if name != "nvls")
"""The methods whose plans are programs of messages."""


def planned(collective: str, profile: str, size: int, method: str, nodes: int | None = None):
    hardware = load_hardware(profile, nodes)
    sketch = propose(hardware, collective=collective, size_bytes=size)
    return collective_plan(collective, hardware, sketch, size_bytes=size, method=method), hardware


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
    hardware = load_hardware("mi300x")
    sketch = propose(hardware, collective="allreduce", size_bytes=2**20)
    monkeypatch.setattr(tuning, "MOST_TRANSFERS", 10)
    arguments = {"size_bytes": 2**20, "method": "all-pairs", "pricing": tuning.pricing(hardware, None, None)}
    plan = collective_plan("allreduce", hardware, sketch, **arguments)
    assert plan.prediction.time_us == plan.decisions.makespan_ns / 1000
    assert plan.certificate.unsimulated == "112 transfers, more than the 10 that are simulated"


def test_large_plans_are_priced_in_the_protocol_and_instances_of_their_size(monkeypatch):
    plan, hardware = planned("allreduce", "mi300x", 2**20, "all-pairs")
    every = tuning.pricing(hardware, None, None)(plan.decisions)
    monkeypatch.setattr(tuning, "SEARCHED_TRANSFERS", 10)
    price = tuning.pricing(hardware, None, None)(plan.decisions)
    used = tuning.label(plan.decisions.protocol, plan.decisions.instances)
    assert price.transport["simulated_us"] == {used: price.time_us}
    assert price.time_us >= every.time_us


@pytest.mark.parametrize("methods", [("greedy", "ring"), pytest.param(MESSAGES, marks=pytest.mark.slow)])
def test_auto_takes_the_program_that_is_soonest_done_not_the_schedule(methods, monkeypatch):
    """Eight H100: on links alone five methods tie, as programs a ring takes a fifth of the first one's time; in two
    pieces and on twice as many threadblocks its program takes a quarter longer than on links."""
    monkeypatch.setattr(planning, "METHODS", {name: METHODS[name] for name in methods})
    hardware = load_hardware("ndv5", 1)
    sketch = propose(hardware, collective="allreduce", size_bytes=2**26)
    price = tuning.pricing(hardware, None, None)
    plan = collective_plan("allreduce", hardware, sketch, size_bytes=2**26, method="auto", pricing=price)
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


def test_smaller_pieces_bring_a_program_to_its_schedule(monkeypatch):
    """Eight H100 in 64 MiB: in one piece a message leaves its sender before its receiver begins."""
    monkeypatch.setattr(planning, "METHODS", {"all-pairs": METHODS["all-pairs"]})
    hardware = load_hardware("ndv5", 1)
    sketch = propose(hardware, collective="alltoall", size_bytes=2**26)
    pricing = tuning.pricing(hardware, None, None)
    plain, _ = planned("alltoall", "ndv5", 2**26, "all-pairs", 1)
    whole = pricing(plain.decisions)
    assert whole.time_us > 1.6 * plain.decisions.makespan_ns / 1000
    plan = collective_plan("alltoall", hardware, sketch, size_bytes=2**26, method="auto", pricing=pricing)
    assert plan.decisions.chunkup > 1
    assert plan.prediction.time_us <= 0.85 * whole.time_us
    assert plan.prediction.time_us <= 1.4 * plain.decisions.makespan_ns / 1000
    assert check(plan.decisions) == check_plan(plan) == []


def swept(profile: str, sizes: tuple[int, ...], methods: tuple[str, ...], monkeypatch, effort: Effort | None = None):
    hardware = load_hardware(profile, 1)
    sketch = propose(hardware, collective="allreduce", size_bytes=sizes[-1])
    return *swept_on(hardware, sketch, sizes, methods, monkeypatch, effort), hardware, sketch


def swept_on(hardware, sketch, sizes, methods, monkeypatch, effort: Effort | None = None):
    monkeypatch.setattr("treadle.planner.passes.collective.planning.METHODS", {name: METHODS[name] for name in methods})
    guides = [Guide(0, Request("allreduce", hardware, sketch), references(hardware, sketch, None, {}))]
    return sweep(guides, sizes, effort or Effort(), pricing=tuning.pricing(hardware, None, None))


@pytest.mark.slow
def test_a_sweep_chooses_by_the_price_of_one_size(monkeypatch):
    """On links alone greedy would be taken at 1 MiB and ring at 16 MiB; by the programs it is the reverse."""
    sizes = (2**20, 2**24)
    plans, selection, hardware, sketch = swept("mesh4", sizes, ("greedy", "ring"), monkeypatch)
    assert [selection.at(size).method for size in sizes] == ["ring", "greedy"]
    request = Request("allreduce", hardware, sketch, sizes[1])
    single = auto.choose({"greedy": METHODS["greedy"]}, request, Effort(), tuning.pricing(hardware, None, None))
    entry = selection.at(sizes[1])
    assert entry.simulated_us[tuning.label(entry.protocol, entry.instances)][1] == single.price.time_us
    assert list(against_plans(selection, plans)) == []
    made_from = dict.fromkeys(plans, (hardware, sketch))
    assert list(against_times(selection, plans, made_from)) == []
    first, last = selection.entries[0], selection.entries[-1]
    forged = replace(selection, entries=(replace(first, max_bytes=sizes[1] - 1), replace(last, min_bytes=sizes[1])))
    assert any("entries[0]: " in finding for finding in against_times(forged, plans, made_from))
    swapped = replace(selection, entries=(replace(first, max_bytes=sizes[1]), last))
    assert any(finding.startswith("16 MiB: ") for finding in against_times(swapped, plans, made_from))


@pytest.mark.slow
def test_ranges_switch_where_the_next_program_gets_ahead(monkeypatch):
    sizes = (2**10, 2**22, 2**28)
    plans, selection, hardware, _ = swept("mesh4", sizes, ("all-pairs",), monkeypatch)
    assert (selection.entries[0].min_bytes, selection.entries[-1].max_bytes) == (sizes[0], sizes[-1])
    assert all(other.min_bytes == one.max_bytes + 1 for one, other in pairwise(selection.entries))
    assert len(selection.entries) > 1
    programs = {name: tuning.pricing(hardware, None, None).programs(plan.decisions) for name, plan in plans.items()}

    def time(entry, size):
        return programs[entry.plan.file].time_us((entry.protocol, entry.instances), size)

    for entry in selection.entries:
        ends = (entry.min_bytes, entry.max_bytes)
        assert entry.simulated_us[tuning.label(entry.protocol, entry.instances)] == tuple(time(entry, s) for s in ends)
    for one, other in pairwise(selection.entries):
        assert time(other, other.min_bytes) <= time(one, other.min_bytes)
    for size in sizes:
        least = min(min(found.search(size).values()) for found in programs.values())
        assert time(selection.at(size), size) <= 1.05 * least


class Ends(Effort):
    """Its time has elapsed after `looks` queries."""

    looks = 0

    def overdue(self) -> bool:
        self.looks -= 1
        return self.looks < 0


@pytest.mark.parametrize("looks", [0, 40, 70])
def test_a_sweep_whose_time_is_over_compares_schedules_alone(monkeypatch, looks):
    effort = Ends()
    effort.looks = looks
    sizes = (2**10, 2**16, 2**24)
    plans, selection, hardware, sketch = swept("mesh4", sizes, ("all-pairs", "ring"), monkeypatch, effort)
    assert [entry.simulated_us for entry in selection.entries] == [{}] * len(selection.entries)
    assert [selection.at(size).protocol for size in sizes] == ["LL", "LL", "Simple"]
    assert list(against_plans(selection, plans)) == []
    assert list(against_times(selection, plans, dict.fromkeys(plans, (hardware, sketch)))) == []


def test_cpus_are_swept_by_their_programs_on_links(monkeypatch):
    plans, selection, hardware, sketch = swept("cpu-2x2", (2**12, 2**22), ("two-level", "binomial"), monkeypatch)
    for entry in selection.entries:
        decisions = replace(plans[entry.plan.file].decisions, protocol=entry.protocol, instances=entry.instances)
        (times,) = entry.simulated_us.values()
        assert times[0] == tuning.OnLinks(decisions).time_us((entry.protocol, entry.instances), entry.min_bytes)
    assert list(against_times(selection, plans, dict.fromkeys(plans, (hardware, sketch)))) == []
    assert {entry.protocol for entry in selection.entries if entry.max_bytes <= 2**16} == {"LL"}


def test_ll128_is_refused_over_pcie():
    """Stores of 128 bytes may arrive in parts there: not chosen by size or by time, refused when asked for."""
    hardware = load_hardware("cluster-10gbe", 1)
    sketch = propose(hardware, collective="allreduce", size_bytes=2**18)
    arguments = {"size_bytes": 2**18, "method": "ring"}
    plan = collective_plan("allreduce", hardware, sketch, **arguments)
    assert plan.decisions.protocol == "Simple"
    price = tuning.pricing(hardware, None, None)(plan.decisions)
    assert not [name for name in price.transport["simulated_us"] if name.startswith("LL128")]
    with pytest.raises(InputError, match="--protocol: found LL128, expected Simple or LL"):
        collective_plan("allreduce", hardware, sketch, protocol="LL128", **arguments)
    claimed = replace(plan.decisions, protocol="LL128")
    assert "over pcie link 0 -> 1" in check(claimed)[0]
    with pytest.raises(InputError, match="gpu 0 sends to gpu 1 over pcie"):
        simulate_xml(lower(claimed), hardware, 2**18)


def test_a_plan_for_cpus_is_priced_by_the_runtime_that_will_execute_it():
    """With costs of the CPU runtime its time is the program's on it; a slow thread changes the price, not the links."""
    memory = MessageCost(message_us=1.0, copy_us_per_MB=70.0, sum_us_per_MB=90.0, latency_us=12.0)
    costs = CpuTransport(call_us=10.0, step_us=0.5, copy_us_per_MB=15.0, sum_us_per_MB=20.0, memory=memory, cores=2)
    machine = replace(load_hardware("cpu-2x2"), nodes=1, network=None)
    sketch = propose(machine, collective="allreduce", size_bytes=2**20)
    decisions = collective_plan("allreduce", machine, sketch, size_bytes=2**20, method="all-pairs").decisions
    assert not tuning.pricing(machine, None, None)(decisions).simulated
    slow = replace(costs, memory=replace(memory, copy_us_per_MB=7000.0))
    prices = [
        tuning.pricing(replace(machine, transports=Transports(cpu=each)), None, None)(decisions)
        for each in (costs, slow)
    ]
    assert all(price.simulated and not price.ordered for price in prices)
    assert prices[1].time_us > 10 * prices[0].time_us
    program = lower(replace(decisions, protocol="Simple", instances=prices[0].instances, fused=prices[0].fused))
    known = simulate_cpu(program, replace(machine, transports=Transports(cpu=costs)), decisions.input_bytes).time_us
    assert prices[0].time_us == pytest.approx(known, abs=1e-3)


def test_plans_for_gpus_of_several_nodes_are_priced_as_grouped_messages():
    """On one node by kernels. On two, the plan of few rounds wins small calls and is what the plan predicts."""
    plan, hardware = planned("allreduce", "ndv5", 2**13, "auto", nodes=2)
    assert tuning.carrier_of(hardware) == "groups"
    assert tuning.carrier_of(load_hardware("ndv5", 1)) == "kernels"
    price = tuning.pricing(hardware, None, None)(plan.decisions)
    program = lower(replace(plan.decisions, protocol="Simple", instances=1))
    found = simulate_rounds(program, hardware, 2**13)
    assert price.time_us == pytest.approx(found.time_us, abs=1e-3)
    assert price.transport["groups"] == {"rounds": found.rounds, "messages": found.messages, "group_us": 10}
    assert (price.protocol, price.instances, price.ordered) == ("Simple", 1, False)


def test_small_sizes_go_over_symmetric_memory_where_the_profile_has_its_costs(monkeypatch):
    """The check of a plan works its price out again; without the entry of the profile all is as before."""
    monkeypatch.setattr(planning, "METHODS", {name: METHODS[name] for name in ("all-pairs", "recursive-doubling")})
    hardware, sketch = readable(switch(4)), switch_sketch(4, "free")

    def plan_on(hardware, size=2**10):
        pricing = tuning.pricing(hardware, None, None)
        return collective_plan("allreduce", hardware, sketch, size_bytes=size, method="auto", pricing=pricing)

    plan = plan_on(hardware)
    options = plan.provenance.options
    assert options["chosen"] == "all-pairs"
    assert options["transport"]["symmetric"] == "one-shot"
    assert plan.prediction.time_us == options["transport"]["symmetric_us"]["one-shot"] < 6.1
    shown = candidates(plan)[-1].rows[0]
    assert shown == ("one-shot over symmetric memory (chosen)", f"{plan.prediction.time_us:,.3f}")
    assert plan_on(hardware, 2**20).provenance.known.transport.symmetric == "two-shot"
    inputs = {"hardware": hardware, "sketch": sketch}
    assert check_plan(plan) == check_against(plan, inputs) == []
    transport = {**options["transport"], "program_us": 5.0}
    claimed = replace(
        plan,
        prediction=replace(plan.prediction, time_us=5.0),
        provenance=replace(plan.provenance, options={**options, "transport": transport}),
    )
    assert "this version simulates" in check_against(claimed, inputs)[0]
    without = plan_on(replace(hardware, transports=Transports()))
    assert without.provenance.options["chosen"] == "recursive-doubling"
    assert "all-pairs" not in without.provenance.options["candidates_us"]
    assert not {"symmetric", "symmetric_us"} & without.provenance.options["transport"].keys()


def test_a_sweep_changes_from_one_shot_to_two_and_to_the_program(monkeypatch):
    sizes = (2**10, 2**18, 2**28)
    hardware, sketch = readable(switch(4)), switch_sketch(4, "free")
    plans, selection = swept_on(hardware, sketch, sizes, ("all-pairs",), monkeypatch)
    shots = [plans[selection.at(size).plan.file].provenance.known.transport.symmetric for size in sizes]
    assert shots == ["one-shot", "two-shot", None]
    assert list(against_plans(selection, plans)) == []
    assert list(against_times(selection, plans, dict.fromkeys(plans, (hardware, sketch)))) == []
