"""Which agent is root: the first that writes its name under a key that ends with its lease."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.runtime.checkpoint.keys import JobKeys, RootClaim, read, written
from treadle.runtime.checkpoint.store import ABSENT, KeyStore, StoreWrite, compare_and_put


class Election:
    """Agent `agent` of `machine` stands for root. Where the store does not outlive the root, machine 0 alone does."""

    def __init__(self, store: KeyStore, keys: JobKeys, machine: int, agent: str) -> None:
        self._store, self._key = store, keys.root
        self._claim = RootClaim(machine=machine, agent=agent)
        self._eligible = store.elects or machine == 0
        self._fence: int | None = None
        """The revision of this agent's claim: no later root has it."""

    def stand(self, lease: int) -> bool:
        """Whether this agent is root now. Raises LeaseEnded, StoreAway."""
        entry = self._store.get(self._key)
        if entry is None:
            claim = written(self._claim)
            self._fence = compare_and_put(self._store, self._key, ABSENT, claim, lease) if self._eligible else None
        else:
            own = read(entry.value, RootClaim, self._key) == self._claim
            self._fence = entry.revision if own else None
        return self._fence is not None

    def publish(self, key: str, expected: int, writes: Sequence[StoreWrite]) -> bool:
        """Write only as root: in the same transaction the claim must be the one that this agent made, and `key` have
        the revision `expected`. So one that was root, and does not know yet that it is no longer, changes nothing."""
        if self._fence is None:
            return False
        return self._store.commit({self._key: self._fence, key: expected}, writes) is not None
