"""The compiled executor over shared memory, and over streams that carry much at once, a few bytes at a time, or late:
ranks are threads here."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from itertools import combinations

import pytest
import torch
from torch import Tensor

from tests.codegen.collective.algorithms import random_algorithm, ring_allreduce
from treadle.codegen.collective.actions import script_of
from treadle.codegen.collective.lower import lower
from treadle.codegen.collective.program import CollectiveProgram
from treadle.planner.errors import CheckFailed
from treadle.runtime.collective.messages import Executor
from treadle.runtime.collective.wire import native as wire_module
from treadle.runtime.collective.wire.native import RankWire

LONG = 30.0
OVER = ("streams", "a few bytes", "latency", "memory")


def pairs(ranks: int, trickles: bool) -> list[list[socket.socket | None]]:
    """A stream between any two ranks. `trickles`: of small buffers, over which a thread passes on a few bytes at a
    time."""
    sockets: list[list[socket.socket | None]] = [[None] * ranks for _ in range(ranks)]
    for one, other in combinations(range(ranks), 2):
        sockets[one][other], sockets[other][one] = socket.socketpair()
        if trickles:
            here, there = socket.socketpair()
            near = sockets[other][one]
            sockets[other][one] = there
            for source, target in ((near, here), (here, near)):
                threading.Thread(target=trickle, args=(source, target, one * ranks + other), daemon=True).start()
        for each in (sockets[one][other], sockets[other][one]):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096 if trickles else 1 << 20)
    return sockets


def trickle(source: socket.socket, target: socket.socket, seed: int) -> None:
    dice = random.Random(seed)
    with contextlib.suppress(OSError):
        while data := source.recv(dice.choice((1, 7, 40, 500))):
            if dice.random() < 0.05:
                time.sleep(0.002)
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def run(program: CollectiveProgram, inputs: list[Tensor], over: str, op: str = "sum") -> list[Tensor]:
    """The outputs of all ranks, called twice to see that nothing is left over; the second time counts."""
    sockets = pairs(len(inputs), over == "a few bytes")
    outputs: list[Tensor | None] = [None] * len(inputs)
    wires = [
        RankWire(rank, sockets[rank], 2000.0 * (over == "latency"), sharing=over == "memory")
        for rank in range(len(inputs))
    ]

    def work(rank: int) -> None:
        script = script_of(program, rank, inplace=program.inplace)
        executor = Executor(program, rank, wires[rank], program.inplace, script)
        for _ in range(2):
            outputs[rank] = executor(inputs[rank].clone(), op=op)

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert not any(thread.is_alive() for thread in threads)
    for wire in wires:
        wire.close()
    return [output for output in outputs if output is not None]


def expected(collective_: str, inputs: list[Tensor], root: int) -> list[Tensor | None]:
    ranks = len(inputs)
    total, whole = sum(inputs), torch.cat(inputs)
    parts = [tensor.chunk(ranks) for tensor in inputs]
    match collective_:
        case "allreduce":
            return [total] * ranks
        case "allgather":
            return [whole] * ranks
        case "reducescatter":
            return list(total.chunk(ranks))
        case "alltoall":
            return [torch.cat([part[rank] for part in parts]) for rank in range(ranks)]
        case "broadcast":
            return [inputs[root]] * ranks
        case _:
            return [total if rank == root else None for rank in range(ranks)]


@pytest.mark.parametrize("over", OVER)
@pytest.mark.parametrize(
    ("name", "inplace"),
    [
        *((name, inplace) for name in ("allreduce", "allgather", "reducescatter") for inplace in (False, True)),
        *((name, inplace) for name in ("broadcast", "reduce") for inplace in (False, True)),
        ("alltoall", False),
    ],
)
def test_random_algorithms(name: str, inplace: bool, over: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_module, "PIECE_BYTES", 24)  # most messages travel in pieces
    for seed in range(6):
        decisions = random_algorithm(name, 4, 1 + seed % 3, 1 + seed % 2, seed=seed)
        program = lower(decisions, inplace=inplace, fuse=seed % 2 == 0)
        inputs = [
            torch.randint(-99, 99, (4 * (3 + seed),), generator=torch.Generator().manual_seed(r)) for r in range(4)
        ]
        found = run(program, inputs, over)
        for one, other in zip(found, expected(name, inputs, decisions.root or 0), strict=True):
            assert other is None or torch.equal(one, other)


@pytest.mark.parametrize("over", OVER)
@pytest.mark.parametrize("inplace", [False, True])
def test_a_ring_with_minimum(inplace: bool, over: str) -> None:
    inputs = [torch.tensor([5, rank, -rank, 2]) for rank in range(4)]
    found = run(lower(ring_allreduce(4, instances=2), inplace=inplace), inputs, over, op="min")
    assert all(output.tolist() == [5, 0, -3, 2] for output in found)


def test_many_ranks_of_one_host_have_small_rings() -> None:
    ranks = 40
    inputs = [torch.full((ranks * 9_000,), rank, dtype=torch.int32) for rank in range(ranks)]
    found = run(lower(ring_allreduce(ranks), inplace=True), inputs, "memory")
    assert all(bool((output == sum(range(ranks))).all()) for output in found)


@pytest.mark.parametrize("over", ["streams", "memory"])
@pytest.mark.parametrize("how", ["op", "dtype", "program"])
def test_ranks_that_call_something_else_are_named(how: str, over: str) -> None:
    """Sizes in bytes are equal, so only what is called differs on rank 2."""
    sockets = pairs(3, False)
    wires = [RankWire(rank, sockets[rank], sharing=over == "memory") for rank in range(3)]
    said: list[str] = []

    def work(rank: int) -> None:
        odd = rank == 2
        program = lower(ring_allreduce(3, instances=2 if odd and how == "program" else 1), inplace=True)
        script = script_of(program, rank, inplace=True)
        tensor = torch.ones(600, dtype=torch.int32 if odd and how == "dtype" else torch.float32)
        try:
            Executor(program, rank, wires[rank], True, script)(tensor, op="max" if odd and how == "op" else "sum")
        except CheckFailed as error:
            said.append(str(error))

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert len(said) == 3
    assert any("called another collective, or with another size, type, op or place" in text for text in said)
    assert not any("ended" in text for text in said)
