"""Which earlier actions an action waits for, and which messages meet."""

from __future__ import annotations

from tests.codegen.collective.algorithms import random_algorithm
from treadle.codegen.collective.actions import actions, script_of, sequence_of
from treadle.codegen.collective.lower import lower
from treadle.codegen.collective.program import BlockStep, CollectiveProgram, RankProgram, Threadblock


def swap() -> CollectiveProgram:
    """Two ranks exchange one chunk in place: each sends its own and then receives over it."""
    blocks = [
        (
            Threadblock(send=other, recv=None, channel=0, steps=(BlockStep("s", ("i", 0), ("i", 0), awaited=True),)),
            Threadblock(send=None, recv=other, channel=0, steps=(BlockStep("r", ("i", 0), ("i", 0), depends=(0, 0)),)),
        )
        for other in (1, 0)
    ]
    ranks = tuple(RankProgram(1, 1, 0, threadblocks) for threadblocks in blocks)
    return CollectiveProgram("swap", "custom", ranks, chunks_per_loop=1, channels=1, inplace=True, outofplace=False)


def test_a_receive_follows_behind_the_message_that_leaves_from_its_place() -> None:
    scripts = [script_of(swap(), rank, inplace=True) for rank in (0, 1)]
    receives = [action for script in scripts for action in script if action.receives is not None]
    assert [(action.behind, action.after_leaving) for action in receives] == [((0,), ()), ((0,), ())]


def test_what_overwrites_a_part_of_a_message_waits_until_it_has_left() -> None:
    """Both ranks send two chunks, and receive one chunk over the second of them and one over the first."""
    blocks = [
        (
            Threadblock(other, None, 0, (BlockStep("s", ("i", 0), ("i", 0), count=2, awaited=True),)),
            Threadblock(None, other, 0, (BlockStep("r", ("i", 0), ("o", 0), count=2),)),
            Threadblock(None, None, 0, (BlockStep("cpy", ("i", 0), ("i", 1), depends=(0, 0)),)),
        )
        for other in (1, 0)
    ]
    ranks = tuple(RankProgram(2, 2, 0, threadblocks) for threadblocks in blocks)
    program = CollectiveProgram("parts", "custom", ranks, chunks_per_loop=2, channels=1, inplace=False, outofplace=True)
    copies = [each for each in script_of(program, 0, inplace=False) if each.step.type == "cpy"]
    assert [(each.behind, each.after_leaving) for each in copies] == [((), (0,))]


def test_receives_wait_for_nothing_where_their_place_is_free() -> None:
    """In a ring allgather out of place nothing is there before what arrives, whatever threadblocks it has."""
    script = script_of(lower(random_algorithm("allgather", 4, 2, 1, seed=1)), 0, inplace=False)
    received = [action for action in script if action.receives is not None]
    assert received
    assert all(action.after == action.after_leaving == () for action in received)


def test_a_rank_alone_has_the_same_actions_as_among_all() -> None:
    program = lower(random_algorithm("allreduce", 4, 2, 2, seed=3), inplace=True)
    together = tuple(actions(program, sequence_of(program), inplace=True))
    for rank in range(4):
        assert script_of(program, rank, inplace=True) == tuple(each for each in together if each.place.rank == rank)


def test_both_ends_of_a_message_are_the_same_and_no_two_messages_are() -> None:
    program = lower(random_algorithm("alltoall", 4, 2, 1, seed=5))
    together = list(actions(program, sequence_of(program), inplace=False))
    sent = [action.sends for action in together if action.sends is not None]
    assert sorted(map(repr, sent)) == sorted(repr(action.receives) for action in together if action.receives)
    assert len(set(sent)) == len(sent) > 0
