"""TACCL's own files: every sketch and topology of the public release, and what is refused."""

from __future__ import annotations

import json
from collections import Counter

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.planner.plans import collective_plan
from treadle.planner import resources
from treadle.planner.documents import store
from treadle.planner.documents.hardware import Hardware, scaled
from treadle.planner.documents.parsing import parse
from treadle.planner.documents.sketch import Sketch
from treadle.planner.documents.taccl_files import hardware_of, is_topology, remarks
from treadle.planner.errors import InputError
from treadle.planner.machine.nodes import expand
from treadle.planner.passes.collective.problem import build_problem

SKETCH = {
    "nnodes": 2,
    "intranode_sketch": {"strategy": "none"},
    "internode_sketch": {"strategy": "relay", "internode_conn": {"0": [1]}},
    "symmetry_offsets": [[8, 16]],
    "hyperparameters": {"input_chunkup": 1},
}
NDV2 = {
    "name": "NDv2_1MB",
    "gpus_per_node": 8,
    "nics_per_node": 1,
    "alpha": 0.3,
    "node_betas_list": [23, 46],
    "node_invbws_list": [23, 46],
    "remote_invbw": 107,
    "remote_alpha": 2.6,
    "remote_beta": 105,
}


def sketch(**changes) -> Sketch:
    raw = {**SKETCH, **changes}
    return store.loads(json.dumps({key: value for key, value in raw.items() if value is not None}), "a.json", Sketch)


def hardware(**changes) -> Hardware:
    raw = {**NDV2, **changes}
    return hardware_of({key: value for key, value in raw.items() if value is not None}, "t.json")


# Sketches


def test_a_sketch_without_kind_takes_its_name_from_the_file():
    found = store.loads(json.dumps(SKETCH), "some/sk1.json", Sketch)
    assert (found.name, found.num_nodes, found.intranode_sketch.strategy) == ("sk1", 2, "direct")
    assert (found.ib_ports, found.contiguity.links) == ("per_nic", ("ib",))
    assert store.loads(store.dumps(found), "b.json", Sketch) == found


def test_the_listing_of_the_source_keeps_its_own_fields():
    listing = """{ // dgx2-sk-1
      "intranode_sketch": {"strategy": "switch", "switches": [[0, 1]], "switch_hyperedge_strategy": ["uc-min"]},
      "internode_sketch": {"strategy": "relay", "internode_conn": {"1": [0]}, "beta_split": {"1": 1},
                           "chunk_to_relay_map": [2, 1]},
      "symmetry_offsets": [[2, 4]], "hyperparameters": {"input_chunkup": 2, "input_size": "1M"},
      "num_nodes": 2, "ib_ports": "per_nic",
      "contiguity": {"links": ["ib"], "max_run": 6, "require_memory_contiguous": true}, "instances": 8,
      "order": {"modes": ["earliest", "remaining"], "directions": ["forward", "backward"]},
      "time_limit_s": {"routing": 1800, "scheduling": 1800} }"""
    found = store.loads(listing, "dgx2-sk-1.json", Sketch)
    assert (found.instances, found.time_limit_s.routing, found.sizes) == (8, 1800, (2**20,))
    assert remarks(parse(listing, "x")) == ()


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"intranode_sketch": {"strategy": "minmax"}}, "strategy minmax"),
        ({"intranode_sketch": {"strategy": "maxmin"}}, "strategy maxmin"),
        (
            {"internode_sketch": {**SKETCH["internode_sketch"], "enforce_ordering": True}},
            "enforce_ordering: not carried over",
        ),
        (
            {
                "intranode_sketch": {
                    "strategy": "switch",
                    "switches": [[0, 1], [0, 1], [2, 3]],
                    "switch_hyperedge_strategy": ["uc-min", "uc-min", "uc-max"],
                }
            },
            "listed several times",
        ),
    ],
)
def test_what_is_not_carried_over_is_named(change, word):
    assert any(word in remark for remark in remarks({**SKETCH, **change}))
    found = sketch(**change)
    if found.intranode_sketch.strategy == "switch":
        assert found.intranode_sketch.switches == ((0, 1), (2, 3))
        assert found.intranode_sketch.switch_hyperedge_strategy == ("uc-min", "uc-max")


def test_an_unknown_field_is_refused_where_it_stands():
    with pytest.raises(InputError) as error:
        sketch(internode_sketch={**SKETCH["internode_sketch"], "relay_speed": 3})
    assert error.value.path == "$.internode_sketch.relay_speed"


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 20) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@given(
    st.dictionaries(
        st.sampled_from(["intranode_sketch", "internode_sketch", "nnodes", "symmetry_offsets", "hyperparameters"]),
        anything | st.dictionaries(st.sampled_from(["strategy", "switches", "internode_conn"]), anything, max_size=3),
        max_size=5,
    )
)
def test_whatever_a_file_holds_it_loads_or_is_refused(raw):
    try:
        store.loads(json.dumps(raw), "x.json", Sketch)
    except InputError:
        return
    assert isinstance(remarks(raw), tuple)


@pytest.mark.parametrize("key", ["TopologyParams", "InstanceParams"])
def test_teccl_inputs_are_refused_by_name(key):
    with pytest.raises(InputError, match=f"TE-CCL input \\({key}\\)"):
        store.loads(json.dumps({key: {"name": "NDv2"}}), "x.json", Sketch)


def test_a_topology_is_no_document():
    with pytest.raises(InputError, match="treadle profile import"):
        store.loads(json.dumps(NDV2), "x.json", Hardware)


# Topologies


def test_the_ndv2_graph_is_that_of_the_shipped_profile():
    shipped = store.load(resources.locate("profiles", "ndv2"), Hardware)

    def graph(one: Hardware) -> nx.DiGraph:
        found = nx.DiGraph()
        found.add_edges_from((link.src, link.dst, {"count": link.count}) for link in one.links)
        return found

    alike = nx.is_isomorphic(graph(hardware()), graph(shipped), edge_match=lambda a, b: a["count"] == b["count"])
    assert alike
    doubled = {(link.src, link.dst) for link in hardware().links if link.count == 2}
    assert {(0, 1), (0, 4), (1, 3), (2, 6), (6, 7), (5, 7)} <= doubled
    assert {link.beta_us_per_MB for link in hardware().links} == {46}


def test_costs_are_divided_by_the_message_and_the_scale():
    raw = {**NDV2, "name": "x", "alpha": 30, "node_betas_list": [2.25, 4.5], "remote_alpha": 260, "remote_beta": 10.25}
    found = hardware_of(raw, "t.json", message_bytes=1024, scale=100)
    single = next(link for link in found.links if link.count == 1)
    assert (single.alpha_us, single.beta_us_per_MB) == pytest.approx((0.3, 46.08))
    assert (found.network.alpha_us, found.network.beta_us_per_MB) == pytest.approx((2.6, 104.96))
    assert "times 100" in found.sources["links"]


def test_the_message_size_comes_from_the_name_and_the_profile_says_so():
    assert "assumed from the name 'NDv2_1MB'" in hardware().sources["network"]
    for name in ("plain", None, 7, "x32"):
        with pytest.raises(InputError, match="--message-size"):
            hardware(name=name)


def test_one_beta_is_a_switch_of_all_devices():
    found = hardware(name="DGX2_1KB", gpus_per_node=4, nics_per_node=2, node_betas_list=[1], alpha=2)
    (switch,) = found.switches
    assert (switch.members, switch.alpha_us, switch.beta_us_per_MB) == ((0, 1, 2, 3), 2, 1024)
    assert [nic.devices for nic in found.nics] == [(0, 1), (2, 3)]


def test_a_link_matrix_is_indexed_by_destination_first():
    links, betas = [[0, 0], [2, 0]], [[0, 0], [8, 0]]
    found = hardware(gpus_per_node=2, node_betas_list=None, links=links, betas=betas, nics_per_node=None)
    assert [(link.src, link.dst, link.count, link.beta_us_per_MB) for link in found.links] == [(0, 1, 2, 8)]
    assert found.network is None


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"alpha": "fast"}, "$.alpha"),
        ({"alpha": -1}, "$.alpha"),
        ({"gpus_per_node": 0}, "$.gpus_per_node"),
        ({"gpus_per_node": 10**9}, "$.gpus_per_node"),
        ({"nics_per_node": 9}, "$.nics_per_node"),
        ({"node_betas_list": None}, "$.node_betas_list"),
        ({"node_betas_list": [1, 2, 3]}, "$.node_betas_list"),
        ({"remote_beta": None}, "$.remote_beta"),
        ({"links": [[1]], "betas": [[1]]}, "$.links"),
        ({"gpus_per_node": 1, "links": [["x"]], "betas": [[1]]}, "$.links[0]"),
    ],
)
def test_bad_topologies_are_refused_where_they_are_bad(change, path):
    with pytest.raises(InputError) as error:
        hardware(**change)
    assert error.value.path == path


# The files themselves


@pytest.fixture(scope="module")
def released(data_dir):
    def read(name: str):
        path = data_dir / "taccl" / name
        return parse(path.read_text(), str(path)), path

    return read


def released_hardware(released, name: str, nodes: int = 1) -> Hardware:
    raw, path = released(f"topo/{name}.json")
    return scaled(hardware_of(raw, str(path)), nodes)


def test_every_released_topology_is_a_profile(released, data_dir):
    paths = sorted((data_dir / "taccl" / "topo").glob("*.json"))
    assert len(paths) == 5
    for path in paths:
        found = released_hardware(released, path.stem, 2)
        assert store.loads(store.dumps(found), path.name, Hardware) == found
        assert len(expand(found).links) == (32 * 2 + 128 if "ndv2" in path.stem else 240 * 2 + 512)


def test_every_released_sketch_states_a_problem(released, data_dir):
    paths = sorted((data_dir / "taccl" / "sketch").glob("*.json"))
    assert len(paths) == 11
    counts = Counter()
    for path in paths:
        found = store.load(path, Sketch)
        machine = released_hardware(
            released, "topo-dgx2-1MB" if "dgx2" in path.stem else "topo-ndv2-1MB", found.num_nodes
        )
        for collective in ("allgather", "alltoall"):
            problem = build_problem(collective, machine, found, 2**20)
            counts[path.stem] += len(problem.ties)
    assert counts["sk1-dgx2-n2"] == 4
    assert counts["sk1-ndv2-n4"] == 2


@pytest.mark.parametrize(
    ("name", "topology", "floor"),
    [
        ("sk1-ndv2-n2", "topo-ndv2-1MB", 8 * 107.6),  # eight chunks of 2.6 + 105 us through one NIC
        ("sk1-ndv2-n1", "topo-ndv2-1MB", 23.3 + 23.3),
        ("sk2-dgx2-n2", "topo-dgx2-1MB", 2 * 107.6),  # two devices of a NIC take turns
    ],
)
def test_released_files_are_planned_with(released, name, topology, floor):
    found = store.load(released(f"sketch/{name}.json")[1], Sketch)
    machine = released_hardware(released, topology, found.num_nodes)
    plan = collective_plan("allgather", machine, found, size_bytes=2**20, method="milp")
    assert plan.certificate.verdict == "accepted"
    assert plan.decisions.routing_ns >= floor * 1000
    assert plan.prediction.time_us < 1.5 * floor + 300


def test_released_teccl_samples_are_refused(released, data_dir):
    for path in sorted((data_dir / "taccl" / "teccl").glob("*sample.json")):
        with pytest.raises(InputError, match="TE-CCL input"):
            store.load(path, Sketch)
        assert not is_topology(parse(path.read_text(), path.name))
