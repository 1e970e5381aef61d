"""Messages between ranks: what an exchange asks for, and what carries it.

An exchange is a generator that yields a `Mail` and is sent the words that it expected. A process group carries it
between processes; `in_lockstep` between ranks of one process.
"""

from __future__ import annotations

import time
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
        self.waited_ns = dict.fromkeys(groups, 0)
        """Time in `carry` so far."""

    def carry(self, mail: Mail) -> Received:
        start = time.perf_counter_ns()
        received = {
            rank: torch.empty(words, dtype=torch.int32, device=self.device) for rank, words in mail.expected.items()
        }
        group = self.groups[mail.scope]
        work = [distributed.P2POp(distributed.irecv, words, rank, group) for rank, words in received.items()]
        work += [distributed.P2POp(distributed.isend, words, rank, group) for rank, words in mail.sent.items()]
        if work:
            for each in distributed.batch_isend_irecv(work):
                each.wait()
        self.waited_ns[mail.scope] += time.perf_counter_ns() - start
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


def together(exchanges: Mapping[str, Exchange[T]]) -> Exchange[dict[str, T]]:
    """The results of several exchanges by name, whose messages to one rank are sent as one.

    Every rank takes the same steps of each exchange, so that what is joined here is what others expect.
    """
    results: dict[str, T] = {}
    mails: dict[str, Mail] = {}

    def advance(name: str, received: Received | None) -> None:
        try:
            mails[name] = next(exchanges[name]) if received is None else exchanges[name].send(received)
        except StopIteration as end:
            results[name] = end.value
            mails.pop(name, None)

    for name in exchanges:
        advance(name, None)
    while mails:
        received: dict[str, dict[int, Tensor]] = {name: {} for name in mails}
        for scope in sorted({mail.scope for mail in mails.values()}):
            of_scope = {name: mail for name, mail in mails.items() if mail.scope == scope}
            arrived = yield _joint(scope, list(of_scope.values()))
            for rank, words in arrived.items():
                sizes = [mail.expected.get(rank, 0) for mail in of_scope.values()]
                for name, size, part in zip(of_scope, sizes, words.split(sizes), strict=True):
                    if size:
                        received[name][rank] = part
        for name in list(mails):
            advance(name, received[name])
    return results


def _joint(scope: Scope, mails: Sequence[Mail]) -> Mail:
    """One mail with the words of all, in their order."""
    sent: dict[int, list[Tensor]] = defaultdict(list)
    expected: dict[int, int] = defaultdict(int)
    for mail in mails:
        for rank, words in mail.sent.items():
            sent[rank].append(words)
        for rank, size in mail.expected.items():
            expected[rank] += size
    return Mail(scope, {rank: joined(words) for rank, words in sent.items()}, expected)


def joined(words: list[Tensor]) -> Tensor:
    """Words one after the other, those of a single message as they are."""
    return words[0] if len(words) == 1 else torch.cat(words)


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
