"""A worker of one or several servers: it pushes gradients key by key, and takes back the weights of the next version.

What it pushes and takes back lies in two buffers, in each of which a key has one range; a thread of the compiled client
sends and receives its chunks.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from treadle.planner.errors import CheckFailed
from treadle.runtime.server.client_library import PULL, PUSH, PUSH_PULL, Client
from treadle.runtime.server.control import Control, connect

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
LISTEN_MS = 200
"""A wait looks that often for what the servers say of the job."""
REASON_SECONDS = 2.0
"""How long after the end of a data stream the control stream may say why."""


class ServerState(NamedTuple):
    """What servers keep, over the elements of all keys in their order."""

    weights: Floats
    states: list[Floats]
    updates: NDArray[np.uint64]
    """How many updates each key has had."""


class Worker:
    """Worker number `worker` of the job at `address`: the access file that `treadle serve` wrote, or
    NAMESPACE@HOST:PORT where TREADLE_SERVER_NONCE has the nonce.

    `step` is the version that the next pushes make; `finish` waits for it and counts on. Raises InputError for an
    address that is none, CheckFailed where a server cannot be reached, refuses the worker, or ends. One thread uses it.
    """

    def __init__(self, address: str | os.PathLike[str], worker: int) -> None:
        self.address, self.worker = os.fspath(address), worker
        self._trained = False
        with ExitStack() as stack:
            self.controls = connect(self.address, worker)
            for control in self.controls:
                stack.callback(control.close, trained=False)
            self.layout = layout = self.controls[0].layout
            self.client = Client(layout)
            stack.callback(self.client.close)
            for control in self.controls:
                self._open_data(control)
                stack.callback(lambda each: each.close(self._trained), control)  # before its streams end
            self._stack = stack.pop_all()
        self.step = layout.step + 1
        self.loads = min(control.layout.loads for control in self.controls)  # worker 0 may have loaded one of them
        self._settings: NDArray[np.float64] | None = None

    def gradient(self, key: int) -> Bytes:
        """The bytes of a key's gradient, to be written before it is pushed."""
        return self.client.gradient(key)

    def value(self, key: int) -> Bytes:
        """The bytes of a key's weights in its own type. They change between a push_pull of the key and its wait."""
        return self.client.value(key)

    def settings(self, numbers: NDArray[np.float64]) -> None:
        """Settings of the optimizer from this step on, [groups, numbers]; sent if they changed."""
        if self._settings is None or not np.array_equal(self._settings, numbers):
            self._settings = numbers.copy()
            self.client.settings(self.step, self._settings)

    def push(self, key: int, *, empty: bool = False) -> None:
        """Send a gradient; `empty` where this worker has none in this step. Returns at once."""
        self.client.push(key, self.step, PUSH, empty)

    def push_pull(self, key: int, *, empty: bool = False) -> None:
        """`push`, and take the weights that come of it as soon as they are there."""
        self.client.push(key, self.step, PUSH_PULL, empty)

    def pull(self, key: int) -> None:
        """Take the weights of this step, or later ones, as soon as they are there."""
        self.client.push(key, self.step, PULL)

    def wait(self, key: int | None = None) -> None:
        """Until the weights of a key, or of all keys, are those of this step."""
        wanted = -1 if key is None else key
        while True:
            try:
                done = self.client.wait(wanted, self.step, LISTEN_MS)
            except CheckFailed as error:
                self._require_job(REASON_SECONDS)
                raise CheckFailed(f"worker {self.worker} in step {self.step}: {error}") from None
            if done:
                return
            self._require_job()

    def finish(self) -> None:
        """Wait for all keys, and go on to the next step."""
        self.wait()
        self.step += 1

    def load(self, state: ServerState) -> None:
        """Replace weights and states on the servers; the step stays. Worker 0 calls it while the others call
        `await_load`, after the same step."""
        updates = np.repeat(state.updates, [len(places) for places in self.layout.places])
        for control in self.controls:
            self.loads = control.load(state.weights, state.states, updates)

    def await_first_load(self) -> None:
        """Until all servers have weights and states, which they may have had before this worker came."""
        self.loads = max(self.loads, 1)
        for control in self.controls:
            control.loaded(self.loads)

    def await_load(self) -> None:
        """Until worker 0 has replaced weights and states once more."""
        self.loads += 1
        for control in self.controls:
            control.loaded(self.loads)

    def read(self) -> ServerState:
        """Weights and states after the last step that was finished."""
        version = self.step - 1 if self.layout.synchronous else None
        (_, weights, states, updates), *others = (each.state(version) for each in self.controls)
        slots = np.array([slot for places in self.layout.places for slot in places])
        servers = np.array(self.layout.slot_servers)[slots]
        for control, (_, values, more, counts) in zip(self.controls[1:], others, strict=True):
            theirs = servers == control.layout.server
            updates[theirs] = counts[theirs]
            elements = np.repeat(theirs, self.client.elements)
            for into, part in zip((weights, *states), (values, *more), strict=True):
                into[elements] = part[elements]
        counts = np.array([len(places) for places in self.layout.places])
        return ServerState(weights, states, updates[np.cumsum(counts) - counts])

    def close(self, trained: bool = True) -> None:
        """Leave the job, which is no loss for the others; who has not `trained` may join again."""
        self._trained = trained
        self._stack.close()

    def _open_data(self, control: Control) -> None:
        """Streams to every slot of a server, or an arena that it shares."""
        layout = control.layout
        if not layout.rings:
            for slot, descriptor in control.streams().items():
                self.client.stream(layout.server, slot, descriptor)
        elif control.same_host:
            bells = control.share(self.client.memfd, self.client.bells(layout.server))
            self.client.rings(layout.server, bells)
        else:
            raise CheckFailed(f"the plan of {self.address} shares memory, but its server is on another host")

    def _require_job(self, seconds: float = 0.0) -> None:
        """Raises CheckFailed with what a server said within `seconds`, where the job has failed."""
        end = time.monotonic() + seconds
        while True:
            for control in self.controls:
                if reason := control.notice():
                    raise CheckFailed(f"worker {self.worker} in step {self.step}: {reason}")
            if time.monotonic() >= end:
                return
            time.sleep(0.02)
