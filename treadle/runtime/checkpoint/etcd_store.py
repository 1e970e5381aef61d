"""etcd 3.4 or newer as a store, through its JSON gateway: a POST for each request, a response without end to watch.

Keys and values are base64 there, and 64-bit numbers are texts.
"""

from __future__ import annotations

import base64
import http.client
import json
import math
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from treadle.planner.errors import CheckFailed
from treadle.runtime.checkpoint.store import LeaseEnded, StoreAway, StoreEntry, StoreWrite
from treadle.runtime.wire.control_stream import tune

ANSWER_SECONDS = 2.0
AGAIN_SECONDS = 0.5
"""Between two attempts to watch."""
AWAY = frozenset((429, 500, 502, 503, 504))
"""Answers of a member without a leader, or of one that is starting or ending: another one may do better."""


class EtcdStore:
    """Uses one of several members of a cluster until it fails, then the next one."""

    elects = True

    def __init__(self, places: Sequence[tuple[str, int]]) -> None:
        self._places, self._closed, self._lock = tuple(places), threading.Event(), threading.Lock()
        self._connection: http.client.HTTPConnection | None = None
        self._member = 0
        self._watching: set[http.client.HTTPConnection] = set()

    def get(self, key: str) -> StoreEntry | None:
        return self._range({"key": _coded(key)}).get(key)

    def get_prefix(self, prefix: str) -> dict[str, StoreEntry]:
        return self._range(_below(prefix))

    def put(self, key: str, value: bytes, lease: int = 0) -> int:
        return _revision(self._call("kv/put", _put(StoreWrite(key, value, lease))))

    def commit(self, expected: Mapping[str, int], writes: Sequence[StoreWrite]) -> int | None:
        """An answer may be lost with its member after the cluster has written, so that a second attempt finds the
        writes of the first: equal values of all keys are such."""
        compare = [
            {"key": _coded(key), "target": "MOD", "mod_revision": str(revision), "result": "EQUAL"}
            for key, revision in expected.items()
        ]
        reads = [{"request_range": {"key": _coded(each.key)}} for each in writes]
        body = {"compare": compare, "success": [{"request_put": _put(each)} for each in writes], "failure": reads}
        attempts: list[int] = []
        answer = self._call("kv/txn", body, attempts)
        if answer.get("succeeded"):
            return _revision(answer)
        if len(attempts) > 1:
            found = [_entries(each["response_range"]) for each in answer["responses"]]
            wrote = [entries.get(each.key) for entries, each in zip(found, writes, strict=True)]
            if all(entry and entry.value == each.value for entry, each in zip(wrote, writes, strict=True)):
                return max(entry.revision for entry in wrote if entry)
        return None

    def delete(self, key: str) -> None:
        self._call("kv/deleterange", {"key": _coded(key)})

    def lease(self, seconds: float) -> int:
        return int(self._call("lease/grant", {"TTL": str(math.ceil(seconds))})["ID"])

    def keep_alive(self, lease: int) -> None:
        if int(self._call("lease/keepalive", {"ID": str(lease)})["result"].get("TTL", 0)) <= 0:
            raise LeaseEnded("the lease has ended")

    def revoke(self, lease: int) -> None:
        with suppress(LeaseEnded):
            self._call("lease/revoke", {"ID": str(lease)})

    def watch(self, prefix: str, since: int) -> Iterator[str]:
        start = since + 1
        while not self._closed.is_set():
            try:
                for result in self._results({**_below(prefix), "start_revision": str(start)}):
                    start = max(start, _revision(result) + 1, int(result.get("compact_revision", 0)))
                    yield from (_text(event["kv"]["key"]) for event in result.get("events", ()))
            except (OSError, http.client.HTTPException, ValueError):
                pass
            self._member += 1
            self._closed.wait(AGAIN_SECONDS)

    def close(self) -> None:
        self._closed.set()
        for connection in (*self._watching, self._connection):
            if connection and connection.sock:
                with suppress(OSError):
                    connection.sock.shutdown(socket.SHUT_RDWR)

    def _results(self, request: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """What the answer to a watch holds, line by line, as it comes."""
        connection = self._connected()
        self._watching.add(connection)
        try:
            connection.request("POST", "/v3/watch", json.dumps({"create_request": request}))
            response = connection.getresponse()
            assert connection.sock is not None
            tune(connection.sock)  # waits without limit, but not for a host that is gone
            while not self._closed.is_set() and (line := response.readline()):
                result = json.loads(line).get("result", {})
                yield result
                if result.get("canceled"):
                    return
        finally:
            self._watching.discard(connection)
            connection.close()

    def _range(self, keys: dict[str, str]) -> dict[str, StoreEntry]:
        return _entries(self._call("kv/range", keys))

    def _call(self, path: str, body: Mapping[str, Any], attempts: list[int] | None = None) -> Any:
        """The answer of a member. `attempts` gets the members that were asked; one twice where a connection that was
        idle is no longer good."""
        reasons: list[str] = []
        with self._lock:
            for _ in range(len(self._places) + (self._connection is not None)):
                idle = self._connection is not None
                if attempts is not None:
                    attempts.append(self._member)
                try:
                    status, answer = self._ask(path, json.dumps(body))
                except (OSError, http.client.HTTPException, ValueError) as error:
                    reasons = [] if idle else [*reasons, _words(error)]
                else:
                    if status == http.HTTPStatus.OK:
                        return answer
                    reason = _reason(answer)
                    if "lease not found" in reason:
                        raise LeaseEnded("the lease has ended")
                    if status not in AWAY:
                        raise CheckFailed(f"the store at {self._shown()} refuses a request: {reason}")
                    idle, reasons = False, [*reasons, reason]
                self._drop()
                self._member += not idle
        raise StoreAway(f"the store at {self._shown()} cannot be reached: {', '.join(dict.fromkeys(reasons))}")

    def _ask(self, path: str, body: str) -> tuple[int, Any]:
        if self._connection is None:
            self._connection = self._connected()
        self._connection.request("POST", f"/v3/{path}", body)
        response = self._connection.getresponse()
        data = response.read()
        return response.status, json.loads(data)

    def _connected(self) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(*self._places[self._member % len(self._places)], ANSWER_SECONDS)
        connection.connect()
        return connection

    def _drop(self) -> None:
        if self._connection:
            self._connection.close()
        self._connection = None

    def _shown(self) -> str:
        return ",".join(f"etcd://{host}:{port}" for host, port in self._places)


def _coded(key: str | bytes) -> str:
    return base64.b64encode(key.encode() if isinstance(key, str) else key).decode()


def _text(key: str) -> str:
    return base64.b64decode(key).decode()


def _below(prefix: str) -> dict[str, str]:
    """All keys with the prefix, whose last character is not the greatest one."""
    return {"key": _coded(prefix), "range_end": _coded(prefix[:-1] + chr(ord(prefix[-1]) + 1))}


def _put(write: StoreWrite) -> dict[str, str]:
    return {"key": _coded(write.key), "value": _coded(write.value), "lease": str(write.lease)}


def _entries(answer: Mapping[str, Any]) -> dict[str, StoreEntry]:
    return {
        _text(each["key"]): StoreEntry(base64.b64decode(each.get("value", "")), int(each["mod_revision"]))
        for each in answer.get("kvs", ())
    }


def _revision(answer: Mapping[str, Any]) -> int:
    return int(answer["header"]["revision"])


def _words(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error or type(error).__name__)


def _reason(answer: Any) -> str:
    """A gateway's error, one line: of a stream it is an object."""
    error = answer.get("error", answer) if isinstance(answer, dict) else answer
    return str(error.get("message", error) if isinstance(error, dict) else error)[:200]
