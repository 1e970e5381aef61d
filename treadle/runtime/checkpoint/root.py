"""What the root decides: that machines are lost, how all come to one version again, and when all have."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from treadle.planner.passes.checkpoint.recovery import Offers, recover
from treadle.runtime.checkpoint.election import Election
from treadle.runtime.checkpoint.health import Clock, JobView
from treadle.runtime.checkpoint.keys import Heartbeat, JobEpoch, JobKeys, PublishedRecovery, written
from treadle.runtime.checkpoint.store import StoreWrite

MOST_NAMED = 8
"""Machines that a line names."""


@dataclass(frozen=True)
class Verdict:
    """What has to be done: nothing, a recovery because of `reasons`, or to settle the epoch. `gone` are machines whose
    agents are lost or others than before."""

    reasons: tuple[str, ...] = ()
    settles: bool = False
    gone: tuple[int, ...] = field(default=(), compare=False)


class RootAgent:
    """Steps once a period while its agent is root. All it knows is in the store, so any agent can follow it."""

    def __init__(
        self, keys: JobKeys, holders: Sequence[Sequence[int]], period: float, clock: Clock = time.monotonic
    ) -> None:
        self._keys, self._holders, self._period, self._clock = keys, holders, period, clock
        self._since: float | None = None
        """When a loss was seen that is not published yet."""
        self._beats: dict[int, tuple[str, float, float]] = {}
        """The agent of each machine since the last recovery, its last heartbeat, and when that was seen."""
        self._published: float | None = None
        """When the epoch began."""

    def step(self, view: JobView, election: Election) -> str | None:
        """Publish what the view calls for; a line for people about it. Losses within one period are one recovery."""
        verdict = judged(view, len(self._holders))
        self._note(view)
        if verdict.settles and view.epoch:
            self._since = None
            settled = JobEpoch(number=view.epoch.number, root=view.epoch.root, settled=True)
            if election.publish(self._keys.epoch, view.epoch_revision, [self._epoch(settled)]):
                after, self._published = self._published, None
                took = "" if after is None else f", {self._clock() - after:.1f} s after it began"
                return f"epoch {settled.number}: all machines are whole{took}"
            return None
        if not verdict.reasons:
            self._since = None
            return None
        now = self._clock()
        self._since = now if self._since is None else self._since
        if view.epoch and now - self._since < self._period:
            return None
        self._since = None
        return self._publish(view, election, verdict)

    def _publish(self, view: JobView, election: Election, verdict: Verdict) -> str | None:
        plan = planned(view, self._holders)
        assert view.root is not None
        writes = [
            StoreWrite(self._keys.recovery(plan.epoch), written(plan)),
            self._epoch(JobEpoch(number=plan.epoch, root=view.root.agent)),
        ]
        if not election.publish(self._keys.epoch, view.epoch_revision, writes):
            return None
        target = "the newest persistent checkpoint" if plan.version is None else f"version {plan.version}"
        self._published = self._clock()
        silent = [self._published - self._beats[machine][2] for machine in verdict.gone if machine in self._beats]
        since = f", silent for {max(silent):.1f} s" if silent else ""
        for machine in plan.failed:
            self._beats.pop(machine, None)
        return f"epoch {plan.epoch}: {'; '.join(verdict.reasons)}{since}; all go on from {target}"

    def _note(self, view: JobView) -> None:
        for machine, beat in view.heartbeats.items():
            agent, last, _ = self._beats.get(machine, (beat.agent, -1.0, 0.0))
            if beat.agent == agent and beat.time != last:
                self._beats[machine] = agent, beat.time, self._clock()

    def _epoch(self, epoch: JobEpoch) -> StoreWrite:
        return StoreWrite(self._keys.epoch, written(epoch))


def judged(view: JobView, machines: int) -> Verdict:
    """What a view calls for. Before the first epoch, machines that are away are only late."""
    beats, epoch, plan = view.heartbeats, view.epoch, view.recovery
    if epoch is None or plan is None:
        return Verdict(("all machines have joined",) if len(beats) == machines else ())
    lost, replaced, lacking = [], [], []
    for machine in range(machines):
        beat = beats.get(machine)
        if beat is None:
            lost += [machine] if epoch.settled or machine not in plan.failed else []
        elif beat.epoch == epoch.number and beat.state == "lacking":
            lacking.append(machine)
        elif beat.epoch != epoch.number if epoch.settled else _replaced(beat, plan, machine):
            replaced.append(machine)
    found = (
        (lost, "no agent of {}"),
        (replaced, "another agent of {}"),
        (lacking, "no copy that is good of the state of {}"),
    )
    reasons = tuple(words.format(_named(each)) for each, words in found if each)
    whole = all(beat.epoch == epoch.number and beat.state == "whole" for beat in beats.values())
    settles = not reasons and not epoch.settled and whole and len(beats) == machines
    return Verdict(reasons, settles, (*lost, *replaced))


def _named(machines: Sequence[int]) -> str:
    """A few of them by number."""
    shown = ", ".join(map(str, machines[:MOST_NAMED]))
    more = f" and {len(machines) - MOST_NAMED} more" if len(machines) > MOST_NAMED else ""
    return f"machine{'s' if len(machines) > 1 else ''} {shown}{more}"


def planned(view: JobView, holders: Sequence[Sequence[int]]) -> PublishedRecovery:
    """The recovery that follows a view. Machines that are away have lost their memory, as those that have an agent
    which came later; what others hold that is newer than an unfinished recovery's version does not count."""
    number = view.epoch.number if view.epoch else 0
    failed = [machine for machine in range(len(holders)) if _has_failed(view, machine)]
    plan = recover(failed, holders, _offers(view))
    return PublishedRecovery(
        epoch=number + 1,
        failed=failed,
        version=plan.version,
        sources=[list(each) for each in plan.sources],
        agents={machine: beat.agent for machine, beat in view.heartbeats.items() if machine not in failed},
    )


def _has_failed(view: JobView, machine: int) -> bool:
    beat, epoch, plan = view.heartbeats.get(machine), view.epoch, view.recovery
    if beat is None:
        return True
    if epoch is None or plan is None:
        return False
    done = beat.epoch == epoch.number
    if epoch.settled:
        return not done
    return _replaced(beat, plan, machine) or (machine in plan.failed and not (done and beat.state == "whole"))


def _replaced(beat: Heartbeat, plan: PublishedRecovery, machine: int) -> bool:
    return machine not in plan.failed and beat.agent != plan.agents.get(machine)


def _offers(view: JobView) -> Offers:
    """What machines hold and may be asked for."""
    number, most = 0, float("inf")
    if view.epoch and view.recovery:
        number, most = view.epoch.number, most if view.epoch.settled else view.recovery.version or 0
    refused = {
        (holder, machine, version)
        for machine, beat in view.heartbeats.items()
        if beat.epoch == number
        for holder, version in beat.refused
    }
    return {
        holder: {
            machine: [each for each in versions if each <= most and (holder, machine, each) not in refused]
            for machine, versions in beat.offers.items()
        }
        for holder, beat in view.heartbeats.items()
    }
