"""A rank's side of the agent on its host: which job this is, its state in the agent's memory, and what is placed
there."""

from __future__ import annotations

import mmap
import os
import socket
import time
from typing import Self

import numpy as np

from treadle.planner.errors import CheckFailed, InputError
from treadle.runtime.checkpoint.frames import (
    BEGIN,
    BEGUN,
    COMMIT,
    DONE,
    FOUND,
    HERE,
    PLACED,
    TAKEN,
    UNSUMMED,
    WANT,
    Frame,
    crc32c,
    read,
    write,
)
from treadle.runtime.checkpoint.memory import Bytes, StateMemory, StateOf
from treadle.runtime.checkpoint.welcome import Welcome
from treadle.runtime.sockets import close_in_forks
from treadle.runtime.wire.control_stream import ControlStream
from treadle.runtime.wire.greeting import Greeting, ServerAway, call

READY_SECONDS = 0.1
"""Between two questions whether an agent is ready."""


class LocalAgent:
    """The agent with the AF_UNIX socket `local` (an abstract name), for rank number `rank`. A context.

    Waits for an agent that is ready for up to `wait_seconds`. Raises ServerAway where none comes or none is ready by
    then, CheckFailed where it refuses, InputError where it is the agent of another machine. Every call raises
    CheckFailed once the agent is gone.
    """

    welcome: Welcome

    def __init__(self, local: str, rank: int, *, namespace: str, nonce: bytes, wait_seconds: float = 60.0) -> None:
        self._local, self.rank, self.namespace, self.nonce = local, rank, namespace, nonce
        until = time.monotonic() + wait_seconds
        while True:
            stream, self.welcome, files = self._meet(max(0.0, until - time.monotonic()))
            if self.welcome.ready:
                break
            stream.close()
            if time.monotonic() >= until:
                raise ServerAway(f"the agent of machine {self.welcome.machine} is not ready after {wait_seconds:g} s")
            time.sleep(READY_SECONDS)
        self._stream = stream
        self.device = rank % self.welcome.devices
        try:
            if rank // self.welcome.devices != self.welcome.machine:
                raise InputError(f"rank {rank} belongs to another machine than {self.welcome.machine}", where=local)
            self._maps = {machine: _mapped(each) for machine, each in zip(self.welcome.hosted, files, strict=True)}
        except BaseException:
            stream.close()
            raise
        finally:
            for each in files:
                os.close(each)
        self._unanswered = 0

    def stream(self) -> socket.socket:
        """Another stream to the agent, which has said its welcome."""
        stream, _, files = self._meet(0.0)
        for each in files:
            os.close(each)
        return stream

    def load(self, version: int) -> Bytes:
        """This rank's own state, a view of the agent's memory until the next begin(). The agent reads every piece of
        it again first, then its sum is counted here. Raises CheckFailed where it is not there or damaged."""
        found = self._asked(Frame(WANT, self.welcome.machine, self.device, version, flags=HERE), FOUND)
        data = self.memory(self.welcome.machine)[found.offset : found.offset + found.length]
        if crc32c(data) != found.sum:
            raise CheckFailed(f"version {version} in the memory of machine {self.welcome.machine} is damaged")
        return data

    # What is sent through devices (NCCL) and arrives in memory of this host's ranks

    def memory(self, machine: int) -> Bytes:
        """The whole memory of the state that the agent holds of `machine` for this rank's device, both halves."""
        return self._maps[machine]

    def begin(self, machine: int, version: int, length: int) -> Bytes:
        """The half for a new version of the state of `machine`, `length` bytes to be written."""
        begun = self._asked(Frame(BEGIN, machine, self.device, version, length=length), BEGUN)
        return self.memory(machine)[begun.offset : begun.offset + length]

    def placed(self, machine: int, version: int, offset: int, length: int, sum: int | None = None) -> None:
        """Bytes are written; without their CRC-32C the agent counts it. Does not wait for it."""
        flags = UNSUMMED if sum is None else 0
        self._send(Frame(PLACED, machine, self.device, version, offset, length, sum or 0, flags))
        self._unanswered += 1

    def commit(self, machine: int, version: int, length: int, sum: int) -> None:
        """The version is whole, and its owner counted `sum` over all of it (`crc32c`). Raises CheckFailed where bytes
        are missing or others."""
        self._asked(Frame(COMMIT, machine, self.device, version, length=length, sum=sum), DONE)

    def _asked(self, frame: Frame, kind: int) -> Frame:
        """The answer to a request, behind those to what was placed before."""
        self._send(frame)
        while True:
            answer = self._read()
            if answer.op == TAKEN and self._unanswered:
                self._unanswered -= 1
            elif answer.op == kind:
                return answer
            else:
                raise CheckFailed(f"the agent of machine {self.welcome.machine} sent an answer that is none")

    def _send(self, frame: Frame) -> None:
        try:
            write(self._stream, frame)
        except OSError:
            self._read()  # it may have said why

    def _read(self) -> Frame:
        try:
            return read(self._stream)
        except OSError:
            raise CheckFailed(f"the agent of machine {self.welcome.machine} is gone") from None
        except CheckFailed as error:
            raise CheckFailed(f"the agent of machine {self.welcome.machine}: {error}") from None

    def _meet(self, wait_seconds: float) -> tuple[socket.socket, Welcome, tuple[int, ...]]:
        stream, _ = call("\0" + self._local, Greeting("rank", self.rank, self.namespace), self.nonce, wait_seconds)
        try:
            received = ControlStream(stream, Welcome).receive()
        except OSError:
            stream.close()
            raise ServerAway("the agent on this host has ended") from None
        close_in_forks(stream)
        return stream, received.message, received.descriptors

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._stream.close()


def fetched(agent: LocalAgent, source: int, version: int, *, seconds: float = 60.0) -> Bytes:
    """A rank's own state, in memory of its own, from the agent of machine `source`: where its own agent's is damaged.
    Raises CheckFailed, which names the machine, where that fails, LimitError without memory for it."""
    welcome, state = agent.welcome, StateOf(agent.welcome.machine, agent.device)
    greeting = Greeting("rank", agent.rank, agent.namespace, session=welcome.epoch)
    memory = StateMemory([state], welcome.state_bytes, halves=1)
    try:
        stream, _ = call(welcome.peers[source], greeting, agent.nonce)
        memory.fetch(stream, state, version, seconds, f"machine {source}")
        return memory.view(state, version)  # which outlives the memory
    finally:
        memory.close()


def _mapped(descriptor: int) -> Bytes:
    """The memory of a descriptor, none for an empty one."""
    if not os.fstat(descriptor).st_size:
        return np.zeros(0, np.uint8)
    return np.frombuffer(mmap.mmap(descriptor, 0), np.uint8)
