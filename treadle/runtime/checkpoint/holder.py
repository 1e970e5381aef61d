"""An agent's side: the memory of the states it holds, where it listens, and who may reach it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Self

from treadle.planner.errors import CheckFailed
from treadle.runtime.checkpoint.memory import StateMemory, StateOf
from treadle.runtime.checkpoint.welcome import HeldVersion, Welcome
from treadle.runtime.wire.control_stream import ControlStream
from treadle.runtime.wire.door import Door
from treadle.runtime.wire.greeting import Greeting, call

WELCOME_SECONDS = 10


class Holder:
    """The states of machines `hosted` (the agent's own machine first), each of `devices` devices of up to
    `state_bytes`, and a door for ranks of this host and for ranks and agents of others. A context.

    Only who proves to know `nonce` gets in; over TCP also only of the epoch that was announced last. Before the first
    `announce` only ranks of this host do, and learn that it is not ready. Raises LimitError (exit code 4) with one
    line where memory does not suffice, InputError where it cannot listen, MissingBackendError without g++.
    """

    memory: StateMemory
    ports: Mapping[str, int]
    """The port of each address."""
    local: str
    """The name, in the abstract namespace, of the AF_UNIX socket for ranks of this host."""

    def __init__(
        self,
        hosted: Sequence[int],
        devices: int,
        state_bytes: int,
        *,
        namespace: str,
        nonce: bytes,
        addresses: Sequence[str] = ("127.0.0.1",),
        port: int = 0,
        most_bytes: int | None = None,
        say: Callable[[str], None],
    ) -> None:
        self.hosted, self.devices, self.state_bytes = tuple(hosted), devices, state_bytes
        self.machine = self.hosted[0]
        self._namespace, self._nonce = namespace, nonce
        self._closed = False
        self._epoch, self._peers, self._ready = 0, dict[int, tuple[str, int]](), False
        states = [StateOf(machine, device) for machine in hosted for device in range(devices)]
        self.memory = StateMemory(states, state_bytes, most_bytes=most_bytes)
        try:
            self._door = Door(addresses, port, self._key_of, self._admit, say)
        except BaseException:
            self.memory.close()
            raise
        self.ports, self.local = self._door.ports, self._door.local
        self._door.open()

    def announce(self, epoch: int, peers: Mapping[int, tuple[str, int]], *, ready: bool = True) -> None:
        """Set what ranks learn from now on: the epoch (from 1; it never falls), where the agents of other machines
        listen, and whether this agent holds again what it has to. Streams of earlier epochs end."""
        self._epoch, self._peers, self._ready = max(epoch, self._epoch), dict(peers), ready
        self.memory.set_epoch(self._epoch)

    def fetch(
        self, address: tuple[str, int], source: int, machine: int, version: int, *, seconds: float = 60.0
    ) -> None:
        """Take a version of the states of a machine, of all its devices at once, from the agent of machine `source`.
        Raises CheckFailed, which names that machine, where it is gone, has it not, or has it damaged: try another."""
        greeting = Greeting("agent", self.machine, self._namespace, session=self._epoch)

        def one(device: int) -> None:
            stream, _ = call(address, greeting, self._nonce)
            self.memory.fetch(stream, StateOf(machine, device), version, seconds, f"machine {source}")

        with ThreadPoolExecutor(self.devices) as pool:
            for done in [pool.submit(one, device) for device in range(self.devices)]:
                done.result()

    def _key_of(self, greeting: Greeting) -> bytes | None:
        known = greeting.kind in ("rank", "agent") and greeting.namespace == self._namespace
        return self._nonce if known and greeting.session in (0, self._epoch) else None

    def _admit(self, greeting: Greeting, stream: socket.socket, key: bytes) -> None:
        local = stream.family == socket.AF_UNIX
        name = f"rank {greeting.number}" if greeting.kind == "rank" else f"the agent of machine {greeting.number}"
        with suppress(OSError, CheckFailed):  # it is gone, or an epoch has begun: it sees its stream end
            if local and not self._welcome(stream, greeting.number % self.devices):
                stream.close()
            elif local or greeting.session == self._epoch > 0:
                self.memory.stream(stream, self._epoch, name)
            else:
                stream.close()

    def _welcome(self, stream: socket.socket, device: int) -> bool:
        """Greet a rank of this host with what there is; whether it may go on."""
        ready = self._ready
        states = [StateOf(machine, device) for machine in self.hosted]
        own = self.memory.versions()[states[0]]
        welcome = Welcome(
            machine=self.machine,
            devices=self.devices,
            state_bytes=self.state_bytes,
            epoch=self._epoch,
            ready=ready,
            hosted=self.hosted,
            peers=self._peers,
            own=tuple(HeldVersion(each.version, each.bytes, each.sum) for each in own),
        )
        descriptors = [self.memory.memfd(each) for each in states] if ready else []
        ControlStream(stream, Welcome).send(welcome, descriptors=descriptors, seconds=WELCOME_SECONDS)
        return ready

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let no one in any more, end all streams and give the memory back."""
        if not self._closed:
            self._closed = True
            self._door.close()
            self.memory.close()
