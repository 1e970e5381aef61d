"""Racks behind uplinks: what they hold up, what is proved of plans, and that no plan exceeds an uplink's rate.

Costs are us; unless said, an alpha of 1, NICs of 8 us/MB, chunks of 1 MB.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.planner.passes.collective.build import MB
from treadle.planner.documents import store
from treadle.planner.documents.hardware import Device, Hardware, Network, Nic, NodeGroup, Switch, Uplink, scaled
from treadle.planner.errors import InputError
from treadle.planner.machine.nodes import expand, one_node, uplinks_of
from treadle.planner.passes.collective.algorithm import CollectiveDecisions
from treadle.planner.passes.collective.bound import lower_bound
from treadle.planner.passes.collective.check import check, check_against_inputs
from treadle.planner.passes.collective.limits import Limits
from treadle.planner.passes.collective.messages import in_order, moves_of_messages
from treadle.planner.passes.collective.planning import CollectiveOptions, make_request, plan_collective
from treadle.planner.passes.collective.retime import algorithm_of, retimed, timed_on
from treadle.planner.passes.collective.sketching import propose
from treadle.planner.passes.collective.universal import universal_bound
from treadle.probe.resolve import load_hardware

COLLECTIVES = ("allgather", "allreduce", "reducescatter", "alltoall", "broadcast", "reduce", "gather", "scatter")
METHODS = ("greedy", "hierarchical", "trees", "ring", "two-level", "all-pairs", "halving-doubling", "milp")


def racks(*members, uplink=8.0, alpha=1.0, devices=1, latency="pipelined", **more) -> Hardware:
    """Hosts of `devices` devices with a NIC each; `members` are the nodes of each rack."""
    nodes = sum(map(len, members))
    uplinks = tuple(
        Uplink(name=f"rack {i}", nodes=tuple(rack), beta_us_per_MB=uplink) for i, rack in enumerate(members)
    )
    switch = Switch(name="inside", kind="switch", members=tuple(range(devices)), alpha_us=0.5, beta_us_per_MB=1)
    return Hardware(
        version=1,
        name="racks",
        nodes=nodes,
        devices=(Device(model="toy", kind="gpu", count=devices),),
        switches=(switch,) if devices > 1 else (),
        nics=(Nic(name="nic", devices=tuple(range(devices))),),
        network=Network(kind="net", alpha_us=alpha, beta_us_per_MB=8, uplinks=uplinks),
        latency=latency,
        **more,
    )


def without(hardware: Hardware) -> Hardware:
    return replace(hardware, network=replace(hardware.network, uplinks=()))


def planned(collective, hardware, size, method="auto", **limits):
    request = make_request(collective, hardware, propose(hardware, collective=collective, size_bytes=size), size)
    return plan_collective(request, options=CollectiveOptions(method=method, limits=Limits(**limits)))


def exceeded(decisions: CollectiveDecisions, hardware: Hardware) -> list[str]:
    """Uplinks that carry more than their rate, from the profile alone: messages hold them one after the other, or links
    too slow to fill them."""
    found = []
    size = hardware.devices_per_node
    for uplink in hardware.network.uplinks:
        each = uplink.beta_us_per_MB * 1000 * decisions.chunk_bytes / MB
        for outwards in (True, False):
            messages: dict[tuple[int, int, int, int, int], int] = {}
            for move in decisions.transfers:
                here, there = (rank // size in uplink.nodes for rank in (move.src, move.dst))
                if here is outwards and there is not outwards:
                    key = move.send_ns, move.arrive_ns, move.src, move.dst, move.batch
                    messages[key] = messages.get(key, 0) + 1
            busy = sorted((send, send + count * each) for (send, *_), count in messages.items())
            in_turn = all(end <= start + 1 for (_, end), (start, _) in pairwise(busy))
            shares = [(key[0], key[1], count * each / (key[1] - key[0])) for key, count in messages.items()]
            slow = all(sum(s for b, e, s in shares if b <= at < e) <= 1 + 1e-6 for at, _, _ in shares)
            if not in_turn and not slow:
                found.append(f"{uplink.name} {'out' if outwards else 'in'}")
    return found


# What the profile means


def test_a_port_stands_for_each_direction_of_an_uplink():
    hardware = racks((0, 1), (2, 3), (4, 5), uplink=5.0)
    problem = make_request("allgather", hardware, propose(hardware), MB).problem(1)
    uplinks = {port.name: port for port in problem.ports if port.beta_ns is not None}
    assert uplinks.keys() == {f"uplink rack {i} {side}" for i in range(3) for side in ("out", "in")}
    out = uplinks["uplink rack 1 out"]
    assert set(out.links) == {(a, b) for a in (2, 3) for b in (0, 1, 4, 5)}
    assert out.beta_ns == 5000


def test_two_racks_share_what_leaves_one_and_enters_the_other():
    hardware = racks((0, 1), (2, 3))
    hardware = replace(
        hardware,
        network=replace(
            hardware.network,
            uplinks=(
                Uplink(name="fast", nodes=(0, 1), beta_us_per_MB=4.5),
                Uplink(name="slow", nodes=(2, 3), beta_us_per_MB=5),
            ),
        ),
    )
    problem = make_request("allgather", hardware, propose(hardware), MB).problem(1)
    assert {p.name: p.beta_ns for p in problem.ports if p.beta_ns} == {"uplink slow out": 5000, "uplink slow in": 5000}


def test_an_uplink_slower_than_a_nic_slows_the_links_through_it():
    hardware = racks((0, 1), (2, 3), uplink=20.0)
    links = make_request("allgather", hardware, propose(hardware), MB).problem(1).links
    assert links[0, 2].beta_ns == 20_000
    assert links[0, 1].beta_ns == 8_000


def test_an_uplink_as_fast_as_all_nics_behind_it_changes_nothing():
    hardware = racks((0, 1, 2, 3), (4, 5, 6, 7), uplink=2.0)
    for collective in ("allreduce", "alltoall"):
        with_it, bare = (planned(collective, each, 8 * MB) for each in (hardware, without(hardware)))
        assert with_it.decisions == bare.decisions
        assert with_it.certificate == bare.certificate


def test_uplinks_of_unequal_nodes_are_those_of_their_ranks():
    hardware = racks((0, 1), (2, 3))
    group = NodeGroup(name="near", nodes=(0, 1), alpha_us=0.5)
    uneven = replace(hardware, network=replace(hardware.network, groups=(group,)))
    assert uplinks_of(one_node(uneven)) == uplinks_of(uneven) == uplinks_of(hardware)
    assert expand(uneven).uplinks == expand(hardware).uplinks
    plan = planned("allgather", uneven, MB)
    assert not exceeded(plan.decisions, hardware)
    assert any(port.beta_ns for port in plan.decisions.ports)


def test_an_uplink_of_every_node_leads_nowhere():
    found = [*racks((0, 1, 2)).problems()]
    assert found == [("$.network.uplinks[0].nodes", "every node", "nodes that leave one outside")]


def test_fewer_nodes_keep_the_uplinks_that_still_part_them():
    assert len(uplinks_of(scaled(racks((0, 1), (2, 3)), 3))) == 2
    assert uplinks_of(scaled(racks((0, 1), (2, 3)), 2)) == ()


# Figures worked out by hand


def test_two_racks_of_two_hosts_by_hand():
    """Alltoall of 4 MB: 4 messages of 1 MB leave each rack, one after the other: 1 + 4 * 8 us. A host has 3 messages,
    one of which stays in the rack, so nothing else holds that up."""
    hardware = racks((0, 1), (2, 3))
    plan = planned("alltoall", hardware, 4 * MB, "exact")
    assert plan.decisions.makespan_ns == 33_000
    assert plan.certificate.optimal
    assert planned("alltoall", without(hardware), 4 * MB, "exact").decisions.makespan_ns == 25_000


def test_two_racks_of_four_hosts_by_hand():
    """4:1. Of an alltoall of 8 MB, 16 messages of 1 MB leave a rack: 1 + 16 * 8 us. Of an allgather of 1 MB a host
    takes in 7 MB, 1 + 7 * 8 us, and the uplink only 4; of an allreduce of 8 MB all hosts send 2 * 7 * 8 MB: 1 + 14 * 8.
    """
    hardware = racks((0, 1, 2, 3), (4, 5, 6, 7))
    bounds = {"alltoall": 129_000, "allgather": 57_000, "allreduce": 113_000}
    for collective, ns in bounds.items():
        size = MB if collective == "allgather" else 8 * MB
        assert universal_bound(collective, hardware, propose(hardware), size).time_ns == pytest.approx(ns, abs=2)
    assert planned("alltoall", hardware, 8 * MB).decisions.makespan_ns == 129_000


def test_an_allreduce_crosses_a_slow_uplink_once():
    """8:1, an uplink of 64 us/MB for four hosts: 2 * 8 MB leave two racks, so 1 + 8 * 64 us, where a ring has 14 rounds
    in which 1 MB crosses: 14 * 64 us."""
    hardware = racks((0, 1, 2, 3), (4, 5, 6, 7), uplink=64.0)
    plan = planned("allreduce", hardware, 8 * MB)
    assert plan.certificate.lower_bound == pytest.approx(513_000, abs=2)
    assert plan.decisions.makespan_ns < 1.2 * 513_000
    assert planned("allreduce", hardware, 8 * MB, "ring").decisions.makespan_ns > 14 * 64_000


@pytest.mark.parametrize(
    ("order", "offsets"),
    [
        (((0, 1, 2, 3), (4, 5, 6, 7)), ((4, 8), (1, 4, 8))),
        (((0, 2, 4, 6), (1, 3, 5, 7)), ((1, 8),)),
        (((0, 1, 2), (3, 4, 5, 6, 7)), ()),
    ],
)
def test_a_proposed_sketch_rotates_racks_onto_racks(order, offsets):
    hardware = racks(*order)
    assert propose(hardware).symmetry_offsets == offsets
    near = NodeGroup(name="near", nodes=(0, 1, 2, 3, 4, 5, 6, 7), alpha_us=0.5)
    uneven = replace(hardware, network=replace(hardware.network, groups=(near,)))
    make_request("allgather", uneven, propose(uneven), MB).problem(1, restricted=True)


# Plans


@pytest.mark.parametrize(
    "order", [((0, 1, 2, 3), (4, 5, 6, 7)), ((0, 2, 4, 6), (1, 3, 5, 7))], ids=["by rack", "in turn"]
)
@pytest.mark.parametrize("collective", ["allreduce", "allgather", "reducescatter", "alltoall"])
def test_large_buffers_take_hardly_longer_than_the_bound(collective, order):
    hardware = racks(*order, alpha=3, latency="serial")
    plan = planned(collective, hardware, 256 * MB)
    assert plan.decisions.makespan_ns < 1.06 * plan.certificate.lower_bound
    assert not exceeded(plan.decisions, hardware)


def test_the_ring_goes_rack_by_rack():
    hardware = racks((0, 2, 4, 6), (1, 3, 5, 7), latency="serial")
    moves = planned("allgather", hardware, MB, "ring").decisions.transfers
    crossing = {(move.src, move.dst) for move in moves if (move.src - move.dst) % 2}
    assert len(crossing) == 2


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_no_plan_beats_the_bound_or_an_uplink(data):
    devices = data.draw(st.sampled_from([1, 1, 1, 2]))
    sizes = data.draw(
        st.sampled_from([(2, 2), (1, 2), (3, 1), (2, 2, 2), (3, 3)] if devices == 1 else [(1, 1), (2, 1)])
    )
    names = data.draw(st.permutations(range(sum(sizes))))
    members = [tuple(names[sum(sizes[:i]) : sum(sizes[: i + 1])]) for i in range(len(sizes))]
    hardware = racks(
        *members,
        uplink=data.draw(st.sampled_from([1.0, 3.0, 5.5, 8.0, 19.0])),
        alpha=data.draw(st.sampled_from([0.0, 1.0, 7.0])),
        devices=devices,
        latency=data.draw(st.sampled_from(["serial", "pipelined"])),
    )
    collective, method = data.draw(st.sampled_from(COLLECTIVES)), data.draw(st.sampled_from(METHODS))
    size = data.draw(st.sampled_from([1000, MB, 12 * MB]))
    try:
        plan = planned(collective, hardware, size, method, routing=2.0, scheduling=1.0)
    except InputError:
        return
    decisions = plan.decisions
    sketch = propose(hardware, collective=collective, size_bytes=size)
    assert not exceeded(decisions, hardware)
    assert check(decisions) == check_against_inputs(decisions, hardware, sketch) == []
    request = make_request(collective, hardware, sketch, size)
    problem = request.problem(decisions.chunkup, decisions.roots)
    bound = universal_bound(collective, hardware, sketch, size).time_ns
    assert max(bound, lower_bound(problem).time_ns) <= decisions.makespan_ns
    assert universal_bound(collective, without(hardware), sketch, size).time_ns <= bound

    messages = algorithm_of(problem, decisions.transfers).messages
    bare = make_request(collective, without(hardware), sketch, size).problem(decisions.chunkup, decisions.roots)
    with_it, free = (in_order(moves_of_messages(each, messages)).makespan for each in (problem, bare))
    assert free <= with_it


def crossing(decisions, racks) -> Counter:
    """How often each chunk goes from one rack to another."""
    home = {rank: number for number, rack in enumerate(racks) for rank in rack}
    return Counter(move.chunk for move in decisions.transfers if home[move.src] != home[move.dst])


@pytest.mark.parametrize("parts", [((0, 1), (2, 3)), ((0, 2, 3), (1, 4))])
def test_masters_of_racks_cross_twice_for_each_rack_but_one(parts):
    plan = planned("allreduce", racks(*parts), 64, "two-level-masters").decisions
    assert check(plan) == []
    assert set(crossing(plan, parts).values()) == {2}
    if len(plan.roots) == 4:  # members, masters, and back: no round waits for bytes so few
        assert plan.makespan_ns == pytest.approx(4_000, rel=0.02)


def test_a_slow_host_is_master_of_nothing_and_others_are_even():
    hardware = load_hardware("slow-nic")
    plan = planned("allreduce", hardware, 1 << 20, "two-level-masters").decisions
    assert check(plan) == []
    roots = Counter(plan.roots)
    assert roots.keys() == {0, 1, 2}
    assert max(roots.values()) - min(roots.values()) <= 1


def test_equal_hosts_without_racks_need_no_masters_of_two_levels():
    with pytest.raises(InputError, match="use all-pairs"):
        planned("allreduce", without(racks((0, 1), (2, 3))), 64, "two-level-masters")


@pytest.mark.parametrize("method", ["greedy", "trees", "hierarchical", "ring"])
def test_every_part_is_at_least_what_any_cut_through_racks_needs(method):
    """Independent of all bounds: the bytes that have to cross, over the rate of the uplink."""
    hardware = racks((0, 1, 2), (3, 4, 5), uplink=6.0)
    for collective, crossing in (("allgather", 3 * MB), ("allreduce", 6 * MB)):
        plan = planned(collective, hardware, crossing if collective == "allreduce" else MB, method)
        assert plan.decisions.makespan_ns >= Fraction(crossing * 6000, MB)


def test_same_inputs_same_plan():
    hardware = racks((0, 2), (1, 3), uplink=5.0)
    one, other = (planned("allreduce", hardware, MB) for _ in range(2))
    assert store.dumps(one) == store.dumps(other)
    assert store.loads(store.dumps(one), "plan", type(one)) == one


def test_a_time_limit_still_gives_a_plan():
    plan = planned("alltoall", racks((0, 1, 2, 3), (4, 5, 6, 7)), MB, time_s=0.05)
    assert plan.decisions.transfers


# The checker


def test_the_checker_finds_two_messages_at_once_on_an_uplink():
    hardware = racks((0, 1), (2, 3))
    decisions = planned("alltoall", hardware, 4 * MB, "exact").decisions
    crossing = [i for i, move in enumerate(decisions.transfers) if move.src < 2 <= move.dst]
    first, second = (decisions.transfers[i] for i in crossing[:2])
    early = replace(second, send_ns=first.send_ns + 1, arrive_ns=second.arrive_ns - second.send_ns + first.send_ns + 1)
    moved = tuple(early if i == crossing[1] else move for i, move in enumerate(decisions.transfers))
    assert any("uplink rack 0 out: more than its rate" in line for line in check(replace(decisions, transfers=moved)))


def test_the_checker_finds_a_link_faster_than_its_uplink():
    decisions = planned("allgather", racks((0, 1), (2, 3)), MB, "greedy").decisions
    ports = tuple(p if p.beta_ns is None else replace(p, beta_ns=9000) for p in decisions.ports)
    assert "ns only" in check(replace(decisions, ports=ports))[0]


def test_a_plan_made_for_another_uplink_is_stale():
    hardware = racks((0, 1), (2, 3), uplink=5.0)
    sketch = propose(hardware)
    decisions = planned("allgather", hardware, MB, "greedy").decisions
    slower = racks((0, 1), (2, 3), uplink=6.0)
    found = check_against_inputs(decisions, slower, sketch)
    assert any("uplink rack 0 out: found 5000 ns for a chunk, the inputs give 6000" in line for line in found)
    assert check_against_inputs(timed_on(decisions, slower, sketch), slower, sketch) == []


def test_an_algorithm_keeps_to_the_uplink_at_other_sizes():
    hardware = racks((0, 1, 2), (3, 4, 5))
    plan = planned("alltoall", hardware, 6 * MB, "greedy")
    again = retimed(plan.decisions, hardware, propose(hardware))
    time_ns, problem = again.at(12 * MB)
    assert time_ns == in_order(moves_of_messages(problem, again.algorithm.messages)).makespan
    assert time_ns >= 9 * 2 * 8000
