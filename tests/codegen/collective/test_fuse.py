"""Fusing saves steps, dependences and scratch, and changes nothing else."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tests.codegen.collective.algorithms import (
    Move,
    decide,
    inverted,
    line_alltoall,
    random_algorithm,
    ring_allreduce,
    tree_moves,
)
from treadle.codegen.collective import check as check_program
from treadle.codegen.collective.expected import expected_outputs
from treadle.codegen.collective.lower import lower
from treadle.codegen.collective.msccl import xml
from treadle.codegen.collective.order import run
from treadle.codegen.collective.program import CollectiveProgram
from treadle.codegen.collective.simulate_program import simulate_program
from treadle.codegen.collective.symbolic import SymbolicExecution
from treadle.planner.documents.collective import Demand
from treadle.planner.passes.collective.algorithm import CollectiveDecisions

COLLECTIVES = ("allgather", "reducescatter", "allreduce", "alltoall", "broadcast", "reduce")


def types(program: CollectiveProgram, rank: int | None = None) -> Counter[str]:
    return Counter(step.type for place, _, step in program.steps() if rank in (None, place.rank))


def dependences(program: CollectiveProgram) -> int:
    return sum(step.depends is not None for _, _, step in program.steps())


def scratch(program: CollectiveProgram) -> int:
    return sum(ranked.scratch_chunks for ranked in program.ranks)


def ring(collective: str, ranks: int) -> CollectiveDecisions:
    """One half of the ring allreduce."""
    moves = []
    for turn in range(ranks - 1):
        for rank in range(ranks):
            chunk = (rank - turn - (collective == "reducescatter")) % ranks
            moves.append(Move((chunk,), rank, (rank + 1) % ranks, collective == "reducescatter"))
    return decide(collective, ranks, moves)


def test_a_ring_is_fused_as_the_public_one(data_dir) -> None:
    """RCCL's ring of 16 ranks on 24 channels: per channel and rank s, 14 rrs, rrcs, 14 rcs, r, and no dependence."""
    name = "all-reduce-ring-simple.xml"
    public = xml.parse((data_dir / "msccl" / "rccl" / name).read_text(), name)
    ours = lower(ring_allreduce(16))
    assert types(ours) == {kind: count // public.channels for kind, count in types(public).items()}
    assert types(ours, 3) == {"s": 1, "rrs": 14, "rrcs": 1, "rcs": 14, "r": 1}
    assert dependences(ours) == dependences(public) == 0
    assert scratch(ours) == scratch(public) == 0
    assert all(len(ranked.threadblocks) == 1 for ranked in ours.ranks)


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize(
    ("collective", "expected"),
    [("allgather", {"s": 6, "rcs": 24, "r": 6}), ("reducescatter", {"s": 6, "rrs": 24, "rrc": 6})],
)
def test_half_rings_are_fused_whole(collective: str, expected: dict[str, int], inplace: bool) -> None:
    fused, plain = (lower(ring(collective, 6), inplace=inplace, fuse=fuse) for fuse in (True, False))
    found = types(fused)
    del found["cpy"]
    assert found == expected
    assert (dependences(fused), scratch(fused)) == (0, 0)
    assert scratch(plain) == (24 if collective == "reducescatter" else 0)
    assert dependences(plain) >= 24
    assert check_program.check(fused) == []


def test_a_chain_passes_on_what_it_receives() -> None:
    moves = [move for chunk in range(5) for move in tree_moves([(0, 1), (1, 2), (2, 3)], chunk)]
    program = lower(decide("broadcast", 4, moves, chunkup=5, root=0))
    assert types(program, 1) == types(program, 2) == {"rcs": 5}
    back = lower(decide("reduce", 4, inverted(moves), chunkup=5, root=0))
    assert types(back, 1) == types(back, 2) == {"rrs": 5}
    assert types(back, 0) == {"rrc": 5}


def test_a_tree_sums_up_and_passes_on() -> None:
    """Root 0 over 1, which has 2 and 3: the last child's share goes on with the sum, and the sum comes down again."""
    edges = [(0, 1), (1, 2), (1, 3)]
    moves = [*inverted(tree_moves(edges, 0)), *tree_moves(edges, 0)]
    program = lower(structs.replace(decide("allreduce", 4, moves), roots=(0,)))
    assert types(program, 1) == {"rrc": 1, "rrs": 1, "rcs": 1, "s": 1}
    assert types(program, 0) == {"rrcs": 1}
    assert program.chunks_per_loop == 1
    assert check_program.check(program) == []


def test_a_sum_that_somebody_reads_is_stored() -> None:
    """Rank 1 passes its sum on to 2 and to 3: one of them gets it from where the other one's step has stored it."""
    moves = [Move((0,), 0, 1, True), Move((0,), 2, 1, True), Move((0,), 3, 1, True)]
    moves += [Move((0,), 1, 2), Move((0,), 1, 3), Move((0,), 1, 0)]
    program = lower(structs.replace(decide("allreduce", 4, moves), roots=(1,)))
    assert types(program, 1) == {"rrc": 2, "rrcs": 1, "s": 2}
    assert check_program.check(program) == []


def test_two_way_traffic_stays_in_two_threadblocks() -> None:
    """A relay with much of its own: joined, its threadblock would wait for messages before it could send."""
    own = [Move((k,), 1, 2) for k in range(6, 12)]
    moves = [Move((k,), 0, 1) for k in range(6)] + [Move((0,), 1, 2)]
    program = lower(
        structs.replace(
            decide("custom", 3, [*moves, *own]),
            demands=(Demand((0,), (1, 2)), *[Demand((0,), (1,))] * 5, *[Demand((1,), (2,))] * 6),
        )
    )
    assert types(program, 1) == {"r": 6, "s": 7}
    assert len(program.ranks[1].threadblocks) == 2


@pytest.mark.parametrize("collective", COLLECTIVES)
@given(data=st.data())
def test_fused_and_unfused_programs_compute_the_same(collective: str, data: st.DataObject) -> None:
    ranks, chunkup = data.draw(st.integers(2, 6), label="ranks"), data.draw(st.integers(1, 3), label="chunkup")
    seed, instances = data.draw(st.integers(0, 10**6), label="seed"), data.draw(st.integers(1, 3), label="instances")
    decisions = random_algorithm(collective, ranks, chunkup, instances, seed)
    inplace = collective != "alltoall" and data.draw(st.booleans(), label="inplace")
    programs = [lower(decisions, inplace=inplace, fuse=fuse) for fuse in (True, False)]
    outputs = []
    for program in programs:
        assert check_program.check(program, expected=expected_outputs(decisions)) == []
        replay = SymbolicExecution(program, inplace)
        assert replay.follow(run(program, 2).sequence) == []
        outputs.append({key: value for key, value in replay.values.items() if key[1] == ("i" if inplace else "o")})
    if not inplace:
        assert outputs[0] == outputs[1]
    fused, plain = programs
    assert sum(types(fused).values()) <= sum(types(plain).values())
    assert scratch(fused) <= scratch(plain)
    assert sum(len(ranked.threadblocks) for ranked in fused.ranks) <= sum(
        len(ranked.threadblocks) for ranked in plain.ranks
    )


@given(seed=st.integers(0, 10**6), instances=st.sampled_from([1, 2]))
def test_merging_needs_as_few_threadblocks_as_peers_allow(seed: int, instances: int) -> None:
    program = lower(random_algorithm("alltoall", 5, 1, instances, seed), merge=True)
    assert check_program.check(program) == []
    for ranked in program.ranks:
        moving = [block for block in ranked.threadblocks if block.send is not None or block.recv is not None]
        for channel in range(instances):
            mine = [block for block in moving if block.channel == channel]
            ends = [sum(getattr(block, word) is not None for block in mine) for word in ("send", "recv")]
            assert len(mine) == max(ends)


def test_fusing_costs_no_time_on_rings_and_chains() -> None:
    for decisions in (ring_allreduce(5), ring("allgather", 5), ring("reducescatter", 5), line_alltoall()):
        times = {simulate_program(lower(decisions, fuse=fuse), decisions).schedule.makespan for fuse in (True, False)}
        assert times == {decisions.makespan_ns}


def test_one_rank_and_nothing_to_send() -> None:
    assert types(lower(decide("allreduce", 1, []))) == {"cpy": 1}
