"""Messages between ranks: what an exchange asks for, and what carries it.

An exchange is a generator that yields a `Mail` and is sent the words that it expected. A process group carries it
between processes; `in_lockstep` between ranks of one process.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Generator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, distributed

T = TypeVar("T")
Scope = str
"""`intra`, the ranks of a node, or `inter`, those of its local index on all nodes."""


class Mail(NamedTuple):
    """Words [N] int32 to other ranks, and how many are expected from others. Ranks are those of the whole job."""

    scope: Scope
    sent: Mapping[int, Tensor]
    expected: Mapping[int, int]


Received = Mapping[int, Tensor]
Exchange = Generator[Mail, Received, T]


class MailCarrier(Protocol):
    def carry(self, mail: Mail) -> Received:
        """Send, and return what was received."""


class GroupTransport:
    """Over process groups of torch.distributed, by scope."""

    def __init__(self, groups: Mapping[Scope, Any], device: torch.device) -> None:
        self.groups, self.device = groups, device

    def carry(self, mail: Mail) -> Received:
        received = {
            rank: torch.empty(words, dtype=torch.int32, device=self.device) for rank, words in mail.expected.items()
        }
        group = self.groups[mail.scope]
        work = [distributed.P2POp(distributed.irecv, words, rank, group) for rank, words in received.items()]
        work += [distributed.P2POp(distributed.isend, words, rank, group) for rank, words in mail.sent.items()]
        if work:
            for each in distributed.batch_isend_irecv(work):
                each.wait()
        return received


def carried(exchange: Exchange[T], transport: MailCarrier) -> T:
    """The result of an exchange whose messages `transport` carries."""
    try:
        mail = next(exchange)
        while True:
            mail = exchange.send(transport.carry(mail))
    except StopIteration as end:
        result: T = end.value
        return result


def in_lockstep(exchanges: Sequence[Exchange[T]]) -> list[T]:
    """Results of the exchanges of all ranks, by rank, within this process."""
    results: dict[int, T] = {}
    waiting: dict[int, Mail] = {}
    boxes: dict[tuple[int, int], deque[Tensor]] = defaultdict(deque)

    def advance(rank: int, received: Received | None) -> None:
        try:
            mail = next(exchanges[rank]) if received is None else exchanges[rank].send(received)
        except StopIteration as end:
            results[rank] = end.value
            return
        waiting[rank] = mail
        for other, words in mail.sent.items():
            boxes[rank, other].append(words)

    for rank in range(len(exchanges)):
        advance(rank, None)
    while waiting:
        ready = [rank for rank, mail in waiting.items() if all(boxes[other, rank] for other in mail.expected)]
        if not ready:
            raise RuntimeError(f"ranks {sorted(waiting)} wait for messages that no rank sends")
        for rank in ready:
            received = {}
            for other, words in waiting.pop(rank).expected.items():
                received[other] = boxes[other, rank].popleft()
                if received[other].numel() != words:
                    raise RuntimeError(f"rank {rank} expected {words} words of {other}, got {received[other].numel()}")
            advance(rank, received)
    return [results[rank] for rank in range(len(exchanges))]
