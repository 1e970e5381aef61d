"""Holders of a small job in this process, each the other one's peer, and ranks that send to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from treadle.planner.passes.checkpoint.decisions import OwnPiece, StatePiece
from treadle.runtime.checkpoint.holder import Holder
from treadle.runtime.checkpoint.local import LocalAgent
from treadle.runtime.checkpoint.memory import Bytes
from treadle.runtime.checkpoint.sender import Sender

BYTES = 100_000
NONCE = bytes(range(32))
HOST = "127.0.0.1"


def state_of(version: int, count: int = BYTES) -> Bytes:
    return np.random.default_rng(version).integers(0, 256, count, np.uint8)


def holder_of(machine: int, machines: int = 2, devices: int = 1, **changed: Any) -> Holder:
    """That of a machine which also hosts the one before it."""
    settings = {"namespace": "job", "nonce": NONCE, "say": print} | changed
    return Holder([machine, (machine - 1) % machines], devices, BYTES, **settings)


def address(holder: Holder) -> tuple[str, int]:
    return HOST, holder.ports[HOST]


def introduce(*holders: Holder, epoch: int = 1) -> None:
    for holder in holders:
        holder.announce(epoch, {each.machine: address(each) for each in holders if each is not holder})


@contextmanager
def two(devices: int = 1) -> Iterator[tuple[Holder, Holder]]:
    with holder_of(0, devices=devices) as first, holder_of(1, devices=devices) as second:
        introduce(first, second)
        yield first, second


def agent_of(holder: Holder, rank: int = 0, **changed: Any) -> LocalAgent:
    return LocalAgent(holder.local, rank, **({"namespace": "job", "nonce": NONCE, "wait_seconds": 0.0} | changed))


def pieces_of(sizes: Sequence[int], copy: int = 1) -> list[StatePiece]:
    """One for each span."""
    offsets = np.cumsum([0, *sizes]).tolist()
    return [
        StatePiece(span=span, copy=copy, offset=offsets[span], bytes=size, buffer=0) for span, size in enumerate(sizes)
    ]


PIECES = pieces_of([30_000, 30_000, 40_000])
OWN = [OwnPiece(message=0, offset=0, bytes=60_000), OwnPiece(message=None, offset=60_000, bytes=40_000)]


@contextmanager
def rank_of(holder: Holder, rank: int = 0, window: int = 4) -> Iterator[tuple[LocalAgent, Sender]]:
    """A rank of the first machine of two, with its sender."""
    with ExitStack() as stack:
        agent = stack.enter_context(agent_of(holder, rank))
        machine = agent.welcome.machine
        yield agent, stack.enter_context(Sender(agent, [machine, 1 - machine], PIECES, OWN, window=window))


def send(sender: Sender, version: int, state: Any = None) -> Any:
    sender.begin(version, [state_of(version) if state is None else state])
    return sender.drain(20)
