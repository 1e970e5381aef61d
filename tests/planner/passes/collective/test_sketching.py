"""Proposed sketches: sound on every machine, symmetric only where it was checked, few links on large ones."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.planner.passes.collective.build import MB, both, complete, line, machine, ring, switch
from tests.planner.plans import collective_plan
from treadle.planner import resources
from treadle.planner.documents import store
from treadle.planner.documents.hardware import Hardware, Network, Nic, PcieSwitch, Switch, scaled
from treadle.planner.documents.sketch import Sketch
from treadle.planner.errors import InputError
from treadle.planner.passes.collective.automorphisms import generators, keeps, structure
from treadle.planner.passes.collective.gates import gates_of
from treadle.planner.passes.collective.problem import build_problem
from treadle.planner.passes.collective.sketching import proposal, propose, to_yaml
from treadle.planner.passes.collective.topology import build_topology

NET = Network(kind="ib", alpha_us=2, beta_us_per_MB=100)
KINDS = ("allgather", "alltoall", "allreduce", "reducescatter", "broadcast", "reduce")


def shipped(name: str, nodes: int) -> Hardware:
    return scaled(store.load(resources.locate("profiles", name), Hardware), nodes)


def networked() -> list[str]:
    return [
        name
        for name in resources.names("profiles")
        if store.load(resources.locate("profiles", name), Hardware).network is not None
    ]


def cluster(devices: int, nodes: int, **more) -> Hardware:
    fabric = Switch(name="fabric", kind="nvswitch", members=tuple(range(devices)), alpha_us=1, beta_us_per_MB=8)
    return machine(devices, (), nodes=nodes, network=NET, switches=(fabric,), **more)


def nics(*groups: tuple[int, ...], pcie: tuple[str | None, ...] = ()) -> tuple[Nic, ...]:
    homes = pcie or (None,) * len(groups)
    return tuple(Nic(name=f"n{i}", devices=group, pcie=homes[i]) for i, group in enumerate(groups))


# Soundness


MACHINES = [
    (name, nodes)
    for name in resources.names("profiles")
    if not store.load(resources.locate("profiles", name), Hardware).other_nodes
    for nodes in ((1, 2, 3, 4) if name in networked() else (1,))
]


@pytest.mark.parametrize(("name", "nodes"), MACHINES)
def test_every_shipped_profile_gets_a_sketch_that_states_every_problem(name, nodes):
    hardware = shipped(name, nodes)
    jobs = ((None, None), ("allgather", 1024), ("alltoall", 2**18), ("allreduce", 2**28))
    for collective, size in jobs[: 2 if nodes > 2 else 4]:
        made = proposal(hardware, collective=collective, size_bytes=size)
        assert store.loads(to_yaml(made), "s.yaml", Sketch) == made.sketch
        for kind in KINDS if collective is None and nodes in (1, 2) else (collective or "allgather",):
            build_problem(kind, hardware, made.sketch, size or MB)
    build_problem("broadcast", hardware, propose(hardware, collective="broadcast", size_bytes=2**26))


def test_a_proposal_is_the_same_every_time():
    hardware = shipped("dgx2", 4)
    assert proposal(hardware) == proposal(hardware)


def test_devices_that_cannot_reach_each_other_are_named():
    apart = machine(3, both((0, 1)), nodes=2, network=NET)
    with pytest.raises(InputError, match="no path from device 0 to device 2"):
        propose(apart)


@given(st.permutations(range(6)), st.sampled_from([((0, 1, 2), (3, 4, 5)), ((0, 1), (2, 3), (4, 5)), ((0, 1, 2, 3),)]))
def test_any_numbering_of_a_machine_gets_a_sound_sketch(names, groups):
    """Rings of six devices with NICs, in every numbering."""
    pairs = [(names[i], names[(i + 1) % 6]) for i in range(6)]
    seats = nics(*(tuple(sorted(names[d] for d in group)) for group in groups))
    hardware = machine(6, both(*pairs), nodes=2, network=NET, nics=seats)
    for size in (1024, 2**22, None):
        sketch = propose(hardware, collective="allgather", size_bytes=size)
        build_problem("allgather", hardware, sketch, size or MB)


# Between nodes


def test_a_nic_for_each_device_makes_rails():
    sketch = propose(shipped("ndv5", 4))
    assert sketch.internode_sketch.internode_conn == "direct-map"
    assert sketch.internode_sketch.chunk_to_relay_map == (1, 0)
    assert sketch.ib_ports == "per_nic"
    assert sketch.symmetry_offsets == ((8, 32), (1, 8, 32))


def test_large_chunks_leave_by_the_devices_beside_the_nic():
    homes = (PcieSwitch(name="a", devices=(0, 1)), PcieSwitch(name="b", devices=(2, 3)))
    hardware = cluster(4, 2, nics=nics((0, 1, 2, 3), pcie=("b",)), pcie=homes)
    inter = propose(hardware, collective="allgather", size_bytes=2**24).internode_sketch
    assert (inter.internode_conn, inter.chunk_to_relay_map) == ({"2": (3,)}, (4, 2))


def test_small_chunks_share_the_nic():
    hardware = cluster(4, 2, nics=nics((0, 1), (2, 3)))
    sketch = propose(hardware, collective="allgather", size_bytes=1024)
    assert sketch.internode_sketch.beta_split == dict.fromkeys("0123", 2)
    assert (sketch.internode_sketch.internode_conn, sketch.ib_ports) == ("direct-map", "per_device")
    assert sketch.internode_sketch.chunk_to_relay_map is None


def test_relays_without_a_formula_are_listed():
    hardware = cluster(4, 2, nics=nics((0, 3), (1, 2)))
    inter = propose(hardware).internode_sketch
    assert inter.internode_conn == {"0": (3,), "1": (2,)}
    assert inter.gpus_to_sender_rev_map == {"0": (0, 3), "1": (1, 2)}


def test_devices_without_a_nic_use_the_nearest():
    homes = (
        PcieSwitch(name="left", numa=0, devices=(0, 1)),
        PcieSwitch(name="right", numa=1, devices=(2, 3)),
    )
    hardware = cluster(4, 2, nics=nics((0,), (3,), pcie=("left", "right")), pcie=homes)
    gates = gates_of(hardware, "allgather", 2**24)
    assert gates.sender_of == (0, 0, 3, 3)


def test_a_broadcast_may_leave_by_any_sender():
    assert propose(shipped("dgx1", 2)).internode_sketch.chunk_to_relay_map == (2, 0)
    rooted = propose(shipped("dgx1", 2), collective="broadcast", size_bytes=2**24)
    assert rooted.internode_sketch.chunk_to_relay_map is None
    assert (rooted.symmetry_offsets, rooted.symmetries) == ((), ())
    assert rooted.hyperparameters.input_chunkup > 1


@pytest.mark.parametrize(("profile", "nodes"), [("ndv5", 64), ("ndv4", 128), ("ndv2", 128), ("dgx2", 64)])
def test_large_machines_keep_few_links(profile, nodes):
    hardware = shipped(profile, nodes)
    sketch = propose(hardware, collective="allgather", size_bytes=2**28)
    links = build_topology(hardware, sketch, MB).routing.links
    assert len(links) <= nodes * hardware.devices_per_node * (hardware.devices_per_node + nodes)
    rest = build_problem("allgather", hardware, sketch, restricted=False)
    assert rest.ranks == nodes * hardware.devices_per_node


# Inside nodes, pieces


def test_switches_and_direct_links_are_told_apart():
    assert propose(switch(4)).intranode_sketch.strategy == "switch"
    assert propose(ring(4)).intranode_sketch.strategy == "direct"
    fabric = Switch(name="pcie", kind="pcie", members=(0, 1, 2), alpha_us=5, beta_us_per_MB=80)
    mixed = propose(machine(3, both((0, 1)), switches=(fabric,)), collective="allgather", size_bytes=2**24)
    assert mixed.intranode_sketch.strategy == "direct"
    assert mixed.intranode_sketch.switch_hyperedge_strategy == ("uc-min",)


@pytest.mark.parametrize(
    ("collective", "size", "policy", "pieces"),
    [
        ("allgather", 1024, "uc-max", 1),
        ("allgather", 2**22, "uc-min", 2),
        ("allreduce", 2**22, "uc-min", 2),
        ("alltoall", 2**24, "uc-min", 1),
        (None, None, "auto", 1),
    ],
)
def test_policy_and_pieces_follow_the_chunk(collective, size, policy, pieces):
    sketch = propose(switch(4), collective=collective, size_bytes=size)
    assert sketch.intranode_sketch.switch_hyperedge_strategy == (policy,)
    assert sketch.hyperparameters.input_chunkup == pieces


def test_a_pipeline_on_a_line_has_the_best_number_of_pieces():
    """Spec 6.4: alpha 1, beta * S 8, four devices: four pieces are best."""
    assert propose(line(4), collective="broadcast", size_bytes=MB).hyperparameters.input_chunkup == 4


# Symmetry


def order_of(hardware: Hardware, size: int | None = None) -> int:
    gates = gates_of(hardware, "allgather", size) if hardware.nodes > 1 else None
    return generators(hardware, gates)[1]


def test_groups_have_the_order_that_theory_gives():
    assert order_of(ring(6)) == 6
    assert order_of(complete(5)) == 5
    assert order_of(line(4)) == 2
    assert order_of(line(3)) == 1
    assert order_of(shipped("ndv2", 1)) == 4
    assert order_of(shipped("ndv2", 2)) == 1
    assert order_of(shipped("ndv2", 2), 1024) == 4
    assert order_of(shipped("dgx2", 2)) == 8


def test_a_mirror_that_no_rotation_expresses_is_listed():
    sketch = propose(line(4))
    assert sketch.symmetry_offsets == ()
    assert [symmetry.perm for symmetry in sketch.symmetries] == [(3, 2, 1, 0)]
    plan = collective_plan("allgather", line(4), sketch, size_bytes=MB, method="milp")
    assert plan.prediction.time_us == 27


@given(st.permutations(range(5)), st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=8))
def test_generators_are_symmetries_that_fix_no_device(names, extra):
    pairs = {(names[i], names[(i + 1) % 5]) for i in range(5)} | {(a, b) for a, b in extra if a != b}
    hardware = machine(5, sorted(pairs))
    found, order = generators(hardware, None)
    graph = structure(hardware, None)
    for one in found:
        assert keeps(graph, one.perm)
        assert all(device != image for device, image in enumerate(one.perm))
    free = [p for p in permutations(range(5)) if keeps(graph, p) and all(i != j for i, j in enumerate(p))]
    assert order == (5 if free else 1)  # five is prime: only a rotation of all moves every device


def test_symmetry_does_not_cross_unequal_nics():
    even = cluster(4, 2, nics=nics((0, 1), (2, 3)))
    odd = replace(even, nics=nics((0, 1, 2), (3,)))
    assert order_of(even, 2**24) == 2
    assert order_of(odd, 2**24) == 1


def test_more_ranks_than_can_be_planned_are_refused_at_once():
    with pytest.raises(InputError, match="found 100000000000 nodes of 8 devices, expected at most 1024 ranks"):
        propose(shipped("ndv2", 10**11))
