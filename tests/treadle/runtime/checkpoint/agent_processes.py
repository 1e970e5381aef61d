"""Agents as processes of this machine, and checkpoints that stand-ins of ranks put into their memory."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from treadle.planner.passes.checkpoint.decisions import CheckpointDecisions
from treadle.runtime.checkpoint import access
from treadle.runtime.checkpoint.local import LocalAgent
from treadle.runtime.checkpoint.sender import Sender
from treadle.runtime.checkpoint.status import JobStatus, job_status
from treadle.runtime.checkpoint.store import KeyStore, open_store

TURNS, TURN_SECONDS = 1500, 0.02
PERIOD, TIMEOUT = 0.2, 4.0


def await_(holds: Callable[[], object], what: str) -> None:
    """In half a minute, without the time in which this process does not run."""
    for _ in range(TURNS):
        if holds():
            return
        time.sleep(TURN_SECONDS)
    raise AssertionError(f"{what} did not happen")


def state_of(machine: int, version: int, count: int) -> Any:
    return np.random.default_rng([machine, version]).integers(0, 256, count, np.uint8)


class Agents:
    """Those of one plan; `folder` gets their files."""

    def __init__(self, plan: Path, decisions: CheckpointDecisions, store: str, folder: Path) -> None:
        self.plan, self.decisions, self.store, self.folder = plan, decisions, store, folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.hosts = list(map(str, range(decisions.problem.machines)))
        """The process of each machine."""

    def start(self, name: str, *options: str) -> None:
        """A process; options by default make it the machine of its name."""
        command = [sys.executable, "-m", "treadle", "checkpoint", "agent", f"toy={self.plan}", "--store", self.store]
        command += options or ("--machine", name)
        command += ["--access", str(self.file(name)), "--nonce", str(self.folder / "nonce")]
        command += ["--period", str(PERIOD), "--timeout", str(TIMEOUT)]
        with self.log(name).open("ab") as log:
            self.processes[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def file(self, name: str) -> Path:
        return self.folder / f"{name}.agent.json"

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def said(self, name: str) -> str:
        return self.log(name).read_text()

    def kill(self, *names: str) -> None:
        for name in names:
            self.processes[name].kill()
        for name in names:
            self.processes.pop(name).wait()
            self.file(name).unlink()

    def close(self) -> None:
        for each in self.processes.values():
            each.send_signal(signal.SIGCONT)
            each.terminate()
        for each in self.processes.values():
            assert each.wait(30) in (0, 1)

    def status(self) -> JobStatus:
        return job_status(self._watched, "toy")

    @cached_property
    def _watched(self) -> KeyStore:
        return open_store(self.store, serve=False)

    @property
    def root(self) -> int | None:
        root = self.status().view.root
        return root.machine if root else None

    @property
    def degraded(self) -> list[int]:
        return [each.machine for each in self.status().degraded]

    def await_epoch(self, number: int) -> None:
        """Until all machines are whole in the epoch."""

        def settled() -> bool:
            epoch = self.status().view.epoch
            return epoch is not None and epoch.settled and epoch.number >= number

        await_(settled, f"epoch {number}")
        epoch = self.status().view.epoch
        assert epoch
        assert epoch.number == number
        for process in self.processes.values():
            assert process.poll() is None

    @contextmanager
    def ranks(self) -> Iterator[list[LocalAgent]]:
        """One for each machine, once their agents say that all are whole."""
        with ExitStack() as stack:
            found: list[LocalAgent] = []
            for machine, name in enumerate(self.hosts):
                await_(lambda name=name: self.file(name).exists() and access.read(self.file(name)).local, "memory")
                about = access.read(self.file(name))
                assert about.machine == machine
                assert about.local
                rank = LocalAgent(about.local, machine, namespace=about.job, nonce=about.key)
                found.append(stack.enter_context(rank))
            yield found

    def train(self, versions: Sequence[int]) -> None:
        """Put versions into the memory of all holders."""
        bytes_ = self.decisions.problem.state_bytes
        with self.ranks() as ranks, ExitStack() as stack:
            senders = [
                stack.enter_context(
                    Sender(rank, self.decisions.holders[machine], self.decisions.pieces, self.decisions.own, window=2)
                )
                for machine, rank in enumerate(ranks)
            ]
            for version in versions:
                states = [state_of(machine, version, bytes_) for machine in range(len(ranks))]
                for sender, state in zip(senders, states, strict=True):
                    sender.begin(version, [state])
                    sender.release(len(self.decisions.problem.spans))
                for sender in senders:
                    assert not sender.drain(30).failed

    def damage(self, machine: int, holder: int, version: int) -> None:
        """Flip a bit of what a holder has of a machine's state."""
        with self.ranks() as ranks:
            memory = ranks[holder].memory(machine)
            at = memory.tobytes().index(state_of(machine, version, self.decisions.problem.state_bytes).tobytes())
            memory[at + 1000] ^= 1

    def assert_all_have(self, version: int) -> None:
        """Every rank finds the state that it had at a version, bit for bit, and nothing newer."""
        with self.ranks() as ranks:
            for machine, rank in enumerate(ranks):
                assert max((each.version for each in rank.welcome.own), default=None) == version
                found = np.asarray(rank.load(version))
                np.testing.assert_array_equal(found, state_of(machine, version, found.size))
