"""Each field of a sketch acts on the model: what it forbids is gone, what it asks for shows in the plan."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.planner.passes.collective.build import (
    MB,
    MESH,
    both,
    complete,
    line,
    machine,
    problem_for,
    relay,
    relay_sketch,
    ring,
    shipped,
    stages,
    switch,
)
from tests.planner.plans import collective_plan
from treadle.planner.documents import store
from treadle.planner.documents.hardware import Network, Nic, Switch
from treadle.planner.documents.sketch import (
    Contiguity,
    Hyperparameters,
    InternodeSketch,
    IntranodeSketch,
    Order,
    Sketch,
    Symmetry,
    TimeLimits,
)
from treadle.planner.errors import InputError, LimitError
from treadle.planner.passes.collective.limits import Effort, Limits
from treadle.planner.passes.collective.problem import build_problem
from treadle.planner.passes.collective.routing import route, routing_model, tied_transfers
from treadle.planner.passes.collective.symmetry import rank_maps
from treadle.planner.passes.collective.topology import build_topology, relays_of

TURN = ((0, 1), (1, 2), (2, 3), (3, 0))


def milp(collective, hardware, sketch, size=MB):
    return collective_plan(collective, hardware, sketch, size_bytes=size, method="milp")


def two_groups() -> Sketch:
    intra = IntranodeSketch(
        strategy="switch", switches=((0, 1, 2), (2, 3, 4)), switch_hyperedge_strategy=("uc-min", "uc-max")
    )
    return Sketch(version=1, name="two", intranode_sketch=intra)


def clusters(nodes: int, devices: int, **more):
    """Nodes of fully linked devices with one NIC each, or none."""
    pairs = [(a, b) for a in range(devices) for b in range(devices) if a != b]
    net = Network(kind="ib", alpha_us=10, beta_us_per_MB=20)
    return machine(devices, pairs, nodes=nodes, network=net, **more)


def senders(**connections) -> InternodeSketch:
    return InternodeSketch(strategy="relay", **connections)


# Links


def test_links_that_a_sketch_leaves_out_are_not_used():
    one_way = replace(MESH, intranode_sketch=IntranodeSketch(strategy="direct", direct_links=TURN))
    plan = milp("allgather", ring(4), one_way)
    assert {(t.src, t.dst) for t in plan.decisions.transfers} == set(TURN)
    assert plan.prediction.time_us == 27
    assert milp("allgather", ring(4), MESH).prediction.time_us == 18


def test_each_switch_has_its_own_policy():
    fabrics = tuple(
        Switch(name=name, kind="switch", members=members, alpha_us=1, beta_us_per_MB=8)
        for name, members in (("left", (0, 1, 2)), ("right", (2, 3, 4)))
    )
    problem = problem_for("allgather", machine(5, (), switches=fabrics), two_groups())
    few, many = problem.topology.hyperedges
    assert (few.policy, many.policy) == ("uc-min", "uc-max")
    used = {edge for tree in route(problem, Effort()).trees for edge in tree}
    assert len(used & set(few.links)) == 3
    assert len(used & set(many.links)) == 6


# Between nodes


@pytest.mark.parametrize(("words", "count"), [("direct-map", 3 * 2 * 4), ("fully-connected", 3 * 2 * 16)])
def test_connections_in_words(words, count):
    sketch = replace(MESH, internode_sketch=senders(internode_conn=words))
    links = build_topology(clusters(3, 4), sketch, MB).routing.links
    across = [edge for edge in links if edge[0] // 4 != edge[1] // 4]
    assert len(across) == count
    if words == "direct-map":
        assert all(src % 4 == dst % 4 for src, dst in across)


def test_listed_senders_restrict_only_the_devices_they_name():
    given = senders(internode_conn="direct-map", gpus_to_sender_rev_map={"0": (0, 1), "2": (1, 2)})
    hardware = clusters(2, 4)
    problem = problem_for("allgather", hardware, replace(MESH, internode_sketch=given))
    assert [relays_of(replace(MESH, internode_sketch=given), rank, 4) for rank in (4, 5, 6, 7)] == [
        {4},
        {4, 6},
        {6},
        None,
    ]
    leaving = [{src for src, dst in edges if src // 4 == 0 and dst // 4 == 1} for edges in problem.allowed[:4]]
    assert leaving == [{0}, {0, 2}, {2}, {0, 1, 2, 3}]
    plan = milp("allgather", hardware, replace(MESH, internode_sketch=given))
    crossings = {(t.chunk, t.src) for t in plan.decisions.transfers if t.src < 4 <= t.dst}
    assert {(0, 0), (2, 2)} <= crossings
    assert {src for chunk, src in crossings if chunk == 1} <= {0, 2}


def test_a_listed_sender_must_be_allowed_to_send():
    given = senders(internode_conn={"0": (0,)}, gpus_to_sender_rev_map={"1": (0, 1)})
    with pytest.raises(InputError, match="gpus_to_sender_rev_map: found relay 1"):
        build_topology(clusters(2, 2), replace(MESH, internode_sketch=given), MB)


def test_both_ways_to_name_relays_at_once_are_refused():
    given = senders(internode_conn="direct-map", chunk_to_relay_map=(1, 0), gpus_to_sender_rev_map={"0": (0,)})
    sketch = replace(MESH, internode_sketch=given)
    with pytest.raises(InputError, match="expected one of the two"):
        store.loads(store.dumps(sketch), "s", Sketch)


def test_shares_of_a_nic_lengthen_the_plan():
    hardware = clusters(2, 2)
    whole = replace(MESH, ib_ports="none", internode_sketch=senders(internode_conn="direct-map"))
    half = senders(internode_conn="direct-map", beta_split={"0": 2, "1": 2})
    split = replace(whole, internode_sketch=half)
    assert milp("allgather", hardware, whole).prediction.time_us == 39
    assert milp("allgather", hardware, split).prediction.time_us == 59


def test_a_nic_is_a_port_of_all_its_devices_on_four_nodes():
    nics = (Nic(name="a", devices=(0, 1)), Nic(name="b", devices=(2, 3)))
    sketch = replace(MESH, ib_ports="per_nic", internode_sketch=senders(internode_conn="direct-map"))
    topology = build_topology(clusters(4, 4, nics=nics), sketch, MB)
    ports = {port.name: port.links for port in topology.plan.ports}
    assert sorted(ports["nic 0 out"]) == sorted((d, node * 4 + d) for d in (0, 1) for node in (1, 2, 3))
    assert len(ports) == 2 * 4 * 2
    assert {len(links) for links in ports.values()} == {6}


def test_1024_ranks_on_rails_keep_few_links():
    hardware, _ = shipped("ndv5", 128, "mesh")
    rails = replace(MESH, internode_sketch=senders(internode_conn="direct-map"), ib_ports="per_nic")
    topology = build_topology(hardware, rails, MB)
    assert len(topology.routing.links) == 128 * 56 + 128 * 127 * 8
    assert len([port for port in topology.plan.ports if port.name.startswith("nic ")]) == 2 * 1024


# Symmetry


def symmetric(problem, trees) -> bool:
    """Whether the routing itself is symmetric under every tie, inside blocks."""
    sent = {(chunk, *edge) for chunk, tree in enumerate(trees) for edge in tree}
    return all(
        ((tie.chunks[c], tie.ranks[s], tie.ranks[d]) in sent)
        for tie in problem.ties
        for c, s, d in sent
        if tie.block[s] == tie.block[d]
    )


@pytest.mark.parametrize(
    ("collective", "pieces", "symmetry"),
    [
        ("allgather", 2, {"symmetry_offsets": ((1, 4),)}),
        ("allgather", 1, {"symmetry_offsets": ((1, 2), (2, 4))}),
        ("alltoall", 2, {"symmetry_offsets": ((1, 4),)}),
        ("alltoall", 1, {"symmetries": (Symmetry(perm=(1, 0, 3, 2)), Symmetry(perm=(2, 3, 0, 1)))}),
        ("allgather", 1, {"symmetries": (Symmetry(perm=(1, 2, 3, 0), partition=((0, 1, 2, 3),)),)}),
        ("allgather", 1, {"symmetries": (Symmetry(perm=(2, 3, 0, 1), partition=((0, 1), (2, 3))),)}),
    ],
)
def test_routes_are_as_symmetric_as_asked(collective, pieces, symmetry):
    sketch = replace(MESH, hyperparameters=Hyperparameters(input_chunkup=pieces), **symmetry)
    problem = problem_for(collective, complete(4), sketch)
    free = problem_for(collective, complete(4), replace(sketch, symmetry_offsets=(), symmetries=()))
    assert len(set(tied_transfers(problem).values())) < len(set(tied_transfers(free).values()))
    assert symmetric(problem, route(problem, Effort()).trees)


def test_a_third_number_widens_the_block_of_a_rotation():
    narrow, wide = (
        next(iter(rank_maps(replace(MESH, symmetry_offsets=(numbers,)), 8, 4))) for numbers in ((1, 4), (1, 4, 8))
    )
    assert narrow.perm == wide.perm == (1, 2, 3, 0, 5, 6, 7, 4)
    assert (narrow.block, wide.block) == ((0, 0, 0, 0, 1, 1, 1, 1), (0,) * 8)


def test_a_permutation_of_one_node_acts_in_each():
    swap = Symmetry(perm=(1, 0))
    inside = Symmetry(perm=(1, 0), partition=((0, 1),))
    both_nodes, each = rank_maps(replace(MESH, symmetries=(swap, inside)), 4, 2)
    assert both_nodes.perm == each.perm == (1, 0, 3, 2)
    assert (both_nodes.block, each.block) == ((0, 0, 0, 0), (0, 0, 1, 1))
    sketch = replace(MESH, symmetries=(swap,), internode_sketch=senders(internode_conn="direct-map"))
    problem = problem_for("allgather", clusters(2, 2), sketch)
    classes = tied_transfers(problem)
    assert classes[0, 0, 2] == classes[1, 1, 3]


def test_a_rooted_collective_keeps_the_symmetries_that_leave_its_root():
    mirror = replace(MESH, symmetries=(Symmetry(perm=(0, 3, 2, 1)), Symmetry(perm=(1, 2, 3, 0))))
    assert [tie.ranks for tie in problem_for("broadcast", complete(4), mirror).ties] == [(0, 3, 2, 1)]
    assert len(problem_for("allgather", complete(4), mirror).ties) == 2


@pytest.mark.parametrize(
    ("field", "value", "path"),
    [
        ("symmetry_offsets", ((1,),), "$.symmetry_offsets[0]"),
        ("symmetry_offsets", ((1, 2, 3),), "$.symmetry_offsets[0]"),
        ("symmetry_offsets", ((1, 2, 4, 8),), "$.symmetry_offsets[0]"),
        ("order", Order(modes=()), "$.order.modes"),
        ("symmetries", (Symmetry(perm=(1, 0), partition=((0,),)),), "$.symmetries[0].partition"),
    ],
)
def test_fields_that_mean_nothing_are_refused(field, value, path):
    with pytest.raises(InputError) as error:
        store.loads(store.dumps(replace(MESH, **{field: value})), "s", Sketch)
    assert error.value.path == path


# Sizes, order, limits, batches


def test_a_list_of_sizes_needs_a_choice():
    sketch = replace(MESH, hyperparameters=Hyperparameters(input_size=("1K", "1M")))
    assert sketch.sizes == (1024, MB)
    assert store.loads(store.dumps(sketch), "s", Sketch) == sketch
    with pytest.raises(InputError, match="found 2 input sizes, expected one here or with --size"):
        build_problem("allgather", ring(4), sketch)
    assert build_problem("allgather", ring(4), sketch, 1024).input_bytes == 1024


def test_order_chooses_the_heuristics():
    """Spec 3.3: on ndv2-sk-1 `remaining` costs time; a portfolio of both takes the better one."""
    hardware, sketch = shipped("ndv2", 2, "ndv2-sk-1")
    times = {}
    for modes in (("remaining",), ("earliest",), ("remaining", "earliest")):
        plan = milp("allgather", hardware, replace(sketch, order=Order(modes=modes, directions=("forward",))))
        times[modes] = plan.decisions.ordering_ns
        assert any(f"ordering ({mode} forward)" in plan.provenance.method for mode in modes)
    assert times["earliest",] < times["remaining",]
    assert times["remaining", "earliest"] == times["earliest",]


def test_time_limits_of_a_sketch_replace_the_usual_ones():
    sketch = replace(MESH, time_limit_s=TimeLimits(routing=7))
    assert Limits().within(sketch) == Limits(routing=7.0, scheduling=Limits().scheduling)
    plan = milp("allgather", ring(4), sketch)
    assert plan.provenance.options["routing_limit"] == 7.0


def test_a_limit_too_small_for_any_proof_leaves_the_routing_unproved():
    hardware, sketch = shipped("dgx2", 2, "dgx2-sk-1")
    brief = replace(sketch, time_limit_s=TimeLimits(routing=1e-3, scheduling=1e-3))
    try:
        plan = milp("allgather", hardware, brief)
    except LimitError:
        return
    assert "routing feasible" in plan.provenance.solver_status
    assert plan.provenance.limit_fired


def test_chunks_that_do_not_touch_share_a_message_only_when_allowed():
    hardware = relay(2, 10, 5)
    apart = replace(relay_sketch(batching=True), contiguity=Contiguity(links=("ib",), max_run=64))
    loose = replace(apart, contiguity=Contiguity(links=("ib",), max_run=64, require_memory_contiguous=False))
    strict_time = stages(problem_for("alltoall", hardware, apart))[2]
    assert stages(problem_for("alltoall", hardware, loose))[2] == 38_000 < strict_time


@pytest.mark.parametrize(("run", "messages"), [(1, 2), (2, 1)])
def test_max_run_bounds_a_message(run, messages):
    sketch = replace(relay_sketch(batching=True), contiguity=Contiguity(links=("ib",), max_run=run))
    plan = milp("allgather", relay(2, 10, 5), sketch)
    assert len({t.batch for t in plan.decisions.transfers if (t.src, t.dst) == (1, 2)}) == messages


def test_comments_in_json_are_skipped():
    text = """{ // as in the listing of TACCL
      "kind": "sketch", "version": 1, "name": "a//b", // a name may hold slashes
      "intranode_sketch": {"strategy": "direct"} }"""
    assert store.loads(text, "s.json", Sketch).name == "a//b"


@pytest.mark.parametrize(("nodes", "time_ns"), [(4, 2_584_800), (10, 7_754_400)])
def test_ndv2_sk_1_on_more_nodes(nodes, time_ns):
    """Spec 3.5: T1 of the routing model, without the steps that choose among its optima."""
    hardware, sketch = shipped("ndv2", nodes, "ndv2-sk-1")
    problem = build_problem("allgather", hardware, replace(sketch, symmetry_offsets=((8, 8 * nodes),)))
    across = [edge for edge in problem.links if edge[0] // 8 != edge[1] // 8]
    assert len(across) == nodes * (nodes - 1)
    assert all((src % 8, dst % 8) == (0, 1) for src, dst in across)
    assert {len(port.links) for port in problem.ports} == {nodes - 1}
    found = Effort().solve(routing_model(problem).model, 20)
    assert found.objective == found.bound == time_ns


def test_line_and_switch_keep_their_links():
    assert len(build_topology(line(3), MESH, MB).routing.links) == 4
    assert len(build_topology(switch(4), MESH, MB).routing.links) == 12
    assert both((0, 1)) == [(0, 1), (1, 0)]
