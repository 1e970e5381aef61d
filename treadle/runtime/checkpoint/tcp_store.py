"""The embedded store: PyTorch's TCPStore in the agent of machine 0, which therefore is root as long as the job lives.

It has neither leases nor watches. The process that serves it ends leases that were not kept alive by its own clock, and
those who watch ask again and again.
"""

from __future__ import annotations

import base64
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import msgspec

from treadle.planner.errors import InputError
from treadle.runtime.checkpoint.store import ABSENT, LeaseEnded, StoreAway, StoreEntry, StoreWrite

ASK_SECONDS = 0.1
ANSWER_SECONDS = 5.0
_REVISION, _LEASE, _NAMES, _LEASES, _DATA = "revision", "lease", "names", "leases", "key:"


class _Kept(msgspec.Struct, frozen=True, array_like=True):
    """What is under a key: an empty value of no revision where it was removed."""

    revision: int
    lease: int
    value: str


class TcpStore:
    """`commit` compares and writes only its first key at once, which is enough for one root."""

    elects = False

    def __init__(self, host: str, port: int, *, serve: bool, clock: Callable[[], float] = time.monotonic) -> None:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # else each lost connection prints a C++ stack
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        self._place, self._clock, self._closed = f"tcp://{host}:{port}", clock, threading.Event()
        try:
            self._store: Any = TCPStore(
                host, port, None, serve, timedelta(seconds=ANSWER_SECONDS), wait_for_workers=False
            )
        except (RuntimeError, ValueError) as error:
            if serve:
                raise InputError(f"cannot listen at {host}:{port}", where="--store") from error
            raise self._away() from error
        self._beats: dict[int, tuple[int, float]] = {}
        """How often each lease was kept alive, and when that was seen first."""
        if serve:
            threading.Thread(target=self._end_leases, name="treadle-leases", daemon=True).start()

    def get(self, key: str) -> StoreEntry | None:
        return self._shown(self._text(key))

    def get_prefix(self, prefix: str) -> dict[str, StoreEntry]:
        found = {key: self._shown(text) for key, text in self._texts(prefix)}
        return {key: entry for key, entry in found.items() if entry is not None}

    def put(self, key: str, value: bytes, lease: int = 0) -> int:
        while True:
            before = self._text(key)
            if revision := self._replace(key, before, value, lease):
                return revision

    def commit(self, expected: Mapping[str, int], writes: Sequence[StoreWrite]) -> int | None:
        before = {key: self._text(key) for key in {*expected, *(each.key for each in writes)}}
        if any(_kept(before[key]).revision != revision for key, revision in expected.items()):
            return None
        first, *rest = writes
        revision = self._replace(first.key, before[first.key], first.value, first.lease)
        for each in rest if revision else ():
            revision = self.put(each.key, each.value, each.lease)
        return revision

    def delete(self, key: str) -> None:
        while text := self._text(key):
            if self._call("compare_set", _DATA + key, text, "") == b"":
                self._call("add", _REVISION, 1)
                return

    def lease(self, seconds: float) -> int:
        lease = int(self._call("add", _LEASE, 1))
        self._call("append", _LEASES, f"{lease} {math.ceil(seconds * 1000)}\n")
        self._call("add", f"{_LEASE} {lease}", 1)
        return lease

    def keep_alive(self, lease: int) -> None:
        if self._call("add", f"{_LEASE} {lease}", 1) < 0:
            raise LeaseEnded("the lease has ended")

    def revoke(self, lease: int) -> None:
        self._call("add", f"{_LEASE} {lease}", _ENDED)
        for key, text in self._texts(""):
            if _kept(text).lease == lease:
                self.delete(key)

    def watch(self, prefix: str, since: int) -> Iterator[str]:
        seen: dict[str, str] | None = None
        while not self._closed.is_set():
            with suppress(StoreAway):
                now = dict(self._texts(prefix))
                if seen is None:
                    seen = {key: text for key, text in now.items() if _kept(text).revision <= since}
                yield from (key for key, text in now.items() if seen.get(key, "") != text)
                seen = now
            self._closed.wait(ASK_SECONDS)

    def close(self) -> None:
        self._closed.set()

    def _replace(self, key: str, before: str, value: bytes, lease: int) -> int | None:
        """The revision of the write; None where the key has changed since `before`."""
        if lease and self._call("add", f"{_LEASE} {lease}", 0) < 1:
            raise LeaseEnded("the lease has ended")
        revision = int(self._call("add", _REVISION, 1))
        text = msgspec.json.encode(_Kept(revision, lease, base64.b64encode(value).decode())).decode()
        if not before:
            self._call("append", _NAMES, key + "\n")  # it exists already, since its text was read
        return revision if self._call("compare_set", _DATA + key, before, text) == text.encode() else None

    def _text(self, key: str) -> str:
        """What is under a key, which is created where it is not there: to get such a one blocks."""
        text: bytes = self._call("compare_set", _DATA + key, "", "")
        return text.decode()

    def _texts(self, prefix: str) -> list[tuple[str, str]]:
        """All keys that were ever written, with what is under them now."""
        keys = [key for key in dict.fromkeys(self._lines(_NAMES)) if key.startswith(prefix)]
        found = self._call("multi_get", [_DATA + key for key in keys]) if keys else ()
        return [(key, text.decode()) for key, text in zip(keys, found, strict=True)]

    def _lines(self, name: str) -> list[str]:
        return self._call("get", name).decode().splitlines() if self._call("check", [name]) else []

    def _shown(self, text: str) -> StoreEntry | None:
        kept = _kept(text)
        return StoreEntry(base64.b64decode(kept.value), kept.revision) if text else None

    def _end_leases(self) -> None:
        while not self._closed.wait(ASK_SECONDS):
            with suppress(StoreAway):
                self.end_leases()

    def end_leases(self) -> None:
        """End the leases that are due."""
        now = self._clock()
        for line in self._lines(_LEASES):
            lease, _, length = line.partition(" ")
            beats = int(self._call("add", f"{_LEASE} {lease}", 0))
            if beats > 0 and self._beats.get(int(lease), (0, 0.0))[0] != beats:
                self._beats[int(lease)] = (beats, now)
            elif beats > 0 and now - self._beats[int(lease)][1] > int(length) / 1000:
                self.revoke(int(lease))

    def _call(self, method: str, *arguments: Any) -> Any:
        try:
            return getattr(self._store, method)(*arguments)
        except RuntimeError as error:
            raise self._away() from error

    def _away(self) -> StoreAway:
        return StoreAway(f"the store at {self._place} cannot be reached; the agent of machine 0 serves it")


_ENDED = -(1 << 40)
"""Added to the beats of a lease that has ended."""


def _kept(text: str) -> _Kept:
    return msgspec.json.decode(text, type=_Kept) if text else _Kept(ABSENT, 0, "")
