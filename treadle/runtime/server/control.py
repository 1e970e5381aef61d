"""A worker's control streams to the servers of its job: joining, loading and reading state, notices of losses."""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treadle.planner.errors import CheckFailed, InputError
from treadle.planner.passes.server.problem import STATES
from treadle.runtime.server.access import access_of, address_of
from treadle.runtime.server.messages import (
    Answer,
    AwaitState,
    Goodbye,
    JobLayout,
    LoadState,
    Notice,
    ReadState,
    Request,
    RequestRefused,
    ShareArena,
    StateRead,
)
from treadle.runtime.wire.control_stream import FULL_SECONDS, ControlStream, Received, raw, tune
from treadle.runtime.wire.greeting import Address, CallerKind, Greeting, ServerAway, call, place

JOIN_SECONDS = 60.0
LATE_SECONDS = 2.0
"""A worker that waits longer for worker 0 says so."""
log = logging.getLogger("treadle.server")

State = tuple[int, NDArray[np.float32], list[NDArray[np.float32]], NDArray[np.uint64]]
"""Version, weights and optimizer states of all elements in the order of keys, and the number of updates of each
chunk."""


def connect(address: str, worker: int, *, wait_seconds: float = JOIN_SECONDS) -> tuple[Control, ...]:
    """The servers that worker number `worker` exchanges its chunks with, in order.

    `address` is an access file of `treadle serve`, or `NAMESPACE@HOST:PORT` with the nonce in TREADLE_SERVER_NONCE; the
    file and its servers are waited for up to `wait_seconds`. Raises InputError for another address, CheckFailed where a
    server does not come or refuses.
    """
    until, waits = time.monotonic() + wait_seconds, False
    while True:
        try:
            return _connect(address, worker)
        except ServerAway as error:
            if time.monotonic() >= until:
                raise
            if not waits:
                log.warning("worker %d waits up to %g s: %s", worker, wait_seconds, error)
            waits = True
            time.sleep(0.1)


def _connect(address: str, worker: int) -> tuple[Control, ...]:
    if "@" not in address and not os.path.exists(address):
        raise ServerAway(f"{address} is not there; start `treadle serve`, which writes it")
    access = access_of(address)
    found: list[Control] = []
    try:
        for server, each in enumerate(access.servers):
            if access.two_level_workers and server != worker * len(access.servers) // access.two_level_workers:
                continue
            if each is None:
                raise ServerAway(f"server {server} of {access.namespace} is not in {address}; start it with --server")
            found.append(Control(address_of(each), access.namespace, access.key, worker, wait_seconds=0.0))
        if not found:
            raise InputError(f"found worker {worker}, expected one below {access.two_level_workers}", where=address)
        _agree(found, address)
    except BaseException:
        for control in found:
            control.close(trained=False)
        raise
    return tuple(found)


class Control:
    """The end of the control stream to one server, of a worker or of another rack's server (`kind`, and its number).
    Calls may come from any thread, one at a time; notices go to `on_notice` if any is given, else are logged.

    Raises CheckFailed where the server cannot be reached, refuses, or ends.
    """

    layout: JobLayout
    same_host: bool
    """Whether an arena can be shared."""

    def __init__(
        self,
        address: Address,
        namespace: str,
        nonce: bytes,
        number: int,
        *,
        kind: CallerKind = "worker",
        on_notice: Callable[[Notice], None] | None = None,
        wait_seconds: float = JOIN_SECONDS,
    ) -> None:
        self.number, self.namespace, self._address = number, namespace, address
        self._caller = f"{'worker' if kind == 'worker' else 'server'} {number} of {namespace!r}"
        self._on_notice = on_notice
        stream, self._key = call(address, Greeting(kind, number, namespace), nonce, wait_seconds)
        self._control = ControlStream(stream, Answer | Notice)
        self.same_host = self._control.local
        self._answers: queue.SimpleQueue[Received | None] = queue.SimpleQueue()
        self._asking = threading.Lock()
        self._most_body = 0
        self._failure: str | None = None
        self._closing = False
        try:
            first = self._control.receive().message
            if not isinstance(first, JobLayout):
                raise CheckFailed(self._refused(first))
        except OSError as error:
            self._control.close()
            raise CheckFailed(self._gone(error)) from None
        except CheckFailed:
            self._control.close()
            raise
        self.layout = first
        threading.Thread(target=self._listen, name="treadle-control", daemon=True).start()

    def streams(self) -> dict[int, int]:
        """A file descriptor for each slot of this server, in its own numbering: streams that frames follow on, in
        blocking mode. The caller closes them."""
        found: dict[int, int] = {}
        for slot, address in enumerate(self.layout.addresses):
            greeting = Greeting("stream", self.number, self.namespace, slot, self.layout.session)
            stream, _ = call(address, greeting, self._key)
            tune(stream, FULL_SECONDS)
            found[slot] = stream.detach()
        return found

    def share(self, memfd: int, bells: Sequence[int]) -> tuple[int, ...]:
        """Pass the arena on, with this worker's eventfd for each slot: the server's eventfds, which the caller
        closes."""
        return self._ask(ShareArena(), descriptors=(memfd, *bells)).descriptors

    def load(
        self,
        weights: NDArray[np.float32],
        states: Sequence[NDArray[np.float32]] = (),
        updates: NDArray[np.uint64] | None = None,
    ) -> int:
        """Replace weights and states; the version stays. Nothing may be in flight. Returns how often this was done. No
        `states` and `updates` are a fresh optimizer."""
        chunks = sum(map(len, self.layout.places))
        parts: list[NDArray[Any]] = [weights, *states, np.zeros(chunks, np.uint64) if updates is None else updates]
        answer = self._ask(LoadState(states=bool(states)), *(raw(part) for part in parts))
        return int(answer.message.loads)

    def loaded(self, loads: int) -> None:
        """Wait until weights were loaded `loads` times: by worker 0, or from a snapshot."""
        line = threading.Timer(
            LATE_SECONDS, log.warning, ("worker %d waits until worker 0 has loaded its weights", self.number)
        )
        line.daemon = True
        line.start()
        try:
            self._ask(AwaitState(loads))
        finally:
            line.cancel()

    def state(self, version: int | None = None) -> State:
        """The state at `version`, of which this worker has every chunk, by default the latest that all chunks have.
        Elements of other servers' chunks are 0."""
        elements = sum(key.elements for key in self.layout.keys)
        chunks = sum(map(len, self.layout.places))
        kept = 1 + STATES[self.layout.optimizer]
        answer = self._ask(ReadState(version=version), most_body=4 * kept * elements + 8 * chunks)
        assert isinstance(answer.message, StateRead)
        values = np.frombuffer(answer.body, np.float32, kept * elements).reshape(kept, elements)
        updates = np.frombuffer(answer.body, np.uint64, chunks, offset=values.nbytes)
        return answer.message.version, values[0], list(values[1:]), updates

    def notice(self) -> str | None:
        """Why the job has failed, if it has: a lost worker that is not waited for, or the end of the server. Other
        notices are logged."""
        return self._failure

    def close(self, trained: bool = True) -> None:
        """Say goodbye, so that the end of this worker is no loss."""
        if self._closing:
            return
        self._closing = True
        if self._failure is None:
            with suppress(CheckFailed):
                self._ask(Goodbye(trained))
        self._control.close()

    def _ask(
        self, request: Request, *parts: memoryview, descriptors: Sequence[int] = (), most_body: int = 0
    ) -> Received:
        if self._closing and not isinstance(request, Goodbye):
            raise CheckFailed("the worker has left the job")
        with self._asking:
            self._most_body = most_body
            try:
                self._control.send(request, *parts, descriptors=descriptors)
            except OSError as error:
                raise CheckFailed(self._failure or self._gone(error)) from None
            answer = self._answers.get()
            if answer is None:
                self._answers.put(None)
                raise CheckFailed(self._failure or f"the server at {place(self._address)} has ended")
        if isinstance(answer.message, RequestRefused):
            raise CheckFailed(self._refused(answer.message))
        return answer

    def _listen(self) -> None:
        while True:
            try:
                received = self._control.receive(lambda: self._most_body)
            except (OSError, CheckFailed) as error:
                if not self._closing:
                    self._note(Notice(what="ended", text=self._failure or self._gone(error)))
                self._answers.put(None)
                return
            if isinstance(received.message, Notice):
                self._note(received.message)
            else:
                self._answers.put(received)

    def _note(self, notice: Notice) -> None:
        if notice.what == "ended" or (notice.what == "lost" and not notice.waits):
            self._failure = self._failure or notice.text
        if self._on_notice is not None:
            self._on_notice(notice)
        elif self._failure is None:
            log.warning("%s", notice.text)

    def _refused(self, message: Any) -> str:
        reason = message.reason if isinstance(message, RequestRefused) else "it is of another version of treadle"
        return f"the server at {place(self._address)} refuses {self._caller}: {reason}"

    def _gone(self, error: Exception) -> str:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        return f"the server at {place(self._address)} is gone ({reason}); restart it, then the workers"


def _agree(found: Sequence[Control], address: str) -> None:
    """Servers of one job run the same plan, and go on from the same version."""
    first = found[0].layout
    for control in found[1:]:
        layout = control.layout
        if (layout.plan, layout.workers) != (first.plan, first.workers):
            raise InputError(f"servers {first.server} and {layout.server} run different plans", where=address)
        if layout.step != first.step:
            raise CheckFailed(
                f"server {first.server} goes on from step {first.step} and server {layout.server} from {layout.step}; "
                f"start all of them with --resume {min(first.step, layout.step)}"
            )
