"""The command line of agents: what it refuses, and what it says."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import msgspec
import pytest

from tests.planner.passes.checkpoint.checkpoint_plans import by_hand
from tests.treadle.runtime.checkpoint.etcds import free_ports
from tests.treadle.runtime.checkpoint.holders import holder_of
from tests.treadle.runtime.checkpoint.stand_ins import Clock, Cluster, StandInStore
from treadle.cli.main import run
from treadle.planner.errors import CheckFailed, InputError
from treadle.runtime.checkpoint import access, serving
from treadle.runtime.checkpoint.access import AgentAccess, job_nonce
from treadle.runtime.checkpoint.agent_job import AgentJob, agree
from treadle.runtime.checkpoint.keys import Heartbeat, JobEpoch, JobKeys, read, written
from treadle.runtime.checkpoint.store import StoreAway
from treadle.runtime.nonces import fresh_nonce

KEYS = JobKeys("toy")


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        (["--machine", "0", "--standby"], "expected one of --machine and --standby"),
        ([], "expected one of --machine and --standby"),
        (["--machine", "0", "--timeout", "3"], "--timeout: found 3 s, expected at least two periods, 4 s"),
        (["--machine", "0"], "absent.json: cannot read"),
    ],
)
def test_wrong_options_end_with_a_line(options: list[str], refusal: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["checkpoint", "agent", "absent.json", "--store", "etcd://127.0.0.1:1", *options]) == 2
    assert refusal in capsys.readouterr().err.splitlines()[-1]


def test_a_wrong_store_ends_with_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["checkpoint", "status", "toy", "--store", "redis://a:1"]) == 2
    assert "--store: found 'redis://a:1', expected etcd://HOST:PORT" in capsys.readouterr().err
    port = free_ports(1)[0]
    assert run(["checkpoint", "status", "toy", "--store", f"etcd://127.0.0.1:{port}", "--json"]) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["message"] == f"the store at etcd://127.0.0.1:{port} cannot be reached: Connection refused"


def test_the_first_agent_makes_the_nonce_that_others_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(access.NONCE, raising=False)
    file = tmp_path / "toy.nonce"
    first = job_nonce(file)
    assert job_nonce(file) == first
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o640)
    with pytest.raises(InputError, match="others may read it"):
        job_nonce(file)
    monkeypatch.setenv(access.NONCE, "ab" * 32)
    assert job_nonce(file) == "ab" * 32


def test_the_access_file_is_for_its_owner(tmp_path: Path) -> None:
    file = tmp_path / "0.agent.json"
    about = AgentAccess("toy", fresh_nonce(), "digest", 0, "local", ("127.0.0.1", 7))
    access.write(file, about)
    assert access.read(file) == about
    access.withdraw(file, msgspec.structs.replace(about, machine=1))
    assert file.stat().st_mode & 0o777 == 0o600
    access.withdraw(file, about)
    assert not file.exists()
    access.write(file, about)
    file.write_text('{"job": "toy"}')
    with pytest.raises(InputError, match="found no access file of `treadle checkpoint agent`"):
        access.read(file)


def test_all_agents_agree_on_plan_and_nonce() -> None:
    store = StandInStore(Cluster(Clock()))
    job, other = (AgentJob("toy", fresh_nonce(), by_hand()) for _ in range(2))
    agree(store, KEYS, job.placement)
    agree(store, KEYS, job.placement)
    assert job.nonce not in str(store.get(KEYS.placement))
    store.put(KEYS.machine(0), b"")
    with pytest.raises(CheckFailed, match="has another nonce; give this one the file of the others"):
        agree(store, KEYS, other.placement)
    store.delete(KEYS.machine(0))
    agree(store, KEYS, other.placement)
    assert job.hosted(1) == (1, 0)


def test_an_agent_without_a_store_ends_with_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "START_SECONDS", 0.02)
    port, said = free_ports(1)[0], []
    options = serving.AgentOptions(
        store=f"etcd://127.0.0.1:{port}",
        machine=0,
        memory_bytes=None,
        access=tmp_path / "0.agent.json",
        address=None,
        port=0,
        period=0.01,
        timeout=1.0,
    )
    job = AgentJob("toy", fresh_nonce(), by_hand())
    with pytest.raises(StoreAway, match=f"127.0.0.1:{port} cannot be reached: Connection refused"):
        serving.run_agent(job, options, lambda *_: None, said.append, lambda: False)
    assert [line.rpartition("; ")[2] for line in said] == ["waits for it"]
    assert not options.access.exists()


def test_what_another_version_has_written_is_refused() -> None:
    beat = Heartbeat(agent="a", time=1.0, epoch=3, state="whole", offers={0: [3, 2]})
    assert read(written(beat), Heartbeat, "key") == beat
    with pytest.raises(CheckFailed, match="key in the store is not of this version of treadle"):
        read(written(beat), JobEpoch, "key")


def test_a_plan_that_was_pickled_to_a_rank_is_the_same_job() -> None:
    decisions = by_hand()
    job, there = AgentJob("toy", "", decisions), AgentJob("toy", "", pickle.loads(pickle.dumps(decisions)))
    assert there.digest == job.digest
    other = msgspec.structs.replace(decisions, every=decisions.every + 1)
    assert AgentJob("toy", "", other).digest != job.digest


def test_the_access_file_of_an_agent_that_runs_is_not_taken(tmp_path: Path) -> None:
    file = tmp_path / "0.agent.json"
    access.require_free(file)
    with holder_of(0) as running:
        access.write(file, AgentAccess("toy", fresh_nonce(), "digest", 0, running.local, ("127.0.0.1", 7)))
        with pytest.raises(InputError, match="the agent of machine 0 of toy runs here and wrote it"):
            access.require_free(file)
    access.require_free(file)  # it has ended, as one that was killed
