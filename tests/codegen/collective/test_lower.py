"""Lowering promises: whatever valid algorithm goes in, the program that comes out passes the independent checker."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.codegen.collective.algorithms import (
    Move,
    decide,
    exchange_allreduce,
    line_alltoall,
    random_algorithm,
    ring_allreduce,
)
from treadle.codegen.collective import check as check_program
from treadle.codegen.collective.lower import lower
from treadle.codegen.collective.msccl import xml
from treadle.codegen.collective.program import BlockStep, CollectiveProgram
from treadle.planner.errors import InputError

COLLECTIVES = ("allgather", "reducescatter", "allreduce", "alltoall", "broadcast", "reduce")


def both(decisions, **options: bool) -> list[CollectiveProgram]:
    modes = [False] if decisions.collective == "alltoall" else [False, True]
    return [lower(decisions, inplace=inplace, **options) for inplace in modes]


@pytest.mark.parametrize("collective", COLLECTIVES)
@given(data=st.data())
def test_random_algorithms_are_accepted(collective: str, data: st.DataObject) -> None:
    ranks = data.draw(st.integers(2, 5), label="ranks")
    chunkup = data.draw(st.integers(1, 3), label="chunkup")
    instances = data.draw(st.sampled_from([1, 2, 4]), label="instances")
    decisions = random_algorithm(collective, ranks, chunkup, instances, data.draw(st.integers(0, 10**6), label="seed"))
    for options in ({"fuse": False}, {}, {"merge": True}):
        for program in both(decisions, **options):
            assert check_program.check(program) == []
            assert program.channels == instances


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_one_rank(collective: str) -> None:
    decisions = decide(collective, 1, [], chunkup=2, root=0 if collective in ("broadcast", "reduce") else None)
    for program in both(decisions):
        assert check_program.check(program) == []
        assert [step.type for _, _, step in program.steps()] == ([] if program.inplace else ["cpy"])


def test_ring_is_right_for_every_number_of_instances() -> None:
    for instances in (1, 2, 8):
        for blocks, fuse in ((1, True), (2, False)):
            for program in both(ring_allreduce(4, instances=instances), fuse=fuse):
                assert check_program.check(program, fifo_depth=2 if fuse else 1) == []
                assert len(program.ranks[0].threadblocks) == blocks * instances
                assert program.chunks_per_loop == 4 * instances


def test_decisions_may_keep_receiving_and_sending_apart() -> None:
    decisions = ring_allreduce(4)
    (apart,) = {lower(replace(decisions, fused=False)), lower(decisions, fuse=False)}
    assert not {step.type for _, _, step in apart.steps()} & {"rcs", "rrs", "rrcs"}
    assert len(apart.ranks[0].threadblocks) == 2 * len(lower(decisions).ranks[0].threadblocks)


def test_partners_may_swap_partial_sums() -> None:
    for together in (1, 2):
        for program in both(exchange_allreduce(4, together)):
            assert check_program.check(program) == []
            assert {step.count for _, _, step in program.steps() if step.type != "nop"} == {together}


def test_swapped_messages_that_fill_a_fifo_are_taken_apart() -> None:
    """Each would have to be sent whole before the other may be received over it."""
    program = lower(exchange_allreduce(4, 4), inplace=True)
    assert check_program.check(program) == []
    assert {step.count for _, _, step in program.steps() if step.type != "nop"} == {1}


def test_relayed_chunks_go_through_scratch() -> None:
    program = lower(line_alltoall())
    assert [ranked.scratch_chunks for ranked in program.ranks] == [0, 2, 0]
    assert check_program.check(program, fifo_depth=1) == []


def test_input_is_never_written_out_of_place() -> None:
    for collective in COLLECTIVES:
        program = lower(random_algorithm(collective, 4, 2, 2, seed=5))
        assert not any(step.writes and step.writes[0] == "i" for _, _, step in program.steps())


def relay_pair(together: bool) -> list[Move]:
    """Two nodes of two, one NIC each (spec 6.2): 1 -> 2 and 3 -> 0 cross."""
    crossing = (
        [Move((0, 1), 1, 2), Move((2, 3), 3, 0)]
        if together
        else [Move((1,), 1, 2), Move((3,), 3, 0), Move((0,), 1, 2), Move((2,), 3, 0)]
    )
    inside = [Move((0,), 0, 1), Move((1,), 1, 0), Move((2,), 2, 3), Move((3,), 3, 2)]
    last = [Move((chunk,), src, dst) for chunk, src, dst in [(0, 2, 3), (1, 2, 3), (2, 0, 1), (3, 0, 1)]]
    return inside + crossing + last


@pytest.mark.parametrize("inplace", [False, True])
def test_a_batch_is_one_step_where_its_chunks_are_neighbours(inplace: bool) -> None:
    program = lower(decide("allgather", 4, relay_pair(True)), inplace=inplace)
    sends = [step for place, block, step in program.steps() if place.rank == 1 and block.send == 2 and step.type == "s"]
    assert [(step.type, step.src, step.count) for step in sends] == [("s", ("o", 0), 2)]
    assert check_program.check(program) == []


def test_a_batch_of_strangers_is_split() -> None:
    moves = [Move((0,), 0, 1), Move((2,), 2, 1), Move((1,), 1, 0), Move((1,), 1, 2)]
    program = lower(decide("allgather", 3, [*moves, Move((2,), 1, 0), Move((0,), 1, 2)]))
    assert check_program.check(program) == []
    apart = decide("allgather", 4, [Move((0,), 0, 1), Move((2,), 2, 1), Move((0, 2), 1, 3), Move((1,), 1, 3)])
    program = lower(apart, fuse=False)
    sends = [step for _, block, step in program.steps() if block.send == 3 and step.type == "s"]
    assert [(step.src, step.count) for step in sends] == [(("o", 0), 1), (("o", 2), 1), (("i", 0), 1)]


def test_batches_of_other_shapes_depend_across_instances() -> None:
    """A chunk that came alone is cut by instance; sent on in a batch, instance 0 carries sub-chunks of two chunks."""
    moves = [Move((0,), 0, 1), Move((1,), 0, 1), Move((0, 1), 1, 2)]
    decisions = decide("broadcast", 3, moves, chunkup=2, root=0, instances=2)
    program = lower(decisions)
    assert check_program.check(program, fifo_depth=1) == []
    send = next(block for block in program.ranks[1].threadblocks if block.send == 2 and block.channel == 0)
    assert [step.type for step in send.steps] == ["nop", "s"]
    assert send.steps[-1].count == 2


def test_each_further_dependence_stands_on_a_nop_before_the_step() -> None:
    program = lower(decide("reduce", 4, [Move((0,), k, 0, True) for k in (1, 2, 3)], root=0))
    steps = [step for _, _, step in program.steps()]
    assert all(step.depends is not None for step in steps if step.type == "nop")
    for _, block, _ in program.steps():
        for step, after in zip(block.steps, block.steps[1:], strict=False):
            assert step.type != "nop" or after.depends is not None


def test_golden_line_alltoall(golden) -> None:
    golden("msccl_xml/alltoall_line3.out.xml", xml.emit(lower(line_alltoall(), fuse=False)))


@pytest.mark.parametrize(
    ("name", "inplace", "instances", "fuse"),
    [("out", False, 1, False), ("inplace_2_instances", True, 2, False), ("fused", False, 1, True)],
)
def test_golden_ring_allreduce(golden, name: str, inplace: bool, instances: int, fuse: bool) -> None:
    program = lower(ring_allreduce(4, instances=instances), inplace=inplace, fuse=fuse)
    golden(f"msccl_xml/allreduce_ring4.{name}.xml", xml.emit(program))


def test_alltoall_in_place_is_refused() -> None:
    with pytest.raises(InputError, match="alltoall cannot run in place"):
        lower(line_alltoall(), inplace=True)


def test_sending_what_is_not_there_is_refused() -> None:
    with pytest.raises(InputError, match="chunk 0 is sent from 1 to 2 at 0 ns, when rank 1 does not hold it"):
        lower(decide("allgather", 3, [Move((0,), 1, 2)]))


def test_timeless_circles_are_refused() -> None:
    with pytest.raises(InputError, match="waits for itself"):
        lower(decide("allreduce", 2, [Move((0,), 0, 1, True), Move((0,), 1, 0, True)], alpha=0, beta=0))


def test_steps_are_compared_without_their_lines() -> None:
    assert BlockStep("nop", line=1) == BlockStep("nop", line=2)
