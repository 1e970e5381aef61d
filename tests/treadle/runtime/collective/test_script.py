"""Messages without copies, on a network that moves bytes as early or as late as it may: ranks are threads here."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from tests.codegen.collective.algorithms import random_algorithm, ring_allreduce
from treadle.codegen.collective.lower import lower
from treadle.codegen.collective.program import CollectiveProgram
from treadle.runtime.collective import messages
from treadle.runtime.collective.messages import Executor
from treadle.runtime.collective.script import script_of

LONG = 20.0


@dataclass(eq=False)
class Network:
    """Matches sends and receives. `late`: bytes move only once a rank waits for them, else as soon as both are
    posted. In both cases they move between the two memories, as they are at that moment."""

    late: bool
    ends: dict[tuple[int, int, int], list[list[Tensor | None]]] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def post(self, key: tuple[int, int, int], side: int, tensor: Tensor) -> Work:
        with self.changed:
            pairs = self.ends.setdefault(key, [])
            pair = next((pair for pair in pairs if pair[side] is None), None)
            if pair is None:
                pairs.append(pair := [None, None, None])
            pair[side] = tensor
            work = Work(self, pair)
            if not self.late:
                work.move()
            self.changed.notify_all()
        return work


@dataclass(eq=False)
class Work:
    network: Network
    pair: list[Tensor | None]

    def move(self) -> bool:
        sent, received, done = self.pair
        if sent is None or received is None:
            return False
        if done is None:
            assert sent.shape == received.shape
            received.copy_(sent)
            self.pair[2] = received
        return True

    def wait(self) -> None:
        with self.network.changed:
            if not self.network.changed.wait_for(self.move, LONG):
                raise TimeoutError("the other end was not posted")


@dataclass(eq=False)
class Group:
    """What the executor uses of a process group."""

    network: Network
    rank: int

    def send(self, tensors: list[Tensor], peer: int, tag: int) -> Work:
        return self.network.post((self.rank, peer, tag), 0, tensors[0])

    def recv(self, tensors: list[Tensor], peer: int, tag: int) -> Work:
        return self.network.post((peer, self.rank, tag), 1, tensors[0])


def run(program: CollectiveProgram, inputs: list[Tensor], late: bool, op: str = "sum") -> list[Tensor]:
    """The outputs of all ranks, called twice to see that nothing is left over; the second time counts."""
    network = Network(late)
    outputs: list[Tensor | None] = [None] * len(inputs)

    def work(rank: int) -> None:
        script = script_of(program, rank, inplace=program.inplace, fifo_depth=2)
        executor = Executor(program, rank, Group(network, rank), program.inplace, script)
        for _ in range(2):
            outputs[rank] = executor(inputs[rank].clone(), op=op)

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * LONG)
    assert not any(thread.is_alive() for thread in threads)
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


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    ("name", "inplace"),
    [
        *((name, inplace) for name in ("allreduce", "allgather", "reducescatter") for inplace in (False, True)),
        *((name, inplace) for name in ("broadcast", "reduce") for inplace in (False, True)),
        ("alltoall", False),
    ],
)
def test_random_algorithms(name: str, inplace: bool, late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "PIECE_BYTES", 24)  # most messages travel in pieces
    for seed in range(6):
        decisions = random_algorithm(name, 4, 1 + seed % 3, 1 + seed % 2, seed=seed)
        program = lower(decisions, inplace=inplace, fuse=seed % 2 == 0)
        inputs = [
            torch.randint(-99, 99, (4 * (3 + seed),), generator=torch.Generator().manual_seed(r)) for r in range(4)
        ]
        found = run(program, inputs, late)
        for one, other in zip(found, expected(name, inputs, decisions.root or 0), strict=True):
            assert other is None or torch.equal(one, other)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("inplace", [False, True])
def test_a_ring_with_minimum(inplace: bool, late: bool) -> None:
    inputs = [torch.tensor([5, rank, -rank, 2]) for rank in range(4)]
    found = run(lower(ring_allreduce(4, instances=2), inplace=inplace), inputs, late, op="min")
    assert all(output.tolist() == [5, 0, -3, 2] for output in found)
