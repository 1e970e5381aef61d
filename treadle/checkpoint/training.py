"""A training whose states are kept in the memory of machines: what its iterations do for that."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import distributed

from treadle.checkpoint.connected import RankMemory
from treadle.checkpoint.guard import SpanGuard, SpanSlip
from treadle.checkpoint.layout import CALLER, Packer
from treadle.checkpoint.pacing import MessageCount, Releases, releases_of
from treadle.checkpoint.persistent import PersistentSaves
from treadle.checkpoint.resume import Resumed, gathered
from treadle.checkpoint.states import TrainingStates
from treadle.planner.errors import InputError
from treadle.planner.passes.checkpoint.decisions import CheckpointDecisions


class CheckpointStatistics(NamedTuple):
    """What checkpoints did so far; times in ns, of the last one. `kept_ns` is what `begin` took, `drained_ns` how long
    the update waited for pieces."""

    checkpoints: int
    version: int
    """The newest that is complete; -1 for none."""
    state_bytes: int
    kept_ns: int
    drained_ns: int
    spans: tuple[SpanSlip, ...]


class Checkpoints:
    """Keeps the states of each iteration, as a plan says, until `close`: `begin` is called when an iteration begins,
    and each step of the optimizer ends one. `resumed` says where training goes on."""

    def __init__(
        self,
        states: TrainingStates,
        decisions: CheckpointDecisions,
        memory: RankMemory | None,
        saves: PersistentSaves | None,
        resumed: Resumed,
        group: Any,
    ) -> None:
        self.states, self.decisions, self.memory, self.saves = states, decisions, memory, saves
        self.resumed, self.group = resumed, group
        self.step = resumed.step
        """How many updates the states have seen."""
        self.closed = False
        self.count = MessageCount(self._message_began, self._message_done)
        self.guard = SpanGuard(decisions.problem)
        self._packer = Packer()
        self._releases = Releases((), ())
        self._messages = 0
        self._sent = resumed.step if resumed.source == "memory" else -1
        self._statistics = CheckpointStatistics(0, self._sent, 0, 0, 0, ())
        self._begun, self._open, self._changes = False, False, 0
        self._agreement: tuple[Any, torch.Tensor] | None = None
        self._save_due = False
        self._undo: list[Callable[[], None]] = []

    def start(self, undo: list[Callable[[], None]]) -> None:
        """Take part in the steps of the optimizer from now on; `undo` is called by `close`."""
        optimizer = self.states.optimizer
        before = optimizer.register_step_pre_hook(lambda *_: self._before_update())
        after = optimizer.register_step_post_hook(lambda *_: self._after_update())
        self._undo = [before.remove, after.remove, *undo]

    def steps(self, total: int) -> Iterator[int]:
        """The steps up to `total` that are left, each begun."""
        while self.step < total:
            self.begin()
            yield self.step

    def begin(self) -> None:
        """An iteration begins: from now on its states after the last update are kept. Whatever belongs to the last
        iteration, such as the step of a scheduler, comes before, and what belongs to this one, such as its batch,
        behind it. All ranks call it."""
        if self.closed:
            raise InputError("found an iteration of checkpoints that are closed", where=CALLER)
        if self._open:  # the optimizer skipped its step
            self._complete()
        self._agree()
        if self.saves is not None and self._save_due:
            self.saves.save(self.step)
            self._save_due = False
        self._begun = True
        self.count.start()
        if self.memory is not None and self.step != self._sent and self.step % self.decisions.every == 0:
            self._keep(self.memory)

    def save(self) -> None:
        """Save the states on storage now, between two iterations. All ranks call it."""
        if self.saves is None:
            raise InputError("found no folder to save to; attach with persistent=FOLDER", where=CALLER)
        self.saves.save(self.step)

    def statistics(self) -> CheckpointStatistics:
        return self._statistics._replace(spans=self.guard.slips)

    def close(self) -> None:
        """Keep no more states; those that are kept stay. All ranks call it after the same step. Raises CheckFailed
        where the last save could not be written."""
        if self.closed:
            return
        self.closed = True
        for each in self._undo:
            each()
        try:
            if self._open:  # no update followed
                self._complete()
            self._agree()
        finally:
            if self.memory is not None:
                self.memory.close()
            if self.saves is not None:
                self.saves.wait()

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()

    def _keep(self, memory: RankMemory) -> None:
        begin = time.monotonic_ns()
        packed = self._packer.pack(self.step, self.states.tree(self.step))
        problem = self.decisions.problem
        if packed.bytes > problem.state_bytes:
            planned = f"the plan is for {problem.state_bytes} on a device; plan again with more"
            raise InputError(f"found {packed.bytes} bytes of states, {planned}", where=CALLER)
        self._changes = self.states.changes()
        first = not self._statistics.checkpoints
        memory.begin(packed, first=first)
        if first:
            gathered(None, self.group)  # from here on no machine has another version of this number
        self._releases = releases_of(self.decisions, self._messages)
        self._open, self._sent = True, self.step
        memory.release(self._releases.spans[0])
        at_once = self.decisions.variant == "blocking" or problem.copy_rate is None or not self._messages
        memory.release_own(None if at_once else self._releases.own[0])
        if self.decisions.variant == "blocking":
            memory.drain()
        took = time.monotonic_ns() - begin
        self._statistics = self._statistics._replace(state_bytes=packed.bytes, kept_ns=took)

    def _message_began(self, number: int) -> None:
        if self._open and self.memory is not None and number < len(self._releases.own):
            self.memory.release_own(self._releases.own[number])

    def _message_done(self, number: int) -> None:
        if self._open and self.memory is not None and number < len(self._releases.spans):
            self.memory.release(self._releases.spans[number])
            if number == len(self._releases.spans) - 1:
                self.memory.release_own(None)

    def _before_update(self) -> None:
        if not self._begun:
            found = "found a second optimizer.step() in an iteration, or one without begin()"
            raise InputError(f"{found}; iterate over checkpoints.steps(total), or call begin() first", where=CALLER)
        self._begun = False
        times = self.count.end()
        self._messages = len(times.began)
        self.guard.watch(times.idle_ns())
        if self._open:
            self._complete()

    def _complete(self) -> None:
        """Wait until the version is everywhere, before the update changes the states."""
        assert self.memory is not None
        begin = time.monotonic_ns()
        if self.decisions.variant != "blocking":
            self.memory.drain()
        if self.states.changes() != self._changes:
            found = "found weights or optimizer states that changed between begin() and optimizer.step()"
            raise InputError(f"{found}; change them before begin()", where=CALLER)
        self._open = False
        took = time.monotonic_ns() - begin
        count = self._statistics.checkpoints + 1
        self._statistics = self._statistics._replace(checkpoints=count, version=self._sent, drained_ns=took)

    def _after_update(self) -> None:
        self.step += 1
        due = self.saves is not None and self.saves.due()
        if self.group is None:
            self._save_due = due
            return
        # The update needs no message, so without this a rank could begin to overwrite the previous version while
        # another one still sends the last. It is waited for when the next iteration begins.
        flag = torch.tensor([-int(due)])
        work = distributed.all_reduce(flag, op=distributed.ReduceOp.MIN, group=self.group, async_op=True)
        self._agreement = work, flag

    def _agree(self) -> None:
        if self._agreement is not None:
            (work, flag), self._agreement = self._agreement, None
            work.wait()
            self._save_due = bool(flag[0])
