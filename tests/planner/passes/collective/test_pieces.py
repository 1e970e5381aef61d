"""The same routes in more pieces: still right, and never below one piece's bytes."""

from __future__ import annotations

import pytest

from tests.planner.passes.collective.build import MB, MESH, relay, relay_sketch, ring, switch
from treadle.planner.passes.collective.check import check
from treadle.planner.passes.collective.decisions import decisions_of
from treadle.planner.passes.collective.limits import Effort
from treadle.planner.passes.collective.pieces import in_pieces
from treadle.planner.passes.collective.planning import METHODS
from treadle.planner.passes.collective.synthesis import Request


@pytest.mark.parametrize(
    ("collective", "method"),
    [
        ("allgather", "ring"),
        ("reducescatter", "all-pairs"),
        ("allreduce", "ring"),
        ("allreduce", "recursive-doubling"),
        ("allreduce", "double-tree"),
        ("alltoall", "all-pairs"),
        ("broadcast", "binomial"),
    ],
)
@pytest.mark.parametrize("count", [2, 3])
def test_every_transfer_becomes_as_many_of_the_same_link(collective, method, count):
    request = Request(collective, switch(4), MESH, MB)
    whole = METHODS[method](request, Effort())
    cut = in_pieces(whole, request, count)
    assert cut is not None
    assert cut.problem.chunkup == count * whole.problem.chunkup
    assert check(decisions_of(cut, None, None)) == []
    wanted = [(move.chunk, move.src, move.dst, move.reduce) for move in whole.transfers for _ in range(count)]
    assert sorted((m.chunk // count, m.src, m.dst, m.reduce) for m in cut.transfers) == sorted(wanted)


def test_messages_of_several_chunks_stay_messages_of_neighbours():
    request = Request("allgather", relay(1, 10, 5), relay_sketch(batching=True), 4096)
    whole = METHODS["milp"](request, Effort())
    cut = in_pieces(whole, request, 2)
    assert cut is not None
    assert check(decisions_of(cut, None, None)) == []
    assert cut.makespan_ns <= 2 * whole.makespan_ns


def test_chunks_of_few_bytes_stay_whole():
    request = Request("allreduce", ring(4), MESH, 4096)
    whole = METHODS["ring"](request, Effort())
    assert whole.problem.chunk_bytes <= 1024
    assert in_pieces(whole, request, 4) is None
