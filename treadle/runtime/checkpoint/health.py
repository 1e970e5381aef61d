"""Who is alive: each agent's heartbeat stays in the store as long as its lease, and is written over by no one else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from treadle.planner.errors import CheckFailed
from treadle.runtime.checkpoint.keys import Heartbeat, JobEpoch, JobKeys, PublishedRecovery, RootClaim, read, written
from treadle.runtime.checkpoint.store import ABSENT, KeyStore, StoreEntry, compare_and_put

Clock = Callable[[], float]


class MachineTaken(CheckFailed):
    """Another agent is the machine."""


@dataclass(frozen=True)
class JobView:
    """What the store says of a job, as it was when it was read."""

    heartbeats: Mapping[int, Heartbeat]
    root: RootClaim | None
    epoch: JobEpoch | None
    epoch_revision: int
    recovery: PublishedRecovery | None
    """That of the epoch."""


def job_view(store: KeyStore, keys: JobKeys) -> JobView:
    """Raises StoreAway, CheckFailed for what is not of this version."""
    entry = store.get(keys.epoch)
    epoch = read(entry.value, JobEpoch, keys.epoch) if entry else None
    key = keys.recovery(epoch.number if epoch else 0)
    recovery, root = store.get(key), store.get(keys.root)
    return JobView(
        heartbeats=heartbeats(store.get_prefix(keys.health), keys),
        root=read(root.value, RootClaim, keys.root) if root else None,
        epoch=epoch,
        epoch_revision=entry.revision if entry else ABSENT,
        recovery=read(recovery.value, PublishedRecovery, key) if recovery else None,
    )


def heartbeats(entries: Mapping[str, StoreEntry], keys: JobKeys) -> dict[int, Heartbeat]:
    """By machine."""
    found = {key.removeprefix(keys.health): entry for key, entry in entries.items()}
    return {int(name): read(entry.value, Heartbeat, keys.health + name) for name, entry in sorted(found.items())}


class MachineClaim:
    """One machine's heartbeat in the store, which this agent alone writes for as long as it has its lease."""

    def __init__(self, store: KeyStore, keys: JobKeys, machine: int) -> None:
        self.machine, self._store, self._key = machine, store, keys.machine(machine)
        self._revision = ABSENT

    def beat(self, heartbeat: Heartbeat, lease: int) -> None:
        """The first beat claims the machine, and one after a lease that has ended again. Raises MachineTaken where
        another agent has it, LeaseEnded, StoreAway."""
        while True:
            revision = compare_and_put(self._store, self._key, self._revision, written(heartbeat), lease)
            if revision is not None:
                self._revision = revision
                return
            entry = self._store.get(self._key)
            if entry and (other := read(entry.value, Heartbeat, self._key)).agent != heartbeat.agent:
                where = f", at {other.address[0]}:{other.address[1]}" if other.address else ""
                raise MachineTaken(f"another agent is machine {self.machine}{where}")
            self._revision = entry.revision if entry else ABSENT
