"""What agents need of a key-value store: revisions, keys that end with a lease, and changes that are watched.

The store holds who is alive, who is root and what a recovery does; never bytes of a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from treadle.planner.errors import CheckFailed, InputError
from treadle.runtime.sockets import host_and_port

ABSENT = 0
"""The revision of a key that is not there."""
SCHEMES = ("etcd", "tcp")


class StoreAway(CheckFailed):
    """No endpoint of the store answers; one may later."""


class LeaseEnded(CheckFailed):
    """The lease has ended, and with it the keys that were written under it."""


class StoreEntry(NamedTuple):
    value: bytes
    revision: int
    """Greater than that of any earlier write to the store."""


class StoreWrite(NamedTuple):
    key: str
    value: bytes
    lease: int = 0
    """The key ends with it; 0: it stays."""


class KeyStore(Protocol):
    """Every method but `watch` and `close` raises StoreAway where the store cannot be reached."""

    elects: bool
    """Whether the store outlives the root, so that another agent can become root."""

    def get(self, key: str) -> StoreEntry | None: ...

    def get_prefix(self, prefix: str) -> dict[str, StoreEntry]:
        """All keys that begin with `prefix`, as they were at one moment."""
        ...

    def put(self, key: str, value: bytes, lease: int = 0) -> int:
        """The revision of the write. Raises LeaseEnded."""
        ...

    def commit(self, expected: Mapping[str, int], writes: Sequence[StoreWrite]) -> int | None:
        """All writes at once if each key of `expected` has that revision, or is absent for ABSENT. Returns the revision
        of the writes, None where a key has another one. Raises LeaseEnded."""
        ...

    def delete(self, key: str) -> None: ...

    def lease(self, seconds: float) -> int:
        """A lease that ends `seconds` after it was kept alive last."""
        ...

    def keep_alive(self, lease: int) -> None:
        """Raises LeaseEnded."""
        ...

    def revoke(self, lease: int) -> None:
        """End the lease now."""
        ...

    def watch(self, prefix: str, since: int) -> Iterator[str]:
        """Names of keys with `prefix` that are written after revision `since`, as it happens, until the store is
        closed. A store that is away is tried again."""
        ...

    def close(self) -> None: ...


def compare_and_put(store: KeyStore, key: str, expected: int, value: bytes, lease: int = 0) -> int | None:
    """Write `key` if it has the revision `expected`, or is absent for ABSENT. The revision, None where it has not."""
    return store.commit({key: expected}, [StoreWrite(key, value, lease)])


def open_store(address: str, serve: bool) -> KeyStore:
    """The store at `etcd://HOST:PORT[,etcd://HOST:PORT...]` or `tcp://HOST:PORT`. `serve`: whether this process holds
    the embedded one of the second form. Raises InputError for another address, StoreAway where none answers."""
    scheme, places = parsed(address)
    if scheme == "etcd":
        from treadle.runtime.checkpoint.etcd_store import EtcdStore

        return EtcdStore(places)
    from treadle.runtime.checkpoint.tcp_store import TcpStore

    return TcpStore(*places[0], serve=serve)


def parsed(address: str) -> tuple[str, list[tuple[str, int]]]:
    """Scheme and places of an address. A scheme stands for all places behind it. Raises InputError."""
    scheme, found, rest = address.partition("://")
    if not found or scheme not in SCHEMES:
        raise InputError(f"found {address!r}, expected etcd://HOST:PORT or tcp://HOST:PORT", where="--store")
    places = [host_and_port(each.strip().removeprefix(f"{scheme}://"), "--store") for each in rest.split(",")]
    if scheme == "tcp" and len(places) > 1:
        raise InputError(f"found {len(places)} places, expected one; etcd has several", where="--store")
    return scheme, places
