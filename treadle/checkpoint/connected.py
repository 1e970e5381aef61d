"""How a rank reaches the memory of machines: its own agent, those of the other holders, and what they hold of its
state."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from treadle.checkpoint.layout import PackedState
from treadle.planner.errors import CheckFailed, InputError
from treadle.planner.passes.checkpoint.decisions import CheckpointDecisions
from treadle.planner.passes.checkpoint.partition import turns_of
from treadle.runtime.checkpoint.access import AgentAccess, read
from treadle.runtime.checkpoint.agent_job import AgentJob
from treadle.runtime.checkpoint.local import LocalAgent, fetched
from treadle.runtime.checkpoint.memory import Bytes
from treadle.runtime.checkpoint.sender import TIMES, Sender
from treadle.runtime.wire.greeting import ServerAway

READY_SECONDS = 600.0
"""How long an agent may fetch what the machine before it held."""
FILE_SECONDS = 1.0
"""How long an agent is called by its file before that is read anew: one that was killed leaves its file, and the agent
in its place writes another."""
DRAIN_SECONDS, TURN_SECONDS = 60.0, 0.1
AGAIN_SHARE = 20
"""Lost holders are tried again after as many times the time that this took, since training waits for it."""
log = logging.getLogger("treadle.checkpoint")


class RankMemory:
    """Keeps versions of a rank's state where the plan says, and reads them back.

    With `planned_alike` the agent may have been started with a plan that sends otherwise to the same holders. Raises
    CheckFailed where the agent is gone or refuses, InputError where it is that of another machine or plan.
    """

    def __init__(
        self, access: str | os.PathLike[str], decisions: CheckpointDecisions, rank: int, *, planned_alike: bool = False
    ) -> None:
        self.decisions, self.rank = decisions, rank
        self.machine = rank // decisions.problem.devices
        self.holders = decisions.holders[self.machine]
        self._access, self._planned_alike = Path(access), planned_alike
        self._sender: Sender | None = None
        self._lost: set[int] = set()
        self._again = 0.0
        """When lost holders are tried next."""
        self.agent = self._met(READY_SECONDS)

    @property
    def epoch(self) -> int:
        """It grows whenever machines have come or gone: what is known of other machines is that of one epoch."""
        return self.agent.welcome.epoch

    def renew(self, epoch: int = 0) -> None:
        """Meet the agent again, for what is known of machines now. Raises CheckFailed where it has not reached `epoch`
        in time."""
        until = time.monotonic() + READY_SECONDS
        while True:
            self._exchange(self._met(max(0.0, until - time.monotonic())))
            if self.epoch >= epoch:
                return
            if time.monotonic() >= until:
                raise CheckFailed(f"the agent of machine {self.machine} is in epoch {self.epoch}, others in {epoch}")
            time.sleep(TURN_SECONDS)

    def versions(self) -> set[int]:
        """Those that this machine has whole of the rank's state."""
        return {each.version for each in self.agent.welcome.own}

    def read(self, version: int) -> tuple[Tensor, str]:
        """The verified bytes of one, from this machine's memory or else the next holder's, and whose it was. Raises
        CheckFailed, with what was wrong with each, where no machine has them undamaged."""
        problems = []
        for holder, take in self._copies(version):
            try:
                return torch.from_numpy(take()), f"machine {holder}"
            except CheckFailed as error:
                problems.append(str(error))
        raise CheckFailed("; ".join(problems))

    def copy_of(self, holder: int, version: int) -> Tensor:
        """The verified bytes of a version that one machine has. Raises CheckFailed where it has them not."""
        take = dict(self._copies(version)).get(holder)
        if take is None:
            raise CheckFailed(f"machine {holder} has no agent that is known here")
        return torch.from_numpy(take())

    def begin(self, state: PackedState, *, first: bool = False) -> None:
        """A new version; its memory must not change until `drain` has returned. No piece leaves before it may. The
        `first` one waits until holders have dropped versions that are not older, which an earlier run has left."""
        if self._sender is not None and self._sender.lost:
            self._reconnect(self._sender)
        if self._sender is None:
            self._sender = self._connected()
        self._sender.begin(state.version, state.parts, wait_seconds=DRAIN_SECONDS if first else 0.0)

    def release(self, span: int) -> None:
        """Let the pieces of spans up to this one leave."""
        if self._sender is not None and span >= 0:
            self._sender.release(span)

    def release_own(self, message: int | None) -> None:
        """Let the copies to this machine's memory of messages up to this one be made; None: all of them."""
        if self._sender is not None and message != -1:
            self._sender.release_own(message)

    def drain(self) -> None:
        """Let all leave that is left, and wait until every holder has the version whole. One that is lost is reported
        once, and tried again with the next version; without this machine's own agent there are no checkpoints."""
        assert self._sender is not None
        drained = self._sender.drain(DRAIN_SECONDS)
        if self.machine in drained.failed:
            raise CheckFailed(f"version {drained.version} is not kept here: {drained.failed[self.machine]}")
        for machine, why in drained.failed.items():
            if machine not in self._lost:
                log.warning("version %d has a copy less: %s", drained.version, why)
        self._lost = set(drained.failed)

    def times(self) -> NDArray[Any]:
        """Those of the pieces of the last version (`treadle.runtime.checkpoint.sender.TIMES`)."""
        return np.empty(0, TIMES) if self._sender is None else self._sender.times()

    def close(self) -> None:
        if self._sender is not None:
            self._sender.close()
        self.agent.close()

    def _reconnect(self, sender: Sender) -> None:
        """Try lost holders again: where an epoch has begun, as what they are in it."""
        try:
            agent = self._met(0.0)
        except ServerAway:  # it still fetches; the next version tries again
            return
        if agent.welcome.epoch == self.epoch:
            agent.close()
            begun = time.monotonic()
            if begun >= self._again:
                sender.reconnect()
                now = time.monotonic()
                self._again = now + AGAIN_SHARE * (now - begun)
        else:
            self._exchange(agent)

    def _exchange(self, agent: LocalAgent) -> None:
        """Have `agent` in place of the one before."""
        self.close()
        self._sender, self.agent = None, agent

    def _met(self, seconds: float) -> LocalAgent:
        until, said = time.monotonic() + seconds, False
        while True:
            try:
                return self._met_once(min(until, time.monotonic() + FILE_SECONDS))
            except ServerAway as away:
                if time.monotonic() >= until:
                    raise
                if not said:
                    log.warning("%s; waits for it, up to %.0f s", away, until - time.monotonic())
                said = True

    def _met_once(self, until: float) -> LocalAgent:
        found, local = _awaited(self._access, until)
        if not self._planned_alike and found.plan != AgentJob(found.job, found.nonce, self.decisions).digest:
            raise InputError("found an agent of another plan; start it with this one", where=str(self._access))
        left = max(0.0, until - time.monotonic())
        return LocalAgent(local, self.rank, namespace=found.job, nonce=found.key, wait_seconds=left)

    def _connected(self) -> Sender:
        decisions = self.decisions
        window = turns_of(decisions.problem, decisions.variant)
        return Sender(self.agent, self.holders, decisions.pieces, decisions.own, window=window)

    def _copies(self, version: int) -> Iterator[tuple[int, Callable[[], Bytes]]]:
        """Who may have a version of this rank's state, nearest first."""
        yield self.machine, partial(self.agent.load, version)
        for holder in self.holders[1:]:
            if holder in self.agent.welcome.peers:
                yield holder, partial(fetched, self.agent, holder, version)


def _awaited(file: Path, until: float) -> tuple[AgentAccess, str]:
    """The access file and the agent's socket, once it is a machine's. Raises ServerAway where it is not in time."""
    while True:
        why = "stands by or takes memory"
        try:
            found = read(file)
            if found.local is not None:
                return found, found.local
        except InputError:
            if file.exists():
                raise
            why = "is not there"
        if time.monotonic() >= until:
            raise ServerAway(f"the agent of {file} {why}")
        time.sleep(TURN_SECONDS)
