"""Where the computation runs in any algorithm: once per chunk, where the last contribution comes in."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.codegen.collective.algorithms import random_algorithm
from treadle.codegen.collective.cuda.tables import READ, RECEIVE, REDUCE, SEND, WRITE
from treadle.codegen.collective.lower import lower
from treadle.codegen.collective.program import CollectiveProgram
from treadle.codegen.fusion.algorithms import named, planned
from treadle.codegen.fusion.chunking import regular
from treadle.codegen.fusion.collective_stage import send_program
from treadle.codegen.fusion.typed import COMPUTE, FINISHED, TypedProgram, TypedStep, typed_program
from treadle.planner.errors import InputError

NAMES = ("ring", "all-pairs", "double-tree", "binomial")


def program(name: str, collective: str, ranks: int, channels: int = 1) -> CollectiveProgram:
    root = 1 % ranks if collective in ("broadcast", "reduce") else None
    return named(name)(collective, ranks, channels=channels, root=root, protocol="Simple")


def computing(typed: TypedProgram) -> Counter[int]:
    found: Counter[int] = Counter()
    for lanes in typed.lanes:
        for lane in lanes:
            for move in lane.steps:
                if move.flow & COMPUTE:
                    found.update(range(move.chunk, move.chunk + move.count))
    return found


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 8])
def test_each_chunk_of_an_allreduce_is_computed_once(name: str, ranks: int) -> None:
    typed = typed_program(program(name, "allreduce", ranks, 2), computes=True)
    assert computing(typed) == Counter(range(typed.chunks))
    if name in ("ring", "all-pairs") or ranks == 1:
        assert regular(typed, ranks)
    elif ranks > 2:
        assert not regular(typed, ranks)


@pytest.mark.parametrize("name", NAMES[:2])
@pytest.mark.parametrize("collective", ["reducescatter", "allgather", "broadcast", "reduce", "alltoall"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_each_chunk_of_the_others_is_computed_once(name: str, collective: str, ranks: int) -> None:
    typed = typed_program(program(name, collective, ranks, 2), computes=True)
    each = ranks if collective == "alltoall" else 1
    assert computing(typed) == Counter(dict.fromkeys(range(typed.chunks), each))


@pytest.mark.parametrize("collective", ["allreduce", "reducescatter", "allgather", "reduce", "broadcast"])
@pytest.mark.parametrize("seed", range(6))
def test_each_chunk_of_any_algorithm_is_computed_once(collective: str, seed: int) -> None:
    typed = typed_program(lower(random_algorithm(collective, 4, 2, 1, seed)), computes=True)
    assert computing(typed) == Counter(range(typed.chunks))


def test_a_ring_finishes_at_the_last_of_its_sums() -> None:
    lane = typed_program(program("ring", "allreduce", 4), computes=True).lanes[1][0]
    flows = [move.flow for move in lane.steps]
    assert flows == [
        SEND | READ,
        *[RECEIVE | REDUCE | SEND] * 2,
        RECEIVE | REDUCE | WRITE | SEND | COMPUTE,
        *[RECEIVE | WRITE | SEND | FINISHED] * 2,
        RECEIVE | WRITE | FINISHED,
    ]
    assert [move.chunk for move in lane.steps] == [0, 3, 2, 1, 0, 3, 2]


def test_a_gather_takes_its_own_chunk_once() -> None:
    lanes = typed_program(program("all-pairs", "allgather", 3), computes=True).lanes[0]
    every = [move for lane in lanes for move in lane.steps]
    own = [move for move in every if move.source == ("input", 0)]
    assert [move.flow for move in own] == [READ | WRITE | SEND | COMPUTE]
    again = [move for move in every if move.source == ("output", 0)]
    assert [move.after for move in again] == [[own[0]]]


def test_partial_sums_are_staged() -> None:
    def places(move: TypedStep) -> list[tuple[str, int] | None]:
        return [move.source, move.addend, move.target]

    typed = typed_program(program("all-pairs", "allreduce", 3), computes=True)
    for lanes in typed.lanes:
        for lane in lanes:
            for move in lane.steps:
                finished = bool(move.flow & (COMPUTE | FINISHED))
                assert all(place is None or place[0] != "output" for place in places(move)[2 * finished :]) or finished
    assert typed.stages == 1


def test_recursive_doubling_finishes_everywhere() -> None:
    doubling = program("recursive-doubling", "allreduce", 4)
    assert typed_program(doubling, computes=False).chunks
    with pytest.raises(InputError, match="chunk 0 finished at ranks 0, 1, 2, 3, expected one rank"):
        typed_program(doubling, computes=True)


def test_sends_go_to_the_next_group() -> None:
    typed = typed_program(send_program(2, 3, 1, True, "Simple"), computes=True)
    ends = [[(lane.recv, lane.send, lane.steps[0].chunk) for lane in lanes] for lanes in typed.lanes]
    assert ends == [
        *([[(None, 2, 0)], [(None, 3, 1)]]),
        *([[(None, 4, 0), (0, None, 0)], [(None, 5, 1), (1, None, 1)]]),
        *([[(2, None, 0)], [(3, None, 1)]]),
    ]


def test_a_plan_serves_its_own_collective_only() -> None:
    ring = program("ring", "allreduce", 2)
    made = planned(ring)
    assert made("allreduce", 2, channels=4, root=None, protocol="LL") is ring
    with pytest.raises(InputError, match="found a plan for allreduce of 2 ranks, expected one for allgather of 2"):
        made("allgather", 2, channels=1, root=None, protocol="Simple")


def test_algorithms_have_names() -> None:
    with pytest.raises(InputError, match="found algorithm 'star', expected one of all-pairs, binomial"):
        named("star")
