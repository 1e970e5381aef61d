"""What an exchange did: bytes by round and peer, and how dense gradients were."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from treadle.runtime.sparse.mail import Mail, Scope

WORD_BYTES = 4


class RoundBytes(NamedTuple):
    """Bytes that this rank sent to and received from each other rank in one round of a scheme."""

    scope: Scope
    stage: str
    """`push` or `pull`."""
    number: int
    sent: Mapping[int, int]
    received: Mapping[int, int]


class Growth(NamedTuple):
    """Memory for parts that did not do, and what became of it, in words of 4 bytes."""

    gradient: str
    exchange: int
    """The number of exchanges of that gradient before."""
    nonzero: int
    units: int
    before: int
    after: int
    retries: int


@dataclass
class ExchangeTally:
    """One exchange of one gradient on this rank."""

    gradient: str
    scheme: str
    rounds: list[RoundBytes] = field(default_factory=list)
    nonzero: int | None = None
    """Units of this rank's contribution between nodes that were not zero; None where the scheme does not look."""
    units: int = 0
    growth: Growth | None = None

    @property
    def density(self) -> float | None:
        return None if self.nonzero is None else self.nonzero / max(1, self.units)

    def sent(self) -> int:
        """Bytes sent, inside the node and between nodes."""
        return sum(sum(each.sent.values()) for each in self.rounds)

    def count(self, stage: str, number: int, mails: list[Mail]) -> None:
        """Take in one round, whose heads and bodies are `mails`."""
        sent: dict[int, int] = {}
        received: dict[int, int] = {}
        for mail in mails:
            for rank, words in mail.sent.items():
                sent[rank] = sent.get(rank, 0) + words.numel() * WORD_BYTES
            for rank, expected in mail.expected.items():
                received[rank] = received.get(rank, 0) + expected * WORD_BYTES
        self.rounds.append(RoundBytes(mails[0].scope, stage, number, sent, received))
