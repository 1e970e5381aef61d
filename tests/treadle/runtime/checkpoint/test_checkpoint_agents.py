"""Agents of one job, step by step on a clock that the test moves."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.treadle.runtime.checkpoint.stand_ins import Clock, Cluster, StandInMemory, StandInStore, opened
from treadle.planner.errors import LimitError
from treadle.runtime.checkpoint.agent import CheckpointAgent
from treadle.runtime.checkpoint.health import JobView, MachineTaken, job_view
from treadle.runtime.checkpoint.keys import (
    Heartbeat,
    JobEpoch,
    JobKeys,
    JobPlacement,
    PublishedRecovery,
    RootClaim,
    written,
)
from treadle.runtime.checkpoint.member import AgentContext
from treadle.runtime.checkpoint.root import Verdict, judged, planned
from treadle.runtime.checkpoint.status import job_status
from treadle.runtime.checkpoint.store import StoreWrite

PERIOD, TIMEOUT = 1.0, 3.0
KEYS = JobKeys("toy")
PAIRS = ((0, 1), (1, 0), (2, 3), (3, 2))


class Inline(Executor):
    """Does at once what it is given."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments, **named))
        except BaseException as error:
            future.set_exception(error)
        return future


@dataclass
class Runner:
    """One agent of a job."""

    agent: CheckpointAgent
    store: StandInStore
    memories: list[StandInMemory] = field(default_factory=list)
    ended: BaseException | None = None

    @property
    def memory(self) -> StandInMemory:
        return self.memories[-1]


class Job:
    def __init__(self, holders: tuple[tuple[int, ...], ...] = PAIRS) -> None:
        self.clock = Clock()
        self.cluster, self.holders = Cluster(self.clock), holders
        self.store = StandInStore(self.cluster)
        self.runners: list[Runner] = []
        self.memories: dict[int, StandInMemory] = {}
        self.said: list[str] = []

    def start(self, machine: int | None) -> Runner:
        store = StandInStore(self.cluster)
        runner: Runner

        def hosted(number: int) -> StandInMemory:
            others = [each for each, held in enumerate(self.holders) if number in held]
            runner.memories.append(StandInMemory(number, others, self.memories))
            return runner.memory

        context = AgentContext(
            store=store,
            keys=KEYS,
            holders=self.holders,
            machine=machine,
            period=PERIOD,
            timeout=TIMEOUT,
            host="test",
            opened=lambda number: opened(hosted(number)),
            has_memory=lambda number, memory: None,
            say=self.said.append,
            clock=self.clock,
            executor=Inline(),
        )
        runner = Runner(CheckpointAgent(context), store)
        self.runners.append(runner)
        return runner

    def step(self, periods: int = 1) -> None:
        """All agents step three times a period, as one that something wakes does."""
        for _ in range(3 * periods):
            self.clock.now += PERIOD / 3
            for runner in self.runners:
                try:
                    runner.agent.step()
                except MachineTaken as error:
                    runner.ended = error
            self.runners = [runner for runner in self.runners if runner.ended is None]

    def kill(self, *runners: Runner) -> None:
        for runner in runners:
            runner.store.cut = True
            self.runners.remove(runner)

    @property
    def view(self) -> JobView:
        return job_view(self.store, KEYS)

    @property
    def epoch(self) -> tuple[int, bool]:
        epoch = self.view.epoch
        assert epoch
        return epoch.number, epoch.settled


@pytest.fixture
def job() -> Job:
    """Four machines in two pairs, all whole at version 7."""
    made = Job()
    for machine in range(4):
        made.start(machine)
    made.step(3)
    assert made.epoch == (1, True)
    for memory in made.memories.values():
        memory.complete(6)
        memory.complete(7)
    made.step()
    made.said.clear()
    return made


def test_the_first_epoch_begins_when_all_machines_have_joined() -> None:
    job = Job()
    first = [job.start(machine) for machine in range(3)]
    job.step(10)
    assert job.view.epoch is None
    assert not any(runner.memory.announced for runner in first)
    job.start(3)
    job.step(2)
    assert job.epoch == (1, True)
    everyone = {machine: memory.address for machine, memory in job.memories.items()}
    for machine, memory in job.memories.items():
        others = {each: address for each, address in everyone.items() if each != machine}
        assert memory.announced == [(1, {}, False), (1, others, True)]


def test_there_is_one_root(job: Job) -> None:
    root = job.view.root
    assert root
    assert root.machine == 0
    job.kill(job.runners[0])
    job.step(6)
    root = job.view.root
    assert root
    assert root.machine != 0


def test_a_lost_machine_is_replaced_by_one_that_stands_by(job: Job) -> None:
    spare = job.start(None)
    job.step()
    lost = job.runners[2]
    job.kill(lost)
    job.step(2)
    assert job.epoch == (1, True)  # its lease has not ended
    job.step(6)
    assert job.epoch == (2, True)
    assert spare.memory.machine == 2
    assert spare.memory.held == {2: [7], 3: []}
    everyone = {machine: memory.address for machine, memory in job.memories.items()}
    assert all(memory.is_ready and memory.announced[-1][0] == 2 for memory in job.memories.values())
    assert set(job.memories[0].announced[-1][1]) == set(everyone) - {0}
    begun, whole = [line for line in job.said if "epoch" in line]
    assert begun == "epoch 2: no agent of machine 2, silent for 4.0 s; all go on from version 7"
    assert re.fullmatch(r"epoch 2: all machines are whole, \d+\.\d s after it began", whole)
    assert any(re.match(r"version 7 of machine 2 is fetched from machine 3 in \S+ [mun]s$", each) for each in job.said)
    assert job.store.get_prefix(KEYS.standby) == {}


def test_ranks_wait_until_the_lost_machine_has_an_agent(job: Job) -> None:
    job.kill(job.runners[2])
    job.step(8)
    assert job.epoch == (2, False)
    assert not any(job.memories[machine].is_ready for machine in (0, 1, 3))
    job.start(2)
    job.step(2)
    assert job.epoch == (2, True)
    assert job.memories[2].held[2] == [7]


def test_states_with_fewer_copies_than_planned_are_named_until_a_checkpoint_is_whole(job: Job) -> None:
    def degraded() -> list[int]:
        return [each.machine for each in job_status(job.store, "toy").degraded]

    placement = JobPlacement(plan="", nonce="", holders=[list(held) for held in PAIRS])
    job.store.put(KEYS.placement, written(placement))
    assert degraded() == []
    job.kill(job.runners[2])
    job.step(4)
    assert degraded() == [2, 3]
    job.start(2)
    job.step(3)
    assert degraded() == [3]
    job.memories[2].complete(8)
    job.memories[3].complete(8)
    job.step()
    assert degraded() == []


def test_losses_within_a_period_are_one_recovery(job: Job) -> None:
    spares = [job.start(None), job.start(None)]
    job.kill(job.runners[1], job.runners[3])
    job.step(7)
    assert job.epoch == (2, True)
    plan = job.view.recovery
    assert plan
    assert plan.failed == [1, 3]
    assert sorted(spare.memory.machine for spare in spares) == [1, 3]
    assert job.memories[1].held[1] == job.memories[3].held[3] == [7]


def test_root_and_another_machine_are_lost_together(job: Job) -> None:
    for _ in range(2):
        job.start(None)
    job.kill(job.runners[0], job.runners[2])
    job.step(9)
    assert job.epoch[1]
    assert job.memories[0].held[0] == job.memories[2].held[2] == [7]
    assert all(memory.offers()[machine] for machine, memory in job.memories.items())


def test_two_of_a_group_send_all_to_persistent_storage(job: Job) -> None:
    for _ in range(2):
        job.start(None)
    job.kill(job.runners[2], job.runners[3])
    job.step(9)
    plan = job.view.recovery
    assert plan
    assert (plan.failed, plan.version) == ([2, 3], None)
    assert job.epoch[1]
    assert all(not any(memory.held.values()) for memory in job.memories.values())


def test_all_go_back_to_what_everyone_has(job: Job) -> None:
    """Machine 3 was lost while it received version 8 of its pair."""
    for machine in (0, 1):
        job.memories[machine].complete(8)
    job.memories[2].held[2] = [8, 7]
    job.memories[1].arriving = 9
    job.start(None)
    job.kill(job.runners[3])
    job.step(8)
    plan = job.view.recovery
    assert plan
    assert plan.version == 7
    assert job.epoch == (2, True)
    assert [job.memories[machine].held[machine] for machine in range(4)] == [[7], [7], [7], [7]]


def test_a_damaged_copy_sends_all_to_the_version_before(job: Job) -> None:
    job.memories[3].damaged.add((2, 7))
    job.start(None)
    job.kill(job.runners[2])
    job.step(9)
    assert job.epoch == (3, True)
    plan = job.view.recovery
    assert plan
    assert (plan.version, plan.failed) == (6, [2])
    assert job.memories[2].held[2] == [6]
    assert "version 7 of machine 2 cannot be fetched: machine 3 has version 7 damaged" in job.said
    assert "epoch 3: no copy that is good of the state of machine 2; all go on from version 6" in job.said


def test_a_damaged_copy_of_the_own_state_comes_from_another_holder(job: Job) -> None:
    job.memories[0].held[0] = []
    job.start(None)
    job.kill(job.runners[3])
    job.step(8)
    assert job.epoch == (2, True)
    assert job.memories[0].held[0] == [7]


def test_another_loss_during_a_recovery_begins_the_next(job: Job) -> None:
    job.kill(job.runners[2])
    job.step(6)
    assert job.epoch == (2, False)
    job.kill(job.runners[0])
    job.step(8)
    assert job.epoch == (3, False)
    job.start(None)
    job.start(None)
    job.step(2)
    assert job.epoch == (3, True)
    plan = job.view.recovery
    assert plan
    assert (plan.failed, plan.version) == ([0, 2], 7)


def test_a_replacement_that_is_lost_before_all_are_whole_has_another_one(job: Job) -> None:
    job.kill(job.runners[2])
    job.step(6)
    short = job.start(2)
    short.agent.step()
    assert job.epoch == (2, False)
    job.kill(short)
    job.start(None)
    job.step(9)
    assert job.epoch[1]
    assert job.memories[2].held[2] == [7]


def test_a_machine_that_was_cut_off_and_replaced_ends(job: Job) -> None:
    away = job.runners[2]
    spare = job.start(None)
    away.store.cut = True
    job.step(8)
    assert spare.memory.machine == 2
    assert job.epoch == (2, True)
    away.store.cut = False
    job.step(8)
    assert isinstance(away.ended, MachineTaken)
    assert str(away.ended).startswith("another agent is machine 2, at host2:1002")
    assert job.epoch == (2, True)


def test_a_machine_that_was_cut_off_and_not_replaced_forgets_and_fetches(job: Job) -> None:
    away = job.runners[2]
    away.store.cut = True
    job.step(6)
    assert job.epoch == (2, False)
    away.memory.held = {2: [7], 3: [7]}
    away.store.cut = False
    job.step(3)
    assert job.epoch == (2, True)
    assert away.memory.held == {2: [7], 3: []}


def test_a_root_that_was_cut_off_publishes_nothing(job: Job) -> None:
    """It decides on what it read before, after another root has been elected."""
    stale = job.runners[0].agent._member
    assert stale
    view = job.view
    job.runners[0].store.cut = True
    job.step(8)
    assert job.epoch == (2, False)
    before = dict(job.cluster.keys)
    job.runners[0].store.cut = False
    lost = {machine: beat for machine, beat in view.heartbeats.items() if machine != 1}
    old = JobView(lost, view.root, view.epoch, view.epoch_revision, view.recovery)
    for _ in range(3):
        assert stale._root.step(old, stale._election) is None
        job.clock.now += PERIOD
    assert {key: job.cluster.keys[key] for key in (KEYS.epoch, KEYS.root)} == {
        key: before[key] for key in (KEYS.epoch, KEYS.root)
    }
    assert KEYS.recovery(3) not in job.cluster.keys


def test_a_root_publishes_only_upon_the_epoch_that_it_has_read(job: Job) -> None:
    root = job.runners[0].agent._member
    assert root
    writes = [StoreWrite(KEYS.epoch, b"x")]
    assert not root._election.publish(KEYS.epoch, job.view.epoch_revision - 1, writes)
    assert root._election.publish(KEYS.epoch, job.view.epoch_revision, writes)


def seen(epoch: JobEpoch, recovery: PublishedRecovery, **changes: Heartbeat) -> JobView:
    """Four machines that offer versions 8 and 7, but for `machine2` and the like."""
    beats = {
        machine: changes.get(
            f"machine{machine}",
            Heartbeat(
                agent=f"agent{machine}",
                time=0,
                epoch=2,
                state="whole",
                offers={each: [8, 7] for each in PAIRS[machine]},
            ),
        )
        for machine in range(4)
    }
    return JobView(beats, RootClaim(machine=0, agent="agent0"), epoch, 5, recovery)


RECOVERY = PublishedRecovery(
    epoch=2, failed=[3], version=7, sources=[[0], [1], [2], [2]], agents={each: f"agent{each}" for each in range(3)}
)


def test_an_unfinished_recovery_is_not_overtaken_by_newer_versions() -> None:
    """Machine 1 has lost its agent while others have not yet dropped what is newer."""
    late = Heartbeat(agent="new", time=0, epoch=0, state="joining")
    view = seen(JobEpoch(number=2, root="agent0"), RECOVERY, machine1=late)
    plan = planned(view, PAIRS)
    assert (plan.epoch, plan.failed, plan.version, plan.sources) == (3, [1], 7, [[0], [0], [2, 3], [3, 2]])
    assert plan.agents == {0: "agent0", 2: "agent2", 3: "agent3"}


def test_an_agent_that_came_after_the_recovery_has_lost_its_machine_s_memory() -> None:
    late = Heartbeat(agent="new", time=0, epoch=1, state="whole", offers={1: [9], 0: [9]})
    settled = JobEpoch(number=2, root="agent0", settled=True)
    assert judged(seen(settled, RECOVERY), 4) == Verdict()
    view = seen(settled, RECOVERY, machine1=late)
    assert judged(view, 4).reasons == ("another agent of machine 1",)
    plan = planned(view, PAIRS)
    assert (plan.failed, plan.version) == ([1], 8)


def test_many_losses_are_a_short_line() -> None:
    view = JobView({}, None, JobEpoch(number=2, root="a", settled=True), 5, RECOVERY)
    assert judged(view, 100).reasons == ("no agent of machines 0, 1, 2, 3, 4, 5, 6, 7 and 92 more",)


def test_a_store_that_was_away_changes_nothing(job: Job) -> None:
    for runner in job.runners:
        runner.store.cut = True
    job.step(2)
    for runner in job.runners:
        runner.store.cut = False
    job.step(5)
    assert job.epoch == (1, True)
    assert all(memory.held[machine] == [7, 6] for machine, memory in job.memories.items())
    assert len([line for line in job.said if line.endswith("; tries again")]) == 4
    assert job.said.count("the store is back") == 4


def test_leases_that_all_end_at_once_lose_no_memory(job: Job) -> None:
    """The store was away for longer than they last, and nobody was there to see it."""
    for runner in job.runners:
        runner.store.cut = True
    job.step(6)
    for runner in job.runners:
        runner.store.cut = False
    job.step(5)
    assert all(memory.held[machine] == [7, 6] for machine, memory in job.memories.items())
    assert job.epoch[1]


def test_an_agent_that_ends_is_noticed_at_once(job: Job) -> None:
    ended = job.runners[3]
    ended.agent.close()
    job.runners.remove(ended)
    job.step(2)
    assert job.epoch == (2, False)


def test_too_little_memory_ends_the_agent_and_its_lease(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise LimitError("the machine has too little memory")

    job.kill(job.runners[2])
    job.step(6)
    monkeypatch.setattr(StandInMemory, "__init__", refused)
    with pytest.raises(LimitError, match="too little memory"):
        job.start(2).agent.run(lambda: False)
    assert 2 not in job.view.heartbeats


def test_a_second_agent_of_a_machine_is_refused(job: Job) -> None:
    second = job.start(2)
    job.step(8)
    assert str(second.ended) == "another agent is machine 2, at host2:1002; start this one with --standby"
    assert job.epoch == (1, True)


def test_a_whole_job_that_starts_again_has_nothing_in_memory(job: Job) -> None:
    job.kill(*job.runners)
    job.memories.clear()
    for machine in range(4):
        job.start(machine)
    job.step(12)
    assert job.epoch[1]
    assert job.epoch[0] > 1
    plan = job.view.recovery
    assert plan
    assert plan.version is None
    assert all(memory.is_ready for memory in job.memories.values())
