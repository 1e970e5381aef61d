"""The templates by their textbook times, on real sketches, and on random machines against the checker."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from itertools import permutations
from math import ceil, log2

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.planner.passes.collective.build import MB, MESH, complete, line, machine, ring, shipped, switch
from tests.planner.passes.collective.test_planning import machines
from treadle.planner.documents.pattern import Pattern
from treadle.planner.documents.sketch import Contiguity
from treadle.planner.errors import InputError
from treadle.planner.machine.binary_tree import binary_tree
from treadle.planner.passes.collective.bound import lower_bound
from treadle.planner.passes.collective.check import check, check_against_inputs
from treadle.planner.passes.collective.decisions import decisions_of
from treadle.planner.passes.collective.limits import Effort
from treadle.planner.passes.collective.planning import METHODS
from treadle.planner.passes.collective.synthesis import Draft, Request
from treadle.planner.passes.collective.templates.double_tree import rooted_tree
from treadle.planner.passes.collective.templates.hamilton import cheapest_path
from treadle.planner.passes.collective.templates.ring import rings

TEMPLATES = ("all-pairs", "binomial", "double-tree", "halving-doubling", "recursive-doubling", "ring", "two-level",
             "two-level-masters")  # fmt: skip
L = 9_000  # ns: alpha 1 us and 8 us for a chunk of 1 MB
BATCHING = replace(MESH, contiguity=Contiguity(links=("switch",), max_run=64, require_memory_contiguous=False))


def made(method: str, collective: str, hardware, size: int = MB, sketch=MESH, root: int = 0, demands=None) -> Draft:
    """The draft, after the checker has accepted it, on its own and against its inputs."""
    draft = METHODS[method](Request(collective, hardware, sketch, size, root, demands), Effort())
    decisions = decisions_of(draft, None, None)
    assert check(decisions) == []
    assert check_against_inputs(decisions, hardware, sketch) == []
    return draft


def test_a_ring_takes_a_step_for_each_hop():
    assert made("ring", "allgather", ring(6, one_way=True)).makespan_ns == 5 * L


def test_links_both_ways_make_two_rings_of_half_the_bytes():
    assert made("ring", "allgather", ring(6)).makespan_ns == 5 * (1_000 + 4_000)
    assert made("ring", "reducescatter", ring(6), 6 * MB).makespan_ns == 5 * (1_000 + 4_000)
    assert made("ring", "allreduce", ring(6), 6 * MB).makespan_ns == 10 * (1_000 + 4_000)


def test_a_broadcast_goes_down_the_chain_in_pieces():
    one = made("ring", "broadcast", ring(6, one_way=True), root=2)
    assert one.problem.chunkup > 1
    assert one.makespan_ns == (one.problem.chunkup + 4) * (1_000 + 8_000 // one.problem.chunkup) == 24_000


def test_all_pairs_takes_one_hop():
    assert made("all-pairs", "allgather", complete(5)).makespan_ns == L
    assert made("all-pairs", "alltoall", complete(5), 5 * MB).makespan_ns == L
    assert made("all-pairs", "allreduce", complete(5), 5 * MB).makespan_ns == 4 * L + L  # four sums take turns


@pytest.mark.parametrize("collective", ["gather", "scatter", "sendrecv", "alltoallv", "custom"])
def test_all_pairs_and_two_levels_serve_every_pattern(collective):
    hardware, sketch = shipped("dgx2", 2, "dgx2-sk-2")
    more = {
        "sendrecv": {"pairs": tuple((rank, (rank + 16) % 32) for rank in range(32))},
        "alltoallv": {"counts": tuple(tuple((a * b) % 3 for b in range(32)) for a in range(32))},
        "custom": {"chunks": ({"before": [0, 17], "after": [3, 18, 31]}, {"before": [5], "after": [0]})},
    }.get(collective)
    demands = None
    if more is not None:
        import msgspec

        demands = msgspec.convert({"kind": "pattern", "version": 1, "name": "p", **more}, Pattern).demands
    size = 32 * MB if collective == "scatter" else MB
    made("two-level", collective, hardware, size, sketch, root=0, demands=demands)
    made("all-pairs", collective, *shipped("dgx2", 2, "mesh")[:1], size, MESH, demands=demands)


def test_a_binomial_tree_doubles_the_informed():
    assert made("binomial", "broadcast", switch(8), root=3).makespan_ns == 3 * L
    assert made("binomial", "reduce", switch(8), root=3).makespan_ns == 3 * L
    assert made("binomial", "allreduce", switch(8)).makespan_ns == 6 * L
    assert made("binomial", "allreduce", switch(8)).problem.roots is not None


@pytest.mark.parametrize(("ranks", "rounds"), [(2, 1), (4, 2), (6, 4), (8, 3)])
def test_recursive_doubling_takes_half_of_a_tree(ranks, rounds):
    draft = made("recursive-doubling", "allreduce", switch(ranks))
    assert draft.makespan_ns == rounds * L
    if ranks & (ranks - 1) == 0:
        assert lower_bound(draft.problem).time_ns == draft.makespan_ns


@pytest.mark.parametrize("sketch", ["dgx2-sk-1", "ndv2-sk-1"])
def test_two_nodes_double_by_their_gateways(sketch):
    hardware, guide = shipped(sketch.split("-")[0], 2, sketch)
    draft = made("recursive-doubling", "allreduce", hardware, 1024, guide)
    assert draft.makespan_ns < 0.8 * made("binomial", "allreduce", hardware, 1024, guide).makespan_ns
    size = hardware.devices_per_node
    assert sum(move.src // size != move.dst // size for move in draft.transfers) == 2


@pytest.mark.parametrize("ranks", [2, 3, 5, 6, 7, 8])
def test_halving_and_doubling_take_log_rounds(ranks):
    """Blocks that travel together pay one alpha: ceil(log2 R) of them, and R - 1 blocks on every port."""
    least = ceil(log2(ranks)) * 1_000 + (ranks - 1) * 8_000
    messages = Counter()
    draft = made("halving-doubling", "allgather", switch(ranks), sketch=BATCHING)
    assert draft.makespan_ns == least
    for move in draft.transfers:
        messages[move.dst] += 1
    assert set(messages.values()) == {ranks - 1}


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8, 9, 16, 31])
def test_inner_nodes_of_one_binary_tree_are_leaves_of_the_other(size):
    inner = []
    for mirrored in (False, True):
        root, edges = binary_tree(size, mirrored)
        assert sorted([root, *(child for _, child in edges)]) == list(range(size))
        assert max(Counter(parent for parent, _ in edges).values()) <= 2
        inner.append({parent for parent, _ in edges})
    if size > 3:
        assert not inner[0] & inner[1] - {binary_tree(size, False)[0], binary_tree(size, True)[0]}
    hung = rooted_tree(size, 1, mirrored=True)
    assert sorted([1, *(child for _, child in hung)]) == list(range(size))


def test_a_double_tree_carries_half_of_the_bytes_in_each():
    draft = made("double-tree", "allreduce", switch(6), 64 * MB)
    assert set(Counter(draft.problem.roots).values()) == {len(draft.problem.roots) // 2}
    assert draft.makespan_ns < made("binomial", "allreduce", switch(6), 64 * MB).makespan_ns


def test_two_levels_cross_once_for_each_chunk_and_node():
    hardware, sketch = shipped("ndv2", 3, "ring")
    draft = made("two-level", "allgather", hardware, MB, sketch)
    crossed = Counter(move.chunk for move in draft.transfers if move.src // 8 != move.dst // 8)
    assert set(crossed.values()) == {2}


@pytest.mark.parametrize("sketch", ["dgx2-sk-1", "ndv2-sk-1"])
@pytest.mark.parametrize("collective", ["allreduce", "alltoall"])
def test_two_levels_follow_published_sketches(sketch, collective):
    hardware, guide = shipped(sketch.split("-")[0], 2, sketch)
    made("two-level", collective, hardware, MB, guide)


def test_rings_use_every_nic():
    hardware, sketch = shipped("dgx2", 2, "ring")
    problem = Request("allgather", hardware, sketch, MB).problem(1)
    found = rings(problem, 8)
    assert len({order[0] // 2 for order in found}) == len({order[15] // 2 for order in found}) == 8


@given(st.integers(2, 5), st.data())
@settings(max_examples=60)
def test_the_cheapest_cycle_is_found(devices, data):
    pairs = list(permutations(range(devices), 2))
    cost = {pair: data.draw(st.integers(1, 9)) for pair in pairs if data.draw(st.integers(0, 4))}
    orders = [(0, *rest) for rest in permutations(range(1, devices))]
    totals = [
        sum(cost[edge] for edge in zip(order, [*order[1:], 0], strict=True))
        for order in orders
        if all(edge in cost for edge in zip(order, [*order[1:], 0], strict=True))
    ]
    found = cheapest_path(devices, cost, (0,), cost)
    assert (found is None) == (not totals)
    if found is not None:
        assert found[0] == min(totals)


def test_a_missing_link_is_named():
    with pytest.raises(InputError, match="method all-pairs: needs a link 0 -> 2, which the sketch does not include"):
        made("all-pairs", "allgather", line(3))
    with pytest.raises(InputError, match="method ring: found no ring"):
        made("ring", "allgather", line(3))
    with pytest.raises(InputError, match="found one node"):
        made("two-level", "allgather", ring(4))
    with pytest.raises(InputError, match="the template is for allgather, allreduce, reducescatter"):
        made("halving-doubling", "alltoall", complete(4))


def test_one_rank_has_nothing_to_send():
    for method in ("all-pairs", "binomial", "double-tree", "ring", "halving-doubling"):
        assert made(method, "allreduce", machine(1, ())).transfers == ()


@given(
    machines(),
    st.sampled_from(TEMPLATES),
    st.sampled_from(
        ("allgather", "reducescatter", "allreduce", "alltoall", "broadcast", "reduce", "gather", "scatter")
    ),
    st.sampled_from((1, 1000, 16 * MB)),
    st.booleans(),
    st.integers(0, 1),
)
@settings(max_examples=60)
def test_a_template_is_right_or_refused(hardware, method, collective, size, pipelined, root):
    if pipelined:
        hardware = replace(hardware, latency="pipelined")
    rooted = collective in ("broadcast", "reduce", "gather", "scatter")
    with suppress(InputError):
        made(method, collective, hardware, size, root=root if rooted else 0)
