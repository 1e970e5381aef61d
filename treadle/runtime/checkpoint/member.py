"""An agent that is a machine of the job: it beats, recovers its memory, and is root if it is elected."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from threading import Event

from treadle.runtime.checkpoint.election import Election
from treadle.runtime.checkpoint.health import Clock, MachineClaim, heartbeats, job_view
from treadle.runtime.checkpoint.keys import Heartbeat, JobEpoch, JobKeys, PublishedRecovery, read
from treadle.runtime.checkpoint.recovering import AgentMemory, Recoverer, Say
from treadle.runtime.checkpoint.root import RootAgent
from treadle.runtime.checkpoint.store import KeyStore


@dataclass(frozen=True)
class AgentContext:
    """What an agent is given. Times in seconds; `machine` None: it stands by; `host` is shown to people.

    `opened(machine)` takes memory, and `has_memory` is called with what it took.
    """

    store: KeyStore
    keys: JobKeys
    holders: Sequence[Sequence[int]]
    machine: int | None
    period: float
    timeout: float
    host: str
    opened: Callable[[int], AbstractContextManager[AgentMemory]]
    has_memory: Callable[[int, AgentMemory], None]
    say: Say
    clock: Clock = time.monotonic
    name: str = field(default_factory=lambda: secrets.token_hex(8))
    executor: Executor = field(default_factory=lambda: ThreadPoolExecutor(1, "treadle-recoverer"))
    wake: Event = field(default_factory=Event)
    """Set when there is something to do before the period has passed."""

    def recovery(self, epoch: int) -> PublishedRecovery | None:
        key = self.keys.recovery(epoch)
        entry = self.store.get(key)
        return read(entry.value, PublishedRecovery, key) if entry else None

    def heartbeat_of(self, machine: int) -> Heartbeat | None:
        key = self.keys.machine(machine)
        entry = self.store.get(key)
        return read(entry.value, Heartbeat, key) if entry else None


class MachineMember:
    """Steps once a period, with the agent's lease."""

    def __init__(self, context: AgentContext, claim: MachineClaim) -> None:
        self._context, self._claim, machine = context, claim, claim.machine
        self._election = Election(context.store, context.keys, machine, context.name)
        self._root = RootAgent(context.keys, context.holders, context.period, context.clock)
        self._recoverer = Recoverer(
            machine, context.opened, context.heartbeat_of, context.executor, context.wake.set, context.say
        )
        self._memory: AgentMemory | None = None
        self._is_root = False
        self._begun = self._announced = 0
        """Epochs."""

    @property
    def machine(self) -> int:
        return self._claim.machine

    @property
    def epoch(self) -> int:
        """The last whose recovery it has begun."""
        return self._recoverer.progress.epoch

    def step(self, lease: int, epoch: JobEpoch | None) -> None:
        """Raises MachineTaken, LeaseEnded, StoreAway, and why there is no memory."""
        self._use_memory()
        self._follow(epoch)
        self._claim.beat(self._heartbeat(), lease)
        self._be_root(lease)
        self._announce(epoch)

    def close(self) -> None:
        """Give the memory back."""
        self._recoverer.close()

    def _use_memory(self) -> None:
        self._recoverer.step()
        if self._memory is None and (memory := self._recoverer.memory):
            self._memory = memory
            self._context.has_memory(self.machine, memory)
        for line in self._memory.reports() if self._memory else ():
            self._context.say(line)

    def _follow(self, epoch: JobEpoch | None) -> None:
        """Begin the recovery of a new epoch. One that is settled was done by others: this agent has come too late,
        which the root sees by its heartbeat."""
        if (
            epoch
            and not epoch.settled
            and epoch.number > self._begun
            and (plan := self._context.recovery(epoch.number))
        ):
            self._begun = epoch.number
            self._recoverer.recover(plan)
            self._recoverer.step()

    def _heartbeat(self) -> Heartbeat:
        progress, memory = self._recoverer.progress, self._memory
        return Heartbeat(
            agent=self._context.name,
            address=memory.address if memory else None,
            time=time.time(),
            epoch=progress.epoch,
            state=progress.state,
            offers=memory.offers() if memory else {},
            refused=list(progress.refused),
        )

    def _be_root(self, lease: int) -> None:
        context = self._context
        was, self._is_root = self._is_root, self._election.stand(lease)
        if self._is_root and not was:
            context.say(f"machine {self.machine} is root")
        if self._is_root and (line := self._root.step(job_view(context.store, context.keys), self._election)):
            context.say(line)

    def _announce(self, epoch: JobEpoch | None) -> None:
        """Let ranks begin once all machines are whole, and say where the others are."""
        progress, context = self._recoverer.progress, self._context
        number = epoch.number if epoch and epoch.settled else 0
        if self._memory is None or self._announced >= number or progress.epoch != number or progress.state != "whole":
            return
        beats = heartbeats(context.store.get_prefix(context.keys.health), context.keys)
        others = {machine: beat.address for machine, beat in beats.items() if machine != self.machine}
        self._memory.announce(number, {machine: each for machine, each in others.items() if each}, ready=True)
        self._announced = number
