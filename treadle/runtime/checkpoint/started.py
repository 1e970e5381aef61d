"""The memory of a plan's machines on this machine, for as long as a context: as agents, processes of which each can be
killed and replaced, or in this process."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import msgspec

from treadle.planner.errors import CheckFailed
from treadle.planner.passes.checkpoint.decisions import CheckpointDecisions
from treadle.runtime.checkpoint.access import NONCE, AgentAccess, write
from treadle.runtime.checkpoint.agent_job import AgentJob
from treadle.runtime.checkpoint.holder import Holder
from treadle.runtime.launch import die_with

START_TURNS, TURN_SECONDS, END_SECONDS = 3000, 0.02, 10.0
PERIOD, TIMEOUT = 0.3, 2.0
"""Seconds between heartbeats, and without one until a machine is lost."""


@contextmanager
def memory_here(decisions: CheckpointDecisions, folder: Path) -> Iterator[list[str]]:
    """The access files of memory that this process has for each machine, without a store. Raises LimitError where it
    does not suffice, MissingBackendError without g++."""
    job, problem = AgentJob("run", secrets.token_hex(32), decisions), decisions.problem
    made = partial(
        Holder,
        devices=problem.devices,
        state_bytes=problem.state_bytes,
        namespace=job.name,
        nonce=job.key,
        say=lambda line: None,
    )
    with ExitStack() as stack:
        holders = [stack.enter_context(made(job.hosted(machine))) for machine in range(problem.machines)]
        places = [next(iter(holder.ports.items())) for holder in holders]
        files = []
        for machine, holder in enumerate(holders):
            holder.announce(1, {other: place for other, place in enumerate(places) if other != machine})
            files.append(folder / f"{machine}.memory.json")
            write(files[-1], AgentAccess(job.name, job.nonce, job.digest, machine, holder.local, places[machine]))
        yield [str(file) for file in files]


class StartedAgents:
    """An agent for each machine of the plan in a file; machine 0 serves the store. What they write goes into `folder`.
    A context. Raises CheckFailed with the words of one that ends before its memory is there."""

    def __init__(self, plan: Path, machines: int, folder: Path) -> None:
        self.plan, self.machines, self.folder = plan, machines, folder
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._nonce = secrets.token_hex(32)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._store = f"tcp://127.0.0.1:{free.getsockname()[1]}"

    def access(self, machine: int) -> Path:
        """How ranks of a machine reach its agent."""
        return self.folder / f"{machine}.agent.json"

    def start(self, machine: int) -> None:
        """Start the agent of a machine, which takes the place of one that was killed."""
        self.access(machine).unlink(missing_ok=True)
        command = [sys.executable, "-m", "treadle", "checkpoint", "agent", f"run={self.plan}", "--store", self._store]
        command += ["--machine", str(machine), "--access", str(self.access(machine)), "--address", "127.0.0.1"]
        command += ["--period", f"{PERIOD:g}", "--timeout", f"{TIMEOUT:g}"]
        environment = {**os.environ, NONCE: self._nonce}
        with self._log(machine).open("ab") as log:
            self._processes[machine] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
                preexec_fn=partial(die_with, os.getpid()),
            )

    def kill(self, machine: int) -> None:
        """End an agent at once, with all its memory."""
        process = self._processes.pop(machine)
        process.kill()
        process.wait()

    def await_all(self) -> None:
        """Until every agent has its memory, in a minute without the time in which these processes do not run."""
        turns = 0
        while not all(map(self._has_memory, range(self.machines))):
            turns += 1
            for machine, process in self._processes.items():
                if process.poll() is not None or turns > START_TURNS:
                    said = " ".join(self._log(machine).read_text(errors="replace").split())[-500:]
                    raise CheckFailed(f"the agent of machine {machine} did not start: {said or 'it said nothing'}")
            time.sleep(TURN_SECONDS)

    def _has_memory(self, machine: int) -> bool:
        try:
            return msgspec.json.decode(self.access(machine).read_bytes()).get("local") is not None
        except (OSError, msgspec.DecodeError):
            return False

    def said(self) -> str:
        """All that agents have written."""
        logs = map(self._log, range(self.machines))
        return "".join(each.read_text(errors="replace") for each in logs if each.exists())

    def _log(self, machine: int) -> Path:
        return self.folder / f"agent-{machine}.log"

    def __enter__(self) -> StartedAgents:
        try:
            for machine in range(self.machines):
                self.start(machine)
            self.await_all()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
