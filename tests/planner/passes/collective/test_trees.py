"""Tree packings: valid for every collective they take, near the cut bound on known machines, and repeatable."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as with_fields

from tests.planner.passes.collective.build import (
    MB,
    MESH,
    both,
    complete,
    line,
    machine,
    problem_for,
    ring,
    shipped,
    switch,
)
from tests.planner.plans import collective_plan
from treadle.planner.documents.sketch import IntranodeSketch
from treadle.planner.errors import InputError
from treadle.planner.passes.collective import packing, steady, trees
from treadle.planner.passes.collective.branchings import branchings
from treadle.planner.passes.collective.check import check
from treadle.planner.passes.collective.decisions import decisions_of
from treadle.planner.passes.collective.fabric import fabric_of
from treadle.planner.passes.collective.limits import Effort
from treadle.planner.passes.collective.synthesis import Request
from treadle.planner.passes.collective.universal import congestion

SPREADING = ("allgather", "reducescatter", "allreduce", "broadcast", "reduce")


def drafted(collective, hardware, size=MB, sketch=MESH, root=0):
    return trees.synthesize(Request(collective, hardware, sketch, size, root), Effort())


def te_ccl_ndv2(nodes):
    """NDv2 with the link speeds of TE-CCL: 25 GB/s per NVLink, one NIC of 12.5 GB/s per node, pipelined latency."""
    hardware, sketch = shipped("ndv2", nodes, "mesh")
    links = tuple(with_fields(link, alpha_us=0.7, beta_us_per_MB=MB / 25e3) for link in hardware.links)
    network = with_fields(hardware.network, alpha_us=1.3, beta_us_per_MB=MB / 12.5e3)
    return with_fields(hardware, links=links, network=network, latency="pipelined"), sketch


def te_ccl_dgx2(nodes):
    """DGX-2 with 125 GB/s per port; of two GPUs on a NIC of 12.5 GB/s one sends and the other receives."""
    hardware, sketch = shipped("dgx2", nodes, "dgx2-sk-1")
    fabric = tuple(with_fields(s, alpha_us=0.7, beta_us_per_MB=MB / 125e3) for s in hardware.switches)
    network = with_fields(hardware.network, alpha_us=2.6, beta_us_per_MB=MB / 12.5e3)
    sketch = with_fields(
        sketch,
        intranode_sketch=IntranodeSketch(strategy="direct"),
        internode_sketch=with_fields(sketch.internode_sketch, chunk_to_relay_map=None),
    )
    return with_fields(hardware, switches=fabric, network=network, latency="pipelined"), sketch


@pytest.mark.parametrize("latency", ["serial", "pipelined"])
@pytest.mark.parametrize("hardware", [ring(5), line(3), complete(4), switch(5)])
@pytest.mark.parametrize("collective", SPREADING)
def test_every_draft_passes_the_checker(collective, hardware, latency):
    draft = drafted(collective, with_fields(hardware, latency=latency), root=1 if collective in SPREADING[3:] else 0)
    assert check(decisions_of(draft, None, None)) == []


@st.composite
def machines(draw):
    """A ring with chords whose links, in both directions, have any cost."""
    n = draw(st.integers(2, 6))
    pairs = {frozenset((i, (i + 1) % n)) for i in range(n)} | {
        frozenset(pair) for pair in draw(st.lists(st.permutations(range(n)).map(lambda p: p[:2]), max_size=4))
    }
    costs = {pair: (draw(st.integers(0, 5)), draw(st.integers(1, 9))) for pair in sorted(pairs, key=sorted)}
    return machine(n, [(a, b, *cost) for pair, cost in costs.items() for a, b in both(tuple(sorted(pair)))])


@settings(max_examples=15, deadline=None)
@given(hardware=machines(), collective=st.sampled_from(SPREADING), size=st.sampled_from((64, 100_003)))
def test_any_machine_gets_a_plan_within_its_certificate(hardware, collective, size):
    plan = collective_plan(collective, hardware, MESH, size_bytes=size, method="trees")
    assert plan.certificate.lower_bound <= plan.decisions.makespan_ns
    assert plan.certificate.argument.startswith("Whatever the pieces, routes and orders, ")


@pytest.mark.parametrize(
    ("nodes", "size", "reached"),
    [(2, 2**30 // 16, 24.5), (4, 2**30 // 32, 16.3)],
)
def test_ndv2_allgather_of_1_GB_reaches_the_bound(nodes, size, reached):
    hardware, sketch = te_ccl_ndv2(nodes)
    draft = drafted("allgather", hardware, size, sketch)
    assert 8 * nodes * size / draft.makespan_ns >= reached


def test_dgx2_allgather_of_1_GB_is_the_bound_and_one_alpha():
    hardware, sketch = te_ccl_dgx2(2)
    plan = collective_plan("allgather", hardware, sketch, size_bytes=2**30 // 32, method="trees")
    assert plan.decisions.makespan_ns <= plan.certificate.lower_bound * 1.0001
    assert 2**30 / plan.decisions.makespan_ns == pytest.approx(129.03, rel=1e-4)


def test_an_allreduce_takes_about_twice_the_allgather_bound():
    hardware, sketch = te_ccl_ndv2(2)
    draft = drafted("allreduce", hardware, 2**28, sketch)
    bound = congestion(problem_for("allgather", hardware, sketch, 2**28 // 16))
    assert draft.makespan_ns <= 2 * 1.05 * bound


def test_small_buffers_travel_in_one_piece():
    assert drafted("broadcast", line(4), 4).problem.chunkup == 1
    assert drafted("broadcast", line(4), 64 * MB).problem.chunkup > 4


@pytest.mark.parametrize("collective", ["alltoall", "gather", "scatter"])
def test_collectives_that_do_not_spread_are_refused_by_name(collective):
    with pytest.raises(InputError, match=f"which {collective} does not ask for"):
        drafted(collective, ring(4))


def test_a_rank_that_cannot_be_reached_is_named():
    with pytest.raises(InputError, match="rank 1 cannot reach rank 0"):
        drafted("allgather", machine(2, [(0, 1)]))


def test_equal_requests_give_equal_drafts():
    assert drafted("allreduce", ring(5)).transfers == drafted("allreduce", ring(5)).transfers


# Fabric and packing.


@pytest.mark.parametrize(
    ("hardware", "shift"),
    [(ring(6), 1), (switch(4), 1), (line(4), 4), (shipped("ndv2", 3, "mesh")[0], 8), (complete(5), 1)],
)
def test_the_least_rotation_is_found(hardware, shift):
    assert fabric_of(problem_for("allgather", hardware)).shift == shift


def test_a_rooted_collective_has_no_rotation():
    problem = problem_for("broadcast", ring(6))
    assert fabric_of(problem, rotate=False).shift == 6


@pytest.mark.parametrize("hardware", [ring(5), switch(6), complete(4), shipped("ndv2", 1, "mesh")[0]])
def test_packed_trees_span_and_their_load_is_what_is_told(hardware):
    problem = problem_for("allgather", hardware)
    fabric = fabric_of(problem, rotate=False)
    least = congestion(problem)
    for found in packing.pack(fabric, range(problem.ranks), least):
        assert found.busy_ns >= least
        load: dict[object, int] = {}
        for tree in found.trees:
            assert sorted(tree.order) == list(range(problem.ranks))
            for rank in tree.order[1:]:
                assert tree.order.index(tree.parent[rank]) < tree.order.index(rank)
                link = problem.links[tree.parent[rank], rank]
                load[link.src, link.dst] = load.get((link.src, link.dst), 0) + link.beta_ns
                for port in problem.ports:
                    if (link.src, link.dst) in port.links:
                        load[port.name] = load.get(port.name, 0) + link.beta_ns
        assert max(load.values()) == found.busy_ns


def test_a_switch_is_never_idle_with_all_parts_at_hand():
    problem = problem_for("allgather", switch(6))
    fabric = fabric_of(problem, rotate=False)
    (first, *_) = packing.pack(fabric, range(6), Fraction(5 * 8000))
    steps = steady.periodic(fabric, first.trees, 3, rule="path", pipelined=True, sums=False)
    assert steady.ends(fabric, steps) == 15 * 8_000 + 1_000


# Exact packings.


@settings(max_examples=15, deadline=None)
@given(hardware=machines(), count=st.integers(1, 3))
def test_branchings_exist_at_the_cut_bound_of_integral_links(hardware, count):
    """Edmonds: with T a common multiple of all betas nothing is rounded, and as many trees fit as the least cut."""
    hardware = with_fields(hardware, links=tuple(with_fields(li, beta_us_per_MB=1.0) for li in hardware.links))
    problem = problem_for("broadcast", hardware)
    fabric = fabric_of(problem, rotate=False)
    fits = int(Fraction(1000 * count) / congestion(problem))
    trees_of_root = branchings(fabric, [0] * fits, Fraction(1000 * count))
    assert trees_of_root is not None
    assert branchings(fabric, [0] * (fits + 1), Fraction(1000 * count)) is None
    used: dict[tuple[int, int], int] = {}
    for parent in trees_of_root:
        assert parent[0] == -1
        for rank, above in enumerate(parent):
            seen = set()
            while above >= 0:
                assert above not in seen
                seen.add(above)
                above = parent[above]
            if parent[rank] >= 0:
                used[parent[rank], rank] = used.get((parent[rank], rank), 0) + 1
    assert max(used.values()) <= count


def test_a_broadcast_on_the_graph_of_ndv2_uses_all_six_links_of_the_root():
    hardware, sketch = shipped("ndv2", 1, "mesh")
    problem = problem_for("broadcast", hardware, sketch)
    (found,) = packing.pack(fabric_of(problem, rotate=False), [0] * 6, congestion(problem) * 6)
    assert found.busy_ns == 46_000
