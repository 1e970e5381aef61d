"""Where a server listens: a thread that lets in who proves to know a job's nonce, and bothers no one with the rest."""

from __future__ import annotations

import os
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from treadle.planner.documents.scalars import many
from treadle.planner.errors import InputError
from treadle.runtime.wire.greeting import (
    CHALLENGE_BYTES,
    GREETING_BYTES,
    GREETING_SECONDS,
    Greeting,
    answer,
    is_proved,
    read,
    session_key,
)

MOST_UNPROVED = 256
"""Connections that have not proved themselves; the oldest goes when there are more."""
BACKLOG = 512
QUIET_SECONDS = 10.0
"""Least time between two lines on connections that were refused."""

KeyOf = Callable[[Greeting], bytes | None]
"""The key that a caller must know; None where there is no such job, worker or session."""
Admit = Callable[[Greeting, socket.socket, bytes], None]
"""Takes a caller that is proved, in blocking mode, with the key of its session."""


@dataclass
class _Caller:
    stream: socket.socket
    origin: str
    until: float
    challenge: bytes
    data: bytearray = field(default_factory=bytearray)


class Door:
    """Listens at `addresses`, hosts of this machine, and under a name for processes of this host."""

    def __init__(self, addresses: Sequence[str], port: int, key_of: KeyOf, admit: Admit, say: Callable[[str], None]):
        """`port` 0: any that is free. Raises InputError where it cannot listen."""
        self._key_of, self._admit, self._say = key_of, admit, say
        self._callers: dict[int, _Caller] = {}
        self._refused, self._said = 0, float("-inf")
        self._selector = selectors.DefaultSelector()
        self.ports: dict[str, int] = {}
        self.local = f"treadle-{secrets.token_hex(16)}"
        self._listeners: list[socket.socket] = []
        try:
            for address in dict.fromkeys(addresses):
                self._listen(address, port)
            near = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._listeners.append(near)
            near.bind("\0" + self.local)
            near.listen(BACKLOG)
        except BaseException:
            self._close()
            raise
        for listener in self._listeners:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ, listener)
        self._wake, self._waker = os.pipe()
        self._selector.register(self._wake, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._watch, name="treadle-door", daemon=True)

    def open(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Let no one in any more."""
        if self._thread.ident is None:
            self._close()
        else:
            os.write(self._waker, b"x")
            self._thread.join()
        os.close(self._wake)
        os.close(self._waker)

    def _listen(self, address: str, port: int) -> None:
        try:
            listener = socket.create_server((address, port), backlog=BACKLOG)
        except OSError as error:
            where = f"{address}:{port}" if port else address
            reason = error.strerror or str(error)
            raise InputError(f"cannot listen at {where}: {reason.partition(' (while')[0]}", where="--address") from None
        self._listeners.append(listener)
        self.ports[address] = listener.getsockname()[1]

    def _watch(self) -> None:
        while True:
            for key, _ in self._selector.select(self._seconds()):
                if key.data is None:
                    self._close()
                    return
                if isinstance(key.data, _Caller):
                    self._hear(key.data)
                else:
                    self._accept_all(key.data)
            while (first := next(iter(self._callers.values()), None)) and first.until <= time.monotonic():
                self._refuse(first)

    def _seconds(self) -> float | None:
        first = next(iter(self._callers.values()), None)
        return None if first is None else max(0.0, first.until - time.monotonic())

    def _accept_all(self, listener: socket.socket) -> None:
        """As many as wait, so that a flood does not fill the queue of the system."""
        for _ in range(BACKLOG):
            try:
                self._accept(*listener.accept())
            except BlockingIOError:
                return
            except OSError:  # it is gone already, or this process has no descriptors left
                if self._callers:
                    self._refuse(next(iter(self._callers.values())))
                else:
                    time.sleep(0.01)
                return

    def _accept(self, stream: socket.socket, origin: object) -> None:
        stream.setblocking(False)
        host = str(origin[0]) if isinstance(origin, tuple) else "this host"
        until = time.monotonic() + GREETING_SECONDS
        caller = _Caller(stream, host, until, secrets.token_bytes(CHALLENGE_BYTES))
        self._callers[stream.fileno()] = caller
        self._selector.register(stream, selectors.EVENT_READ, caller)
        if len(self._callers) > MOST_UNPROVED:
            self._refuse(next(iter(self._callers.values())))
        if stream.fileno() >= 0:
            with suppress(OSError):
                stream.send(caller.challenge)

    def _hear(self, caller: _Caller) -> None:
        if caller.stream.fileno() < 0:
            return
        try:
            part = caller.stream.recv(GREETING_BYTES - len(caller.data))
        except BlockingIOError:
            return
        except OSError:
            part = b""
        caller.data += part
        if not part or not caller.data.startswith(b"trd"[: len(caller.data)]):
            self._refuse(caller)
        elif len(caller.data) == GREETING_BYTES:
            self._judge(caller)

    def _judge(self, caller: _Caller) -> None:
        data = bytes(caller.data)
        greeting = read(data)
        key = None if greeting is None else self._key_of(greeting)
        if greeting is None or not is_proved(data, caller.challenge, key or secrets.token_bytes(32)) or key is None:
            self._refuse(caller)
            return
        self._forget(caller)
        try:
            caller.stream.send(answer(data, caller.challenge, key))
            caller.stream.setblocking(True)
        except OSError:
            caller.stream.close()
            return
        self._admit(greeting, caller.stream, session_key(data, caller.challenge, key))

    def _refuse(self, caller: _Caller) -> None:
        self._forget(caller)
        caller.stream.close()
        self._refused += 1
        now = time.monotonic()
        if now - self._said >= QUIET_SECONDS:
            last = f"from {caller.origin}" if self._refused == 1 else f"the last from {caller.origin}"
            self._say(f"refused {many(self._refused, 'connection')} without a job's nonce, {last}")
            self._refused, self._said = 0, now

    def _forget(self, caller: _Caller) -> None:
        self._selector.unregister(caller.stream)
        del self._callers[caller.stream.fileno()]

    def _close(self) -> None:
        for caller in self._callers.values():
            caller.stream.close()
        for listener in self._listeners:
            listener.close()
        self._selector.close()
