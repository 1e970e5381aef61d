"""Rounds of grouped sends and receives: which round each message gets, and that every program's rounds pass their
check."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.codegen.collective.algorithms import random_algorithm, ring_allreduce
from tests.codegen.collective.test_actions import swap
from tests.planner.passes.collective.build import MESH, line
from tests.planner.plans import collective_plan
from treadle.codegen.collective.check_rounds import check_rounds
from treadle.codegen.collective.lower import lower
from treadle.codegen.collective.msccl import xml
from treadle.codegen.collective.program import CollectiveProgram
from treadle.codegen.collective.rounds import LocalWork, RankRounds, Round, Transmission, rounds_of

COLLECTIVES = ("allgather", "reducescatter", "allreduce", "alltoall", "broadcast", "reduce")


def forms(program: CollectiveProgram) -> list[bool]:
    return [inplace for inplace in (False, True) if (program.inplace if inplace else program.outofplace)]


def test_a_ring_sums_up_a_part_a_round_and_passes_the_sums_on() -> None:
    """Three ranks, parts of one chunk: two rounds of sums and two of copies, each rank one message each way."""
    ranks = rounds_of(lower(ring_allreduce(3), inplace=True), inplace=True)
    for rank, own in enumerate(ranks):
        assert [(len(each.sends), len(each.receives)) for each in own.rounds] == [(1, 1)] * 4
        assert {peer for each in own.rounds for peer, _ in each.sends} == {(rank + 1) % 3}
        sums = [work for each in own.rounds for work in each.local]
        # The first sum only passes through, so it is made where it came; it leaves while the next one comes.
        assert [(work.adds, work.target[0], work.source[0]) for work in sums] == [(True, "t", "i"), (True, "i", "t")]
        assert own.staging == 2


def test_an_exchange_in_place_arrives_in_staging() -> None:
    for rank, own in enumerate(rounds_of(swap(), inplace=True)):
        sent, taken = Transmission(1 - rank, ("i", 0, 1)), Transmission(1 - rank, ("t", 0, 1))
        copied = LocalWork(("i", 0, 1), ("t", 0, 1), adds=False, wave=0)
        assert own == RankRounds((Round((), (sent,), (taken,)), Round((copied,), (), ())), 1)


def test_messages_of_neighbouring_chunks_travel_as_one() -> None:
    """Two pieces from every rank to every other, next to each other at both ends."""
    plan = collective_plan("allgather", line(2), MESH, size_bytes=2**12).decisions
    program = lower(plan)
    (first,) = [each for each in rounds_of(program, inplace=False)[0].rounds if each.sends]
    assert [place[2] for _, place in first.sends] == [program.part_chunks]


@given(st.sampled_from(COLLECTIVES), st.integers(2, 5), st.integers(1, 3), st.integers(1, 2), st.integers(0, 10**6))
def test_rounds_of_random_programs_pass_their_check(
    collective: str, ranks: int, chunkup: int, instances: int, seed: int
) -> None:
    for inplace in (False,) if collective == "alltoall" else (False, True):
        program = lower(random_algorithm(collective, ranks, chunkup, instances, seed), inplace=inplace)
        made = rounds_of(program, inplace=inplace)
        assert check_rounds(program, made, inplace=inplace) == []


def test_rounds_of_public_files_pass_their_check(data_dir: Path) -> None:
    files = sorted((data_dir / "msccl").glob("**/*.xml"))
    assert len(files) >= 13
    for file in files:
        program = xml.parse(file.read_text(), file.name)
        for inplace in forms(program):
            assert check_rounds(program, rounds_of(program, inplace=inplace), inplace=inplace) == [], file.name


@pytest.mark.parametrize("ranks", [2, 3])
def test_no_round_is_empty(ranks: int) -> None:
    for own in rounds_of(lower(ring_allreduce(ranks)), inplace=False):
        assert all(each.local or each.sends or each.receives for each in own.rounds)
