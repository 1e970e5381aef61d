"""One agent: its lease, which machine it is, and what it does when it stands by or the store is away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from treadle.planner.errors import CheckFailed
from treadle.runtime.checkpoint.health import MachineClaim, MachineTaken, heartbeats
from treadle.runtime.checkpoint.keys import Heartbeat, JobEpoch, StandbyClaim, read, written
from treadle.runtime.checkpoint.member import AgentContext, MachineMember
from treadle.runtime.checkpoint.store import LeaseEnded, StoreAway

TURN_SECONDS = 0.1
"""How late a signal is seen at most."""


class AgentEnd(NamedTuple):
    """What an agent was: the machine, None where it stood by, and the epoch of its last recovery."""

    machine: int | None
    epoch: int


class CheckpointAgent:
    """Runs until it is stopped. Raises MachineTaken where another agent is its machine, StoreAway where the store ends
    with the root."""

    def __init__(self, context: AgentContext) -> None:
        self._context = context
        self._lease: int | None = None
        self._member: MachineMember | None = None
        self._away_since: float | None = None
        self._waits = False
        self._patient_until = context.clock() + 2 * context.timeout
        """Until then a machine may still be that of an agent which ran here before."""

    def run(self, stopped: Callable[[], object]) -> AgentEnd:
        context = self._context
        threading.Thread(target=self._watch, name="treadle-epochs", daemon=True).start()
        try:
            while not stopped():
                self.step()
                until = context.clock() + context.period
                while not stopped() and context.clock() < until and not context.wake.wait(TURN_SECONDS):
                    pass
                context.wake.clear()
        finally:
            self.close()
        return AgentEnd(self._member.machine, self._member.epoch) if self._member else AgentEnd(None, 0)

    def step(self) -> None:
        """What is done once a period, and when an epoch or the memory changes."""
        say, store = self._context.say, self._context.store
        try:
            self._step()
        except StoreAway as error:
            if self._away_since is None:
                say(f"{error}; tries again")
                self._away_since = self._context.clock()
            if not store.elects and self._context.clock() - self._away_since > self._context.timeout:
                raise
            return
        except LeaseEnded:
            say("was cut off from the store for longer than its lease")
            self._lease = None
            self._context.wake.set()
        if self._away_since is not None:
            say("the store is back")
        self._away_since = None

    def close(self) -> None:
        """Leave at once, without waiting for the lease to end."""
        with suppress(CheckFailed):
            if self._lease is not None:
                self._context.store.revoke(self._lease)
        if self._member:
            self._member.close()
        self._context.store.close()

    def _step(self) -> None:
        store, keys = self._context.store, self._context.keys
        if self._lease is None:
            self._lease = store.lease(self._context.timeout)
        else:
            store.keep_alive(self._lease)
        entry = store.get(keys.epoch)
        epoch = read(entry.value, JobEpoch, keys.epoch) if entry else None
        if self._member is None:
            self._join(self._lease, epoch)
        if self._member:
            self._member.step(self._lease, epoch)

    def _join(self, lease: int, epoch: JobEpoch | None) -> None:
        """Become a machine: the given one, or a lost one in place of its agent."""
        context = self._context
        given = context.machine
        for machine in self._vacant(lease, epoch) if given is None else [given]:
            claim = MachineClaim(context.store, context.keys, machine)
            try:
                claim.beat(Heartbeat(agent=context.name, time=time.time(), epoch=0, state="joining"), lease)
            except MachineTaken as taken:
                if given is not None:
                    self._wait_for_past_agent(taken)
                continue
            if given is None:
                context.store.delete(context.keys.spare(context.name))
            context.say(f"is machine {machine}" + (", which was lost" if given is None else ""))
            self._member = MachineMember(context, claim)
            return

    def _wait_for_past_agent(self, taken: MachineTaken) -> None:
        """The lease of an agent that ran here before may not have ended. Raises MachineTaken after a while."""
        if self._context.clock() > self._patient_until:
            raise MachineTaken(f"{taken}; start this one with --standby") from None
        if not self._waits:
            self._context.say(f"{taken}; waits for {2 * self._context.timeout:g} s, in case that is a past one")
        self._waits = True

    def _vacant(self, lease: int, epoch: JobEpoch | None) -> list[int]:
        """Stand by; the lost machines that have no agent."""
        store, keys = self._context.store, self._context.keys
        claim = StandbyClaim(host=self._context.host, time=time.time())
        store.put(keys.spare(self._context.name), written(claim), lease)
        if epoch is None or epoch.settled or (plan := self._context.recovery(epoch.number)) is None:
            return []
        there = heartbeats(store.get_prefix(keys.health), keys)
        return [machine for machine in plan.failed if machine not in there]

    def _watch(self) -> None:
        for _ in self._context.store.watch(self._context.keys.epoch, 0):
            self._context.wake.set()
