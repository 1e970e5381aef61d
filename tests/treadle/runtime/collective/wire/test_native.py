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
from treadle.codegen.collective.program import BlockStep, CollectiveProgram, RankProgram, Threadblock
from treadle.planner.errors import CheckFailed
from treadle.runtime.collective.messages import Executor, OnWire, on_wire
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
    more = [pairs(len(inputs), False) for _ in range(2 * (over == "three streams"))]
    outputs: list[Tensor | None] = [None] * len(inputs)
    wires = [
        RankWire(
            rank,
            sockets[rank],
            2000.0 * (over == "latency"),
            sharing=over == "memory",
            more=[each[rank] for each in more],
        )
        for rank in range(len(inputs))
    ]

    def work(rank: int) -> None:
        executor = on_wire(program, wires[rank], inplace=program.inplace)
        if more:
            script = script_of(program, rank, inplace=program.inplace)
            streams = [0 if action.sends is None else action.sends.tag for action in script]
            executor.carrier = OnWire(wires[rank], script, len(inputs), "three streams", streams)
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


@pytest.mark.parametrize("over", [*OVER, "three streams"])
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


def exchange() -> CollectiveProgram:
    """Two rounds in which each rank sends its only chunk to a partner and adds the partner's to it, in place."""
    place = ("i", 0)
    ranks = []
    for rank in range(4):
        near, far = rank ^ 1, rank ^ 2
        blocks = (
            Threadblock(near, None, 0, (BlockStep("s", place, place, awaited=True),)),
            Threadblock(None, near, 0, (BlockStep("rrc", place, place, depends=(0, 0), awaited=True),)),
            Threadblock(far, None, 0, (BlockStep("s", place, place, depends=(1, 0), awaited=True),)),
            Threadblock(None, far, 0, (BlockStep("rrc", place, place, depends=(2, 0)),)),
        )
        ranks.append(RankProgram(1, 1, 0, blocks))
    return CollectiveProgram("exchange", "allreduce", tuple(ranks), 1, 1, inplace=True, outofplace=False)


@pytest.mark.parametrize(("over", "elements"), [*((over, 1003) for over in OVER), ("memory", 900_001)])
def test_sums_overwrite_what_has_left_while_the_rest_leaves(over: str, elements: int) -> None:
    """The larger messages are many times a ring."""
    inputs = [
        torch.randint(-99, 99, (elements,), dtype=torch.int32, generator=torch.Generator().manual_seed(rank))
        for rank in range(4)
    ]
    for found in run(exchange(), inputs, over):
        assert torch.equal(found, sum(inputs))


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
        tensor = torch.ones(600, dtype=torch.int32 if odd and how == "dtype" else torch.float32)
        try:
            on_wire(program, wires[rank], inplace=True)(tensor, op="max" if odd and how == "op" else "sum")
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


def relay() -> CollectiveProgram:
    """Rank 0 sends two chunks to rank 1, which passes them on to rank 2, which adds them to its own."""

    def rank(send: int | None, recv: int | None, kind: str, *place: tuple[str, int]) -> RankProgram:
        steps = tuple(BlockStep(kind, *((buffer, first + chunk) for buffer, first in place)) for chunk in (0, 1))
        return RankProgram(2, 2, 0, (Threadblock(send=send, recv=recv, channel=0, steps=steps),))

    ranks = (
        rank(1, None, "s", ("i", 0), ("o", 0)),
        rank(2, 0, "rcs", ("i", 0), ("o", 0)),
        rank(None, 1, "rrc", ("i", 0), ("o", 0)),
    )
    return CollectiveProgram("relay", "custom", ranks, chunks_per_loop=2, channels=1, inplace=False, outofplace=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int32])
@pytest.mark.parametrize("over", OVER)
def test_a_relay_passes_whole_elements_on(dtype: torch.dtype, over: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What arrives ends anywhere in an element, which the next rank adds to its own."""
    monkeypatch.setattr(wire_module, "PIECE_BYTES", 24)
    inputs = [torch.arange(2 * 701).mul(rank + 1).remainder(997).to(dtype) for rank in range(3)]
    found = run(relay(), inputs, over)
    assert torch.equal(found[1], inputs[0])
    assert torch.equal(found[2], inputs[0] + inputs[2])


def half_of_a_call() -> tuple[RankWire, Executor, socket.socket]:
    """Rank 0 of two, whose other rank never calls; with that one's end of the stream."""
    sockets = pairs(2, False)
    program = lower(ring_allreduce(2), inplace=True)
    wire = RankWire(0, sockets[0], sharing=False)
    far = sockets[1][0]
    assert far is not None
    return wire, on_wire(program, wire, inplace=True), far


def test_a_wire_that_is_closed_ends_the_call_of_another_thread() -> None:
    wire, executor, far = half_of_a_call()
    said: list[str] = []

    def work() -> None:
        try:
            executor(torch.ones(600))
        except CheckFailed as error:
            said.append(str(error))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert far.recv(1)  # the call has begun
    wire.close()
    thread.join(LONG)
    assert said == ["rank 0: the call was stopped"]
    with pytest.raises(CheckFailed, match="destroyed"):
        executor(torch.ones(600))
    far.close()


def test_no_call_goes_on_with_what_an_interrupted_one_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second Ctrl-C can come before the first one has told the other ranks."""
    wire, executor, far = half_of_a_call()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(wire_module.library(), "wire_resume", interrupted)
        patched.setattr(wire_module.library(), "wire_abandon", interrupted)
        with pytest.raises(KeyboardInterrupt):
            executor(torch.ones(600))
    with pytest.raises(CheckFailed, match="rank 0: an earlier call was interrupted"):
        executor(torch.ones(600))
    wire.close()
    far.close()
