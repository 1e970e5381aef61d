"""A store and a memory for tests of agents: time passes only when a test says so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from treadle.planner.errors import CheckFailed
from treadle.runtime.checkpoint.store import LeaseEnded, StoreAway, StoreEntry, StoreWrite


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Cluster:
    """What an etcd keeps."""

    clock: Clock
    revision: int = 0
    keys: dict[str, tuple[StoreEntry, int]] = field(default_factory=dict)
    leases: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Seconds, and when it ends."""

    def expire(self) -> None:
        self.leases = {each: (length, end) for each, (length, end) in self.leases.items() if end > self.clock.now}
        self.keys = {
            key: (entry, lease) for key, (entry, lease) in self.keys.items() if not lease or lease in self.leases
        }


class StandInStore:
    """One agent's connection to a cluster; `cut`: it reaches nothing."""

    elects = True

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self.cut = cluster, False

    def get(self, key: str) -> StoreEntry | None:
        return self.get_prefix(key).get(key)

    def get_prefix(self, prefix: str) -> dict[str, StoreEntry]:
        keys = self._reached().keys
        return {key: entry for key, (entry, _) in sorted(keys.items()) if key.startswith(prefix)}

    def put(self, key: str, value: bytes, lease: int = 0) -> int:
        cluster = self._reached()
        if lease and lease not in cluster.leases:
            raise LeaseEnded("the lease has ended")
        cluster.revision += 1
        cluster.keys[key] = StoreEntry(value, cluster.revision), lease
        return cluster.revision

    def commit(self, expected: Mapping[str, int], writes: Sequence[StoreWrite]) -> int | None:
        for key, revision in expected.items():
            entry = self.get(key)
            if (entry.revision if entry else 0) != revision:
                return None
        return max(self.put(*each) for each in writes)

    def delete(self, key: str) -> None:
        self._reached().keys.pop(key, None)

    def lease(self, seconds: float) -> int:
        cluster = self._reached()
        cluster.revision += 1
        cluster.leases[cluster.revision] = seconds, cluster.clock.now + seconds
        return cluster.revision

    def keep_alive(self, lease: int) -> None:
        cluster = self._reached()
        if lease not in cluster.leases:
            raise LeaseEnded("the lease has ended")
        length = cluster.leases[lease][0]
        cluster.leases[lease] = length, cluster.clock.now + length

    def revoke(self, lease: int) -> None:
        self._reached().leases.pop(lease, None)
        self._cluster.expire()

    def watch(self, prefix: str, since: int) -> Iterator[str]:
        return iter(())

    def close(self) -> None:
        self.cut = True

    def _reached(self) -> Cluster:
        if self.cut:
            raise StoreAway("the store at etcd://test:1 cannot be reached: cut off")
        self._cluster.expire()
        return self._cluster


class StandInMemory:
    """Holds versions by name; `damaged` ones fail when they are fetched. `others` are all memories, by machine."""

    def __init__(self, machine: int, hosted: Sequence[int], others: dict[int, StandInMemory]) -> None:
        self.machine, self.others = machine, others
        self.held: dict[int, list[int]] = {each: [] for each in hosted}
        self.damaged: set[tuple[int, int]] = set()
        self.arriving: int | None = None
        """A version that is complete when the next epoch is announced."""
        self.announced: list[tuple[int, dict[int, tuple[str, int]], bool]] = []
        self.address, self.local = (f"host{machine}", 1000 + machine), f"local{machine}"
        others[machine] = self

    def offers(self) -> dict[int, list[int]]:
        return {machine: list(versions) for machine, versions in self.held.items()}

    def complete(self, version: int) -> None:
        for versions in self.held.values():
            versions[:] = [version, *versions[:1]]

    def forget(self, above: int | None) -> None:
        for versions in self.held.values():
            versions[:] = [each for each in versions if above is not None and each <= above]

    def is_sound(self, version: int) -> bool:
        return version in self.held[self.machine]

    def fetch(self, address: tuple[str, int], source: int, version: int) -> None:
        other = self.others[source]
        if address != other.address or version not in other.held[self.machine]:
            raise CheckFailed(f"machine {source} has no version {version}")
        if (self.machine, version) in other.damaged:
            raise CheckFailed(f"machine {source} has version {version} damaged")
        self.held[self.machine] = [version]

    def reports(self) -> list[str]:
        return []

    def announce(self, epoch: int, peers: Mapping[int, tuple[str, int]], *, ready: bool) -> None:
        if self.arriving is not None:  # the last moment for streams of the earlier epoch
            self.complete(self.arriving)
            self.arriving = None
        self.announced.append((epoch, dict(peers), ready))

    @property
    def is_ready(self) -> bool:
        return bool(self.announced) and self.announced[-1][2]


@contextmanager
def opened(memory: StandInMemory) -> Iterator[StandInMemory]:
    yield memory
