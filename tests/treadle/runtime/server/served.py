"""Small jobs on a server in this process, and workers that push what a test says."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from treadle.planner.documents.plan import Plan
from treadle.planner.passes.server.decided import ServerOptions
from treadle.planner.passes.server.decisions import ServerDecisions
from treadle.planner.passes.server.keys import ServerKey
from treadle.planner.passes.server.planning import plan_server
from treadle.planner.passes.server.problem import MachineInterface, ServerMachine, ServerProblem
from treadle.runtime.server.served_job import ServedJob
from treadle.runtime.server.serving import JobEnd, ParameterServer, ServeOptions
from treadle.runtime.server.worker import ServerState, Worker

KEYS = (ServerKey(name="head", elements=500), ServerKey(name="stem", elements=301))
ELEMENTS = 801
START, RATE = 10.0, 0.5


def plan_of(levels: Any = None, chunk_bytes: int = 1024, **changed: Any) -> Plan[ServerDecisions]:
    """Two keys in chunks of 1024 bytes on two cores, two workers, SGD, where nothing else is said."""
    interfaces = tuple(MachineInterface(name=f"eth{number}", domain=0, rate=10**9) for number in range(2))
    problem = ServerProblem(
        version=1,
        name="small",
        keys=KEYS,
        workers=2,
        mode="ncc",
        carrier="tcp",
        optimizer="sgd",
        machine=ServerMachine(name="small", domains=(2,), interfaces=interfaces),
        shared_cores=2,
    )
    options = ServerOptions(chunk_bytes=chunk_bytes, levels=levels)
    return plan_server(msgspec.structs.replace(problem, **changed), options=options)


def job_of(namespace: str = "small", server: int = 0, **changed: Any) -> ServedJob:
    return ServedJob(namespace, plan_of(**changed).decisions, server)


class Running:
    """A server whose events a thread handles."""

    def __init__(self, server: ParameterServer, said: list[str]) -> None:
        self.server, self.said = server, said
        self.reason: str | None = None
        self.ends: list[JobEnd] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self.ends = self.server.run(lambda: self.reason)

    def ended(self) -> list[JobEnd]:
        """How its jobs ended by themselves."""
        self._thread.join(30)
        assert not self._thread.is_alive()
        return self.ends

    def stop(self) -> list[JobEnd]:
        self.reason = self.reason or "ended by the test"
        return self.ended()


@contextmanager
def serving(jobs: Sequence[ServedJob], folder: Path, **options: Any) -> Iterator[Running]:
    said: list[str] = []
    files = [folder / f"{job.namespace}.access.json" for job in jobs]
    with ParameterServer(jobs, files, ServeOptions(**options), said.append) as server:
        running = Running(server, said)
        try:
            yield running
        finally:
            running.stop()


def access_file(folder: Path, namespace: str = "small") -> str:
    return str(folder / f"{namespace}.access.json")


def joined(address: str, *numbers: int) -> list[Worker]:
    """Workers with weights of START everywhere, loaded by worker 0 if that is the first time."""
    workers = [Worker(address, number) for number in numbers]
    first = next((each for each in workers if each.worker == 0), None)
    if first is not None and first.layout.loads == 0:
        keys = len(first.layout.keys)
        count = {"sgd": 1, "adam": 2}[first.layout.optimizer]
        states = [np.zeros(ELEMENTS, np.float32) for _ in range(count)]
        first.load(ServerState(np.full(ELEMENTS, START, np.float32), states, np.zeros(keys, np.uint64)))
    return workers


def push(worker: Worker, gradient: float | None = None) -> None:
    """A gradient of its number plus 1 everywhere, by default, for its step."""
    settings = np.zeros((worker.layout.groups, 16))
    settings[:, 0] = RATE
    worker.settings(settings)
    for key in range(len(worker.layout.keys)):
        worker.gradient(key).view(np.float32)[:] = worker.worker + 1 if gradient is None else gradient
        worker.push_pull(key)


def train(workers: Sequence[Worker], steps: int = 1) -> None:
    for _ in range(steps):
        for worker in workers:
            push(worker)
        for worker in workers:
            worker.finish()


def values(worker: Worker) -> NDArray[np.float32]:
    return np.concatenate([worker.value(key).view(np.float32) for key in range(len(worker.layout.keys))])


def expected(steps: int, workers: int = 2) -> NDArray[np.float32]:
    """Weights after so many steps of plain SGD on the mean gradient."""
    return np.full(ELEMENTS, START - steps * RATE * (workers + 1) / 2, np.float32)


def kill(worker: Worker) -> None:
    """Its streams end as if its process had died: without a goodbye."""
    for control in worker.controls:
        control._closing = True
        control._control.close()
    worker.client.close()


def until(true: Any, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)
