"""Every wait that is written down says something new, and none is missing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tests.codegen.collective.algorithms import random_algorithm, ring_allreduce
from treadle.codegen.collective import check as check_program
from treadle.codegen.collective import depend
from treadle.codegen.collective.happens_before import unordered
from treadle.codegen.collective.lower import lower
from treadle.codegen.collective.order import run
from treadle.codegen.collective.program import CollectiveProgram, Place


def without_wait(program: CollectiveProgram, place: Place) -> CollectiveProgram:
    """The program in which a step no longer waits; the step it waited for stays as it is."""
    ranked = program.ranks[place.rank]
    blocks = list(ranked.threadblocks)
    steps = list(blocks[place.threadblock].steps)
    steps[place.step] = replace(steps[place.step], depends=None)
    blocks[place.threadblock] = replace(blocks[place.threadblock], steps=tuple(steps))
    ranks = list(program.ranks)
    ranks[place.rank] = replace(ranked, threadblocks=tuple(blocks))
    return replace(program, ranks=tuple(ranks))


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("collective", ["allgather", "allreduce", "alltoall"])
@given(seed=st.integers(0, 10**6), ranks=st.integers(2, 5), inplace=st.booleans())
def test_no_wait_is_implied_by_the_others(collective: str, fuse: bool, seed: int, ranks: int, inplace: bool) -> None:
    """Without it the awaited step would not happen before the waiting one."""
    program = lower(
        random_algorithm(collective, ranks, 1, 1, seed), inplace=inplace and collective != "alltoall", fuse=fuse
    )
    waiting = [(place, step.depends) for place, _, step in program.steps() if step.depends is not None]
    for place, awaited in waiting:
        less = without_wait(program, place)
        sequence = run(program, 2).sequence
        assert unordered(less, sequence, [(Place(place.rank, *awaited), place)]) == [0]


def test_a_ring_in_place_waits_only_for_what_it_sends_on() -> None:
    """What the second half overwrites has been sent long before, as the ring itself says."""
    program = lower(ring_allreduce(4), inplace=True, fuse=False)
    waits = [(step.type, step.depends) for place, _, step in program.steps() if place.rank == 0 and step.depends]
    assert waits == [("s", (0, number)) for number in range(5)]
    assert not any(step.type == "nop" for _, _, step in program.steps())


def test_flags_of_ll_speak_only_for_their_data() -> None:
    program = lower(structs.replace(ring_allreduce(4), protocol="LL"), inplace=True, fuse=False)
    waits = {step.type for place, _, step in program.steps() if place.rank == 0 and step.depends}
    assert waits == {"s", "r"}
    assert check_program.check(program) == []


def test_large_programs_keep_their_clocks_within_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = lower(ring_allreduce(4), inplace=True, fuse=False)
    monkeypatch.setattr(depend, "MAX_CLOCK_CELLS", 10)
    apart = lower(ring_allreduce(4), inplace=True, fuse=False)
    assert check_program.check(apart) == []
    count = [sum(step.depends is not None for _, _, step in program.steps()) for program in (whole, apart)]
    assert count[0] == 20 < count[1]
