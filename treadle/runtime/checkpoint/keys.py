"""The keys of a job in the store, and what is under them."""

from __future__ import annotations

from typing import Literal, TypeVar

import msgspec

from treadle.planner.errors import CheckFailed

_Kind = TypeVar("_Kind")
MemoryState = Literal["joining", "fetching", "lacking", "whole"]
"""Whether an agent holds the state of its machine as its epoch asks for. `joining`: it has done no recovery yet;
`lacking`: no one has what it was to fetch."""


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent says of one machine, under its lease."""

    agent: str
    """A new one for each process."""
    address: tuple[str, int] | None = None
    """Where other agents and ranks reach its memory, once it has that."""
    time: float
    """Seconds since 1970 by its own clock, for people."""
    epoch: int
    """The last whose recovery it has begun; 0: none."""
    state: MemoryState
    offers: dict[int, list[int]] = {}
    """For each machine whose state it holds: the versions that are complete on all devices."""
    refused: list[tuple[int, int]] = []
    """Holders and versions whose fetch failed in this epoch."""


class StandbyClaim(msgspec.Struct, frozen=True, kw_only=True):
    """An agent that waits for a machine to be lost, under its lease."""

    host: str
    time: float


class RootClaim(msgspec.Struct, frozen=True, kw_only=True):
    """Who is root, under the lease of that agent."""

    machine: int
    agent: str


class JobPlacement(msgspec.Struct, frozen=True, kw_only=True):
    """What all agents must agree on."""

    plan: str
    """Digest of the decisions."""
    nonce: str
    """Digest of the job's nonce, which itself is not in the store."""
    holders: list[list[int]]


class JobEpoch(msgspec.Struct, frozen=True, kw_only=True):
    """Counts the recoveries of a job; 1 is when all machines have joined for the first time. `settled`: all are whole
    in this epoch, so ranks may go on, and from here on a machine that is away is lost anew."""

    number: int
    root: str
    """The agent that wrote it."""
    settled: bool = False


class PublishedRecovery(msgspec.Struct, frozen=True, kw_only=True):
    """How all machines come to one version. `version` None: from persistent storage, or the beginning."""

    epoch: int
    failed: list[int]
    """Machines whose memory is lost: another agent takes their number."""
    version: int | None
    sources: list[list[int]]
    """For each machine: who has its state, in the order in which to ask."""
    agents: dict[int, str]
    """Those of the machines that were there: a machine with another one has failed since."""


class JobKeys:
    """Names of the keys of one job; its name has letters, digits, '.', '_' and '-' alone."""

    def __init__(self, job: str) -> None:
        base = f"/treadle/{job}"
        self.root = f"{base}/root"
        self.placement = f"{base}/placement"
        self.epoch = f"{base}/epoch"
        self.health = f"{base}/health/"
        self.standby = f"{base}/standby/"
        self._recovery = f"{base}/recovery/"

    def machine(self, number: int) -> str:
        return f"{self.health}{number}"

    def spare(self, agent: str) -> str:
        return f"{self.standby}{agent}"

    def recovery(self, epoch: int) -> str:
        return f"{self._recovery}{epoch}"


def written(value: msgspec.Struct) -> bytes:
    return msgspec.json.encode(value)


def read(data: bytes, kind: type[_Kind], key: str) -> _Kind:
    """Raises CheckFailed for anything that agents of this version do not write."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise CheckFailed(f"{key} in the store is not of this version of treadle: {error}") from None
