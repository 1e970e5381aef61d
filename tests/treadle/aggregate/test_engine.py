"""Chunks and levels overlap: three ranks are threads here, and the fourth is this test, which sends what it likes."""

from __future__ import annotations

import socket
import struct
import threading

import torch

from tests.planner.passes.aggregation.aggregation_plans import decisions_on, problem_on
from tests.treadle.runtime.collective.wire.test_native import pairs
from treadle.aggregate.engine import engine
from treadle.planner.errors import CheckFailed
from treadle.runtime.collective.wire.native import RankWire

GROUPS = ((0, 1), (2, 3))
PLAN = decisions_on(problem_on(GROUPS), GROUPS, 8)
ELEMENTS, SELF = 80, 3
FRAME = struct.Struct("=IIIIQQ")
"""As `Frame` of the wire: kind, call, tag, bytes, bytes of the message, what is called."""


class Other:
    """What a rank of the three sends to this test, and its end of the stream."""

    def __init__(self, stream: socket.socket) -> None:
        self.stream = stream
        stream.settimeout(20)

    def frame(self) -> tuple[tuple[int, ...], list[int]]:
        head = FRAME.unpack(self.stream.recv(FRAME.size, socket.MSG_WAITALL))
        values = self.stream.recv(head[3], socket.MSG_WAITALL)
        return head, torch.frombuffer(bytearray(values), dtype=torch.int64).tolist()


def test_a_late_rank_holds_up_its_own_chunks_only() -> None:
    sockets = pairs(4, False)
    wires = [RankWire(rank, sockets[rank], sharing=False) for rank in range(SELF)]
    others = [Other(stream) for stream in sockets[SELF][:SELF] if stream is not None]
    said: list[str] = []

    def work(rank: int) -> None:
        try:
            engine(PLAN, wires[rank])(torch.full((ELEMENTS,), 10**rank, dtype=torch.int64))
        except CheckFailed as error:
            said.append(str(error))

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(SELF)]
    for thread in threads:
        thread.start()
    # This rank has sent nothing yet, and gets what it is to add up: of its group, and sums of the other group.
    width = ELEMENTS // len(PLAN.chunks)
    kind = call = what = 0
    for rank, other in enumerate(others):
        expected = {
            number: [11 if rank < 2 else 100] * width
            for number, chunk in enumerate(PLAN.chunks)
            if (chunk.top == SELF and rank in chunk.local) or (chunk.local[1] == SELF and rank == 2)
        }
        found = {}
        for _ in expected:
            (kind, call, tag, _, _, what), values = other.frame()
            found[tag] = values
        assert found == expected
    assert 2 in {rank for rank in range(3) for chunk in PLAN.chunks if chunk.local[1] == rank}
    # It sends what it has of the last chunk that another rank adds up: that total comes, and no other.
    last, local = next(
        (number, chunk.local[1]) for number, chunk in reversed([*enumerate(PLAN.chunks)]) if chunk.local[1] != SELF
    )
    own = torch.full((width,), 1000, dtype=torch.int64).numpy().tobytes()
    others[local].stream.sendall(FRAME.pack(kind, call, last, len(own), len(own), what) + own)
    (_, _, tag, _, _, _), values = others[local].frame()
    assert (tag, values) == (last, [1111] * width)
    for wire in wires:
        wire.close()
    for thread in threads:
        thread.join(20)
    assert len(said) == SELF
