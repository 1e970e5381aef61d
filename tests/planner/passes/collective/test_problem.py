"""The explicit problem: chunks, pruning, shortest paths, symmetries, sizes."""

from __future__ import annotations

import dataclasses

import pytest
from msgspec.structs import replace

from tests.planner.passes.collective.build import (
    MB,
    MESH,
    complete,
    line,
    machine,
    problem_for,
    relay,
    relay_sketch,
    ring,
    shipped,
    switch,
)
from treadle.planner.documents.sketch import Hyperparameters, IntranodeSketch, Symmetry
from treadle.planner.errors import InputError
from treadle.planner.passes.collective.collectives import permuted_chunks, pieces, routed_chunks
from treadle.planner.passes.collective.problem import build_problem
from treadle.planner.passes.collective.routing import tied_transfers
from treadle.planner.passes.collective.symmetry import rotated


def test_chunk_labels():
    gather = routed_chunks("allgather", 3, 2, 0)
    assert [chunk.owner for chunk in gather] == [0, 0, 1, 1, 2, 2]
    assert gather[0].targets == {0, 1, 2}
    exchange = routed_chunks("alltoall", 3, 1, 0)
    assert [(c.owner, min(c.targets)) for c in exchange] == [(o, d) for o in range(3) for d in range(3)]
    assert [chunk.owner for chunk in routed_chunks("broadcast", 3, 2, 1)] == [1, 1]


def test_permutations_act_on_labels():
    perm = (1, 2, 0)
    assert permuted_chunks("allgather", 2, perm) == (2, 3, 4, 5, 0, 1)
    assert permuted_chunks("alltoall", 1, perm)[0 * 3 + 2] == 1 * 3 + 0


@pytest.mark.parametrize(
    ("collective", "count"),
    [("allgather", 2), ("broadcast", 2), ("alltoall", 8), ("reducescatter", 8), ("allreduce", 8), ("reduce", 2)],
)
def test_input_is_cut_into_pieces(collective, count):
    assert pieces(collective, 4, 2) == count


def test_chunk_bytes_are_rounded_up():
    assert build_problem("allreduce", ring(4), MESH, 4 * 100 + 1).chunk_bytes == 101
    assert build_problem("allreduce", ring(4), MESH, 1).chunk_bytes == 1


def test_size_comes_from_the_sketch_unless_given():
    sized = replace(MESH, hyperparameters=Hyperparameters(input_size="64K"))
    assert build_problem("allgather", ring(4), sized).input_bytes == 65536
    assert build_problem("allgather", ring(4), sized, 1000).input_bytes == 1000


@pytest.mark.parametrize("size", [0, -1, 2**60])
def test_impossible_sizes_are_refused(size):
    with pytest.raises(InputError, match="--size: found"):
        build_problem("allgather", ring(4), MESH, size)


def test_no_size_at_all_is_refused():
    with pytest.raises(InputError, match="input size"):
        build_problem("allgather", ring(4), MESH)


def test_zero_size_in_the_sketch_names_its_path():
    zero = replace(MESH, hyperparameters=Hyperparameters(input_size="0"))
    with pytest.raises(InputError, match=r"\$.hyperparameters.input_size: found 0 bytes"):
        build_problem("allgather", ring(4), zero)


def test_unreachable_ranks_are_named():
    with pytest.raises(InputError, match="rank 0 cannot reach rank 2"):
        problem_for("allgather", machine(3, [(0, 1), (1, 0), (2, 1)]))


@pytest.mark.parametrize("links", [(), ((0, 1), (1, 0), (2, 1))])
@pytest.mark.parametrize("restricted", [True, False])
def test_sketches_that_leave_too_few_links_are_refused_by_every_method(links, restricted):
    sketch = replace(MESH, intranode_sketch=IntranodeSketch(strategy="direct", direct_links=links))
    with pytest.raises(InputError, match=r"rank 0 cannot reach rank [12] over the links that the sketch leaves"):
        build_problem("allgather", complete(3), sketch, 1024, restricted=restricted)


def test_times_that_no_sum_can_hold_are_refused():
    slow = machine(2, [(0, 1), (1, 0)], beta=1e7)
    assert build_problem("allgather", slow, MESH, MB).chunk_bytes == MB
    with pytest.raises(InputError, match=r"toy: found link 0 -> 1, which takes 1e\+16 ns for 1099511627776 bytes"):
        build_problem("allgather", slow, MESH, 2**40)


@pytest.mark.parametrize(
    ("profile", "nodes", "sketch", "count"),
    [
        ("ndv2", 2, "ndv2-sk-1", 976),
        ("ndv2", 4, "ndv2-sk-1", 4064),
        ("ndv2", 10, "ndv2-sk-1", 26000),
        ("dgx2", 2, "dgx2-sk-1", 29824),
        ("dgx2", 2, "dgx2-sk-2", 15872),
    ],
)
def test_binaries_before_symmetry(profile, nodes, sketch, count):
    problem = build_problem("allgather", *shipped(profile, nodes, sketch))
    assert sum(map(len, problem.allowed)) == count


def test_binaries_after_symmetry():
    assert _classes("ndv2", 2, "ndv2-sk-1", ((8, 16),)) == 488
    assert _classes("ndv2", 4, "ndv2-sk-1", ((8, 32),)) == 1016
    assert _classes("ndv2", 10, "ndv2-sk-1", ((8, 80),)) == 2600
    assert _classes("dgx2", 2, "dgx2-sk-1", ((2, 16), (16, 32))) == 1892
    assert _classes("dgx2", 2, "dgx2-sk-2", ((1, 16), (16, 32))) == 961


def test_binaries_of_an_alltoall_with_and_without_pruning():
    """Spec 3.5 counts without pruning: a chunk may then cross nodes from any rank on its shortest paths."""
    hardware, sketch = shipped("ndv2", 2, "ndv2-sk-1")
    pruned = build_problem("alltoall", hardware, replace(sketch, symmetry_offsets=((8, 16),)), 16 * MB)
    visited = [{rank for edge in edges for rank in edge} for edges in pruned.allowed]
    loose = tuple(
        tuple((s, d) for s, d in pruned.topology.routing.links if {s, d} <= ranks and d not in chunk.sources)
        for chunk, ranks in zip(pruned.chunks, visited, strict=True)
    )
    for problem, before in ((pruned, 1344), (dataclasses.replace(pruned, allowed=loose), 1348)):
        assert sum(map(len, problem.allowed)) == before
        assert len(set(tied_transfers(problem).values())) == before // 2


def _classes(profile: str, nodes: int, name: str, offsets: tuple[tuple[int, int], ...]) -> int:
    hardware, sketch = shipped(profile, nodes, name)
    problem = build_problem("allgather", hardware, replace(sketch, symmetry_offsets=offsets))
    return len(set(tied_transfers(problem).values()))


def test_alltoall_visits_only_ranks_on_shortest_paths():
    problem = problem_for("alltoall", ring(5))
    visited = {(c // 5, c % 5): {rank for edge in edges for rank in edge} for c, edges in enumerate(problem.allowed)}
    assert visited[0, 1] == {0, 1}
    assert visited[0, 2] == {0, 1, 2}
    assert visited[0, 0] == set()
    assert all(len(edges) <= 1 for edges in problem_for("alltoall", switch(4)).allowed)


def test_chunks_cross_nodes_only_from_their_relay():
    problem = problem_for("allgather", relay(2, 10, 5), relay_sketch(batching=False))
    assert problem.allowed[0] == ((0, 1), (1, 2), (2, 3), (3, 2))
    assert problem.allowed[2] == ((0, 1), (1, 0), (2, 3), (3, 0))


def test_alltoall_inside_a_node_never_leaves_it():
    problem = problem_for("alltoall", relay(2, 10, 5), MESH)
    assert problem.allowed[0 * 4 + 1] == ((0, 1),)


def test_rotation_inside_groups():
    assert [rotated(rank, 2, 16) for rank in (17, 31, 15, 30)] == [19, 17, 1, 16]


def test_rotation_ties_only_links_inside_a_group():
    hardware, sketch = shipped("dgx2", 2, "dgx2-sk-1")
    ties = build_problem("allgather", hardware, sketch).ties
    assert [len(set(tie.block)) for tie in ties] == [2, 1]
    assert ties[0].chunks[2 * 17] == 2 * 19


def test_example_5_4_3_ties_inside_nodes_and_leaves_links_between_free():
    hardware, sketch = shipped("ndv2", 2, "ndv2-sk-1")
    swap = Symmetry(perm=(*range(8, 16), *range(8)), partition=(tuple(range(8)), tuple(range(8, 16))))
    problem = build_problem("allgather", hardware, replace(sketch, symmetry_offsets=(), symmetries=(swap,)))
    classes = tied_transfers(problem)
    assert classes[0, 0, 1] == classes[8, 8, 9]
    assert classes[0, 0, 9] != classes[8, 8, 1]
    assert len(set(classes.values())) == (976 - 16) // 2 + 16


@pytest.mark.parametrize(
    ("hardware", "change", "message"),
    [
        (ring(4), {"symmetry_offsets": ((1, 3),)}, "a divisor of the 4 ranks"),
        (line(3), {"symmetry_offsets": ((1, 3),)}, "link 1 -> 2 maps to 2 -> 0"),
        (
            machine(3, [(0, 1, 1, 8), (1, 2, 1, 9), (2, 0, 1, 8)]),
            {"symmetry_offsets": ((1, 3),)},
            "cost differently",
        ),
        (ring(4), {"symmetries": (Symmetry(perm=(1, 0), partition=((0, 1),)),)}, "a permutation of 2 ranks"),
        (
            complete(4),
            {"symmetries": (Symmetry(perm=(2, 1, 0, 3), partition=((0, 1), (2, 3))),)},
            "not mapped onto one block",
        ),
        (
            relay(2, 10, 5),
            {
                "symmetry_offsets": ((1, 2),),
                "internode_sketch": relay_sketch(batching=False).internode_sketch,
            },
            "the relay of rank 0",
        ),
    ],
)
def test_false_symmetries_are_refused(hardware, change, message):
    with pytest.raises(InputError, match=message):
        problem_for("allgather", hardware, replace(MESH, **change))


def test_rooted_collectives_skip_rotations():
    turning = replace(MESH, symmetry_offsets=((1, 4),))
    assert problem_for("broadcast", ring(4), turning).ties == ()
    assert len(problem_for("allgather", ring(4), turning).ties) == 1


def test_root_must_exist():
    with pytest.raises(InputError, match="--root: found 4"):
        problem_for("broadcast", ring(4), root=4)
