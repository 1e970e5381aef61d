"""What each iteration of a training does for its checkpoints, and where training goes on."""

from __future__ import annotations

import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from tests.treadle.checkpoint.small import ListedMemory, Training, decisions, problem
from tests.treadle.runtime.checkpoint.holders import holder_of
from treadle import checkpoint
from treadle.checkpoint import connected
from treadle.checkpoint.persistent import PersistentSaves
from treadle.checkpoint.resume import Resumed, resume
from treadle.checkpoint.states import TrainingStates
from treadle.checkpoint.training import Checkpoints
from treadle.planner.errors import CheckFailed, InputError
from treadle.planner.passes.checkpoint.planning import CheckpointOptions, plan_checkpoint
from treadle.runtime.checkpoint import access
from treadle.runtime.checkpoint.access import AgentAccess
from treadle.runtime.checkpoint.agent_job import AgentJob


def states_of(training: Training) -> TrainingStates:
    return TrainingStates(training.model, training.optimizer, {"schedule": training.schedule})


def attached(
    training: Training, memory: ListedMemory, saves: PersistentSaves | None = None, **changed: object
) -> Checkpoints:
    states = states_of(training)
    resumed = resume(states, memory, saves)
    found = Checkpoints(states, decisions(**changed), memory, saves, resumed, None)
    found.start([])
    return found


def trained(checkpoints: Checkpoints, training: Training, total: int) -> list[float]:
    return [training.step() for _ in checkpoints.steps(total)]


def test_a_version_is_drained_before_its_states_change() -> None:
    training, memory = Training(), ListedMemory()
    with attached(training, memory) as checkpoints:
        trained(checkpoints, training, 2)
        assert checkpoints.step == 2
        assert checkpoints.statistics().version == 1
    moves = [("span", 2), ("own", None)]
    assert memory.calls == [("begin", 0), *moves, "drain", ("begin", 1), *moves, "drain", "close"]


def test_losses_after_a_resume_are_those_without_it() -> None:
    expected = Training().steps(9)
    first, memory = Training(), ListedMemory()
    trained(attached(first, memory), first, 5)
    second = Training(seed=8)
    checkpoints = attached(second, memory)
    assert checkpoints.resumed == Resumed(4, "memory", "machine 0")
    assert trained(checkpoints, second, 9) == expected[4:]


def test_damaged_versions_fall_back_to_the_previous_one_then_to_storage_then_to_the_begin(tmp_path: Path) -> None:
    expected = Training().steps(9)
    first, memory = Training(), ListedMemory()
    checkpoints = attached(first, memory, PersistentSaves(tmp_path, 10**18, states_of(first)))
    for step in checkpoints.steps(6):
        if step == 2:
            checkpoints.save()
        first.step()
    checkpoints.close()
    for damaged, step, source in (([5], 4, "memory"), ([4], 2, "storage")):
        memory.damaged.update(damaged)
        second = Training(seed=8)
        saves = PersistentSaves(tmp_path, 10**18, states_of(second))
        resumed = resume(states_of(second), memory, saves)
        assert (resumed.step, resumed.source) == (step, source)
        assert "version 5 in memory: rank 0: version 5 is damaged" in resumed.passed
        assert second.steps(9 - step) == expected[step:]
    assert resume(states_of(Training()), memory, None).source == "begin"


class ChangingMemory(ListedMemory):
    """Machines are replaced while their versions are read."""

    def read(self, version: int) -> tuple[torch.Tensor, str]:
        if self.epoch == 1:
            raise CheckFailed("epoch 2 has begun")
        return super().read(version)

    def renew(self, epoch: int = 0) -> None:
        self.epoch = 2


def test_a_machine_that_is_replaced_meanwhile_sends_no_one_to_storage() -> None:
    training, memory = Training(), ChangingMemory()
    trained(attached(training, memory), training, 3)
    assert resume(states_of(training), memory, None) == Resumed(2, "memory", "machine 0")


def test_checkpoints_come_as_often_as_planned() -> None:
    training, memory = Training(), ListedMemory()
    trained(attached(training, memory, options=CheckpointOptions(every=3)), training, 7)
    assert [call[1] for call in memory.calls if call[0] == "begin"] == [0, 3, 6]


def test_states_larger_than_planned_are_refused_with_their_size() -> None:
    training = Training()
    with pytest.raises(InputError, match=r"found \d+ bytes of states, the plan is for 1000 on a device"):
        trained(attached(training, ListedMemory(), state_bytes=1000), training, 1)


def test_weights_that_change_in_the_middle_of_an_iteration_are_an_error() -> None:
    training = Training()
    checkpoints = attached(training, ListedMemory())
    checkpoints.begin()
    with torch.no_grad():
        training.model[0].weight.mul_(2)
    with pytest.raises(InputError, match="changed between begin"):
        training.step()


def test_a_step_without_a_begin_is_an_error() -> None:
    training = Training()
    attached(training, ListedMemory())
    with pytest.raises(InputError, match=r"call begin\(\) first"):
        training.step()


def test_an_iteration_without_an_update_keeps_its_version() -> None:
    training, memory = Training(), ListedMemory()
    checkpoints = attached(training, memory)
    checkpoints.begin()
    checkpoints.begin()
    training.step()
    assert [call[1] for call in memory.calls if call[0] == "begin"] == [0]
    checkpoints.close()


def test_what_is_saved_any_reader_of_torch_loads(tmp_path: Path) -> None:
    first = Training()
    first.steps(3)
    saves = PersistentSaves(tmp_path, 0, states_of(first))
    assert saves.due()
    saves.save(3)
    first.steps(2)  # while it is written
    saves.wait()
    (tmp_path / "step-000000009").mkdir()  # one that was not finished
    assert saves.steps() == {3}
    expected = Training()
    expected.steps(3)
    second = Training(seed=8)
    model, optimizer = get_state_dict(second.model, second.optimizer)
    dcp.load({"model": model, "optimizer": optimizer}, checkpoint_id=tmp_path / "step-000000003", no_dist=True)
    set_state_dict(second.model, second.optimizer, model_state_dict=model, optim_state_dict=optimizer)
    for name, value in expected.model.state_dict().items():
        assert torch.equal(second.model.state_dict()[name], value)
    weights = zip(expected.model.parameters(), second.model.parameters(), strict=True)
    for ours, theirs in weights:
        assert torch.equal(expected.optimizer.state[ours]["exp_avg"], second.optimizer.state[theirs]["exp_avg"])


def test_saves_come_by_themselves_at_their_interval(tmp_path: Path) -> None:
    for name, interval_ns, saved in (("always", 0, {1, 2}), ("never", 10**18, set())):
        training = Training()
        saves = PersistentSaves(tmp_path / name, interval_ns, states_of(training))
        trained(attached(training, ListedMemory(), saves), training, 3)
        saves.wait()
        assert saves.steps() == saved


def test_a_damaged_save_is_refused(tmp_path: Path) -> None:
    training = Training()
    saves = PersistentSaves(tmp_path, 0, states_of(training))
    saves.save(1)
    saves.wait()
    for each in (tmp_path / "step-000000001").glob("*.distcp"):
        each.write_bytes(b"")
    with pytest.raises(CheckFailed, match=r"cannot load .*step-000000001"):
        saves.load(1)


def test_attach_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    training = Training()
    plan = plan_checkpoint(problem())
    with pytest.raises(InputError, match="found 1 rank, the plan is for 2 machines with 1 device each"):
        checkpoint.attach(training.model, training.optimizer, plan, persistent=tmp_path)
    alone = plan_checkpoint(problem(machines=1, copies=1))
    with pytest.raises(InputError, match="found no agent and no folder"):
        checkpoint.attach(training.model, training.optimizer, alone)


def test_attach_sends_states_on_gpus_by_nccl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training, alone = Training(), plan_checkpoint(problem(machines=1, copies=1))
    monkeypatch.setattr(TrainingStates, "device", torch.device("cuda"))
    monkeypatch.setattr(connected, "READY_SECONDS", 0.0)
    with pytest.raises(InputError, match="found states on a GPU without NCCL"):
        checkpoint.attach(training.model, training.optimizer, alone, agent=tmp_path / "agent.json")


def test_a_folder_that_cannot_be_written_is_refused_before_the_training(tmp_path: Path) -> None:
    training, alone = Training(), plan_checkpoint(problem(machines=1, copies=1))
    file = tmp_path / "file"
    file.write_bytes(b"")
    with pytest.raises(InputError, match="file: cannot write: File exists"):
        checkpoint.attach(training.model, training.optimizer, alone, persistent=file)


def test_a_training_whose_saves_cannot_be_loaded_does_not_begin_again(tmp_path: Path) -> None:
    training = Training()
    saves = PersistentSaves(tmp_path, 0, states_of(training))
    saves.save(1)
    saves.wait()
    other = TrainingStates(training.model, training.optimizer, {})  # without the schedule
    with pytest.raises(CheckFailed, match="can be loaded: step 1 on storage: rank 0: found other states"):
        resume(other, None, PersistentSaves(tmp_path, 0, other))


def test_an_agent_that_was_killed_leaves_a_file_and_the_next_one_is_met(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connected, "FILE_SECONDS", 0.05)
    planned, file, nonce = decisions(), tmp_path / "0.agent.json", "ab" * 32
    job = AgentJob("job", nonce, planned)

    def write(local: str) -> None:
        access.write(file, AgentAccess("job", nonce, job.digest, 0, local, ("127.0.0.1", 7)))

    write("treadle-of-one-that-was-killed")
    with holder_of(0, nonce=job.key) as holder, ThreadPoolExecutor(1) as pool:
        holder.announce(1, {})
        met = pool.submit(connected.RankMemory, file, planned, 0)
        while "waits for it" not in caplog.text:
            assert not met.done()
            time.sleep(0.01)
        write(holder.local)
        met.result(30).close()
    assert "the agent at this host cannot be reached: Connection refused; waits for it, up to 6" in caplog.text


def test_attached_to_storage_only_training_goes_on(tmp_path: Path) -> None:
    alone = plan_checkpoint(problem(machines=1, copies=1))
    expected = Training().steps(4)
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        for _ in range(2):
            training = Training()
            also = {"schedule": training.schedule}
            with checkpoint.attach(
                training.model, training.optimizer, alone, persistent=tmp_path, also=also
            ) as checkpoints:
                found = [training.step() for _ in checkpoints.steps(2 if checkpoints.step == 0 else 4)]
                checkpoints.save()
    assert found == expected[2:]
    assert not [each for each in given if "single process" in str(each.message)]
