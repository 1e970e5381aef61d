"""What an agent does with its memory: takes it, and at each recovery comes to the version that all go on from."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from treadle.planner.documents.scalars import format_time
from treadle.planner.errors import CheckFailed
from treadle.runtime.checkpoint.keys import Heartbeat, MemoryState, PublishedRecovery
from treadle.runtime.checkpoint.store import StoreAway

Address = tuple[str, int]
Say = Callable[[str], None]
Action = Callable[[], object]


class AgentMemory(Protocol):
    """The memory of one machine, as its agent uses it."""

    @property
    def address(self) -> Address: ...

    @property
    def local(self) -> str: ...

    def offers(self) -> dict[int, list[int]]:
        """For each machine whose state it holds: the versions that are complete on all devices."""
        ...

    def forget(self, above: int | None) -> None:
        """Drop all versions after `above`; None: all."""
        ...

    def is_sound(self, version: int) -> bool:
        """Whether the machine's own state is there at that version, byte for byte as it came."""
        ...

    def fetch(self, address: Address, source: int, version: int) -> None:
        """Take the machine's own state from another agent. Raises CheckFailed."""
        ...

    def reports(self) -> list[str]:
        """What has happened since the last call, a line each."""
        ...

    def announce(self, epoch: int, peers: Mapping[int, Address], *, ready: bool) -> None: ...


@dataclass(frozen=True)
class RecoveryProgress:
    """How far an agent's memory is."""

    epoch: int = 0
    state: MemoryState = "joining"
    refused: tuple[tuple[int, int], ...] = ()


class Recoverer:
    """Steps with its agent. What takes long is done by `executor`, so that heartbeats go on meanwhile."""

    def __init__(
        self,
        machine: int,
        opened: Callable[[int], AbstractContextManager[AgentMemory]],
        heartbeat_of: Callable[[int], Heartbeat | None],
        executor: Executor,
        wake: Action,
        say: Say,
    ) -> None:
        self._machine, self._heartbeat_of, self._executor = machine, heartbeat_of, executor
        self._wake, self._say = wake, say
        self._taken = ExitStack()
        self._wanted: PublishedRecovery | None = None
        self._course: Generator[Action | None, object, None] | None = None
        self._task: Future[object] | None = None
        self.memory: AgentMemory | None = None
        self.progress = RecoveryProgress()
        self._begin(lambda: self._take(opened))

    def recover(self, plan: PublishedRecovery) -> None:
        """Go on with this recovery, once what is being done is done."""
        self._wanted = plan

    def step(self) -> None:
        """Raises why there is no memory."""
        while self._task is None or self._task.done():
            result = self._task.result() if self._task else None
            self._task = None
            if self._wanted:
                self._course, self._wanted, result = self._recovery(self._wanted), None, None
            if self._course is None:
                return
            try:
                action = self._course.send(result)
            except StopIteration:
                self._course = None
                return
            if action is None:
                return
            self._begin(action)

    def close(self) -> None:
        """Give the memory back, once what is being done is done."""
        self._executor.shutdown()
        self._taken.close()

    def _begin(self, action: Action) -> None:
        self._task = self._executor.submit(action)
        self._task.add_done_callback(lambda _: self._wake())

    def _take(self, opened: Callable[[int], AbstractContextManager[AgentMemory]]) -> None:
        self.memory = self._taken.enter_context(opened(self._machine))

    def _recovery(self, plan: PublishedRecovery) -> Generator[Action | None, object, None]:
        """Yields what to do, or None where it waits for another machine."""
        memory, machine, version = self.memory, self._machine, plan.version
        assert memory is not None
        self.progress = RecoveryProgress(plan.epoch, "fetching")
        memory.announce(plan.epoch, {}, ready=False)  # first, so that no stream of an earlier epoch completes a version
        memory.forget(None if machine in plan.failed else version)
        if version is None or (yield lambda: memory.is_sound(version)):
            self.progress = RecoveryProgress(plan.epoch, "whole")
            return
        refused: list[tuple[int, int]] = []
        for source in plan.sources[machine]:
            if source == machine:
                continue
            address = yield from self._address(source, plan.epoch)
            if address is None:
                continue
            begin = time.monotonic_ns()
            reason = yield partial(_why_not, memory, address, source, version)
            if reason is None:
                took = format_time(time.monotonic_ns() - begin)
                self._say(f"version {version} of machine {machine} is fetched from machine {source} in {took}")
                self.progress = RecoveryProgress(plan.epoch, "whole", tuple(refused))
                return
            self._say(f"version {version} of machine {machine} cannot be fetched: {reason}")
            refused.append((source, version))
        self.progress = RecoveryProgress(plan.epoch, "lacking", tuple(refused))

    def _address(self, source: int, epoch: int) -> Generator[Action | None, object, Address | None]:
        """Where a machine is reached, once it lets in who is of this epoch; None where it is lost, or further."""
        while True:
            with suppress(StoreAway):
                beat = self._heartbeat_of(source)
                if beat is None or beat.epoch >= epoch:
                    return beat.address if beat and beat.epoch == epoch else None
            yield None


def _why_not(memory: AgentMemory, address: Address, source: int, version: int) -> str | None:
    """Fetch a version; why that fails, if it does."""
    try:
        memory.fetch(address, source, version)
    except CheckFailed as error:
        return str(error)
    return None
