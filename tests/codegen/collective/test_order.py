"""One sequence for all ranks: complete where the program can end, in an order that every rank could follow."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from tests.codegen.collective.algorithms import random_algorithm, ring_allreduce
from treadle.codegen.collective import order
from treadle.codegen.collective.lower import lower
from treadle.codegen.collective.program import CollectiveProgram, Connection


def follow(program: CollectiveProgram, sequence, depth: int) -> None:
    """Replay `sequence` with blocking receives and bounded sends; every step must be possible when its turn comes."""
    done: dict[tuple[int, int], int] = defaultdict(int)
    queued: dict[Connection, int] = defaultdict(int)
    for place in sequence:
        block = program.ranks[place.rank].threadblocks[place.threadblock]
        step = block.steps[place.step]
        assert done[place.rank, place.threadblock] == place.step
        if step.depends is not None:
            assert done[place.rank, step.depends[0]] > step.depends[1]
        if (received := order.incoming(place, block, step)) is not None:
            queued[received] -= 1
            assert queued[received] >= 0
        if (sent := order.outgoing(place, block, step)) is not None:
            queued[sent] += 1
            assert queued[sent] <= depth
        done[place.rank, place.threadblock] += 1


@given(
    collective=st.sampled_from(["allgather", "reducescatter", "allreduce", "alltoall"]),
    seed=st.integers(0, 10**6),
    depth=st.integers(2, 4),
)
def test_the_sequence_can_be_followed(collective: str, seed: int, depth: int) -> None:
    program = lower(random_algorithm(collective, 4, 2, 2, seed))
    run = order.run(program, depth)
    assert run.stuck == ()
    assert sorted(run.sequence) == [place for place, _, _ in program.steps()]
    follow(program, run.sequence, depth)


def test_sends_meet_receives_in_order() -> None:
    program = lower(ring_allreduce(4))
    found = order.connections(program)
    assert list(found) == [Connection(0, 1, 0), Connection(1, 2, 0), Connection(2, 3, 0), Connection(3, 0, 0)]
    for connection, ends in found.items():
        assert len(ends.sends) == len(ends.receives) == 6
        assert {place.rank for place in ends.sends} == {connection.src}
        assert {place.rank for place in ends.receives} == {connection.dst}


def test_nothing_is_sent_through_no_slots() -> None:
    program = lower(ring_allreduce(3))
    run = order.run(program, 0)
    assert run.sequence == ()
    assert len(run.stuck) == sum(len(ranked.threadblocks) for ranked in program.ranks)
    assert set(run.obstacles) <= {"room", "message"}
