"""Real agents with a real etcd: machines and roots are killed, stores end, and no byte of a state is lost."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.treadle.runtime.checkpoint.agent_processes import Agents, await_
from tests.treadle.runtime.checkpoint.etcds import Etcd
from treadle.cli.main import run
from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan
from treadle.planner.passes import require_pass
from treadle.planner.passes.checkpoint.decisions import CheckpointDecisions
from treadle.runtime.checkpoint.store import open_store

PROFILE = """kind: hardware
version: 1
name: four
nodes: 4
devices:
  - {model: a process on a CPU, kind: cpu, count: 1}
network: {kind: ethernet, alpha_us: 30, beta_us_per_MB: 900}
sources: {nodes: "by definition", network: "by definition"}
"""


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plan")
    (folder / "four.yaml").write_text(PROFILE)
    command = ["plan", "checkpoint", "--states", "64KiB", "--hardware", str(folder / "four.yaml")]
    assert run([*command, "-o", str(folder / "four.json")]) == 0
    return folder / "four.json"


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    running = Etcd(tmp_path / "etcd")
    yield running
    running.stop()


@contextmanager
def running(plan: Path, address: str, folder: Path) -> Iterator[Agents]:
    """Agents of four machines, all whole at version 3."""
    decisions = require_pass(store.load(plan, Plan), CheckpointDecisions, str(plan)).decisions
    agents = Agents(plan, decisions, address, folder)
    try:
        for machine in range(4):
            agents.start(str(machine))
        agents.train([1, 2, 3])
        yield agents
    finally:
        agents.close()


@pytest.fixture
def agents(plan: Path, etcd: Etcd, tmp_path: Path) -> Iterator[Agents]:
    with running(plan, etcd.address, tmp_path) as found:
        yield found


@pytest.mark.slow
@pytest.mark.flaky(reruns=2)  # leases of seconds run out where the machine is busy
def test_agents_outlive_machines_the_root_and_the_store(
    agents: Agents, etcd: Etcd, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each part begins with four whole machines."""
    first = agents.status().view.root
    assert first
    agents.kill(str(first.machine))  # another process of the same machine follows
    agents.start(str(first.machine))
    agents.await_epoch(2)
    second = agents.status().view.root
    assert second
    assert second.agent != first.agent
    agents.assert_all_have(3)

    etcd.stop()
    etcd.start()
    agents.train([4, 5])
    agents.await_epoch(2)
    agents.assert_all_have(5)

    root = agents.root
    assert root is not None
    other = (root + 2) % 4
    for name in ("spare", "reserve"):
        agents.start(name, "--standby")
    await_(lambda: len(agents.status().standby) == 2, "standby")
    agents.kill(str(root), str(other))
    agents.await_epoch(3)
    assert agents.root not in (root, None)
    assert agents.degraded == sorted({0, 1, 2, 3} - {root, other})
    capsys.readouterr()
    assert run(["checkpoint", "status", "toy", "--store", etcd.address]) == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"toy: epoch 3, all machines are whole; root is machine [0-3]; 0 agents on standby", first)
    machines = ", ".join(map(str, agents.degraded))
    assert second.startswith(f"degraded: copies of the states of {machines} are missing until")
    assert run(["checkpoint", "status", "toy", "--store", etcd.address, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["degraded"] == agents.degraded
    for name in ("spare", "reserve"):
        agents.hosts[int(agents.said(name).split()[2].rstrip(","))] = name
    assert sorted(agents.hosts.index(name) for name in ("spare", "reserve")) == sorted([root, other])
    agents.assert_all_have(5)
    agents.train([6])
    await_(lambda: not agents.degraded, "a whole checkpoint")
    entries = open_store(etcd.address, serve=False).get_prefix("/").values()
    assert sum(len(entry.value) for entry in entries) < agents.decisions.problem.state_bytes // 4

    damaged = agents.root  # and so is a copy of its state
    assert damaged is not None
    agents.train([7])
    agents.damage(damaged, agents.decisions.holders[damaged][1], 7)
    agents.start("third", "--standby")
    agents.kill(agents.hosts[damaged])
    agents.hosts[damaged] = "third"
    agents.await_epoch(5)
    assert f"version 7 of machine {damaged} cannot be fetched: " in agents.said("third")
    agents.assert_all_have(6)

    stopped = next(name for name in agents.hosts if agents.hosts.index(name) != agents.root)
    machine = agents.hosts.index(stopped)
    agents.start("late", "--standby", "--json")
    await_(lambda: len(agents.status().standby) == 1, "standby")
    agents.processes[stopped].send_signal(signal.SIGSTOP)
    agents.hosts[machine] = "late"
    agents.await_epoch(6)
    agents.assert_all_have(6)
    cut_off = agents.processes.pop(stopped)
    cut_off.send_signal(signal.SIGCONT)
    assert cut_off.wait(30) == 1
    assert f"error: another agent is machine {machine}, at 127.0.0.1:" in agents.said(stopped)
    assert not agents.file(stopped).exists()

    ended = agents.processes.pop("late")
    ended.send_signal(signal.SIGTERM)
    assert ended.wait(30) == 0
    await_(lambda: agents.status().machines[machine].heartbeat is None, "its end")
    assert not agents.file("late").exists()
    said = agents.said("late")
    document = json.loads(said[said.index("{") :])
    assert (document["schema"], document["machine"]) == ("treadle.checkpoint-agent/1", machine)
