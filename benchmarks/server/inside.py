"""A server and all its workers in this process: what cores, memory and the carrier do, without Python between them."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np

from treadle.planner.documents.plan import Plan
from treadle.planner.documents.server_parts import Carrier
from treadle.planner.passes.server.decided import ServerOptions
from treadle.planner.passes.server.decisions import ServerDecisions
from treadle.planner.passes.server.keys import ServerKey
from treadle.planner.passes.server.planning import plan_server
from treadle.planner.passes.server.problem import (
    VERSION,
    CoreWork,
    MachineInterface,
    OptimizerName,
    ServerMachine,
    ServerProblem,
)
from treadle.runtime.server.client_library import PUSH, PUSH_PULL, Client
from treadle.runtime.server.engine import Engine
from treadle.runtime.server.native_job import native_job
from treadle.runtime.server.served_job import ServedJob

KEYS = 8
WARM, STEPS = 2, 9


def planned(
    workers: int,
    model_bytes: int,
    *,
    cores: int = 2,
    carrier: Carrier = "shared",
    optimizer: OptimizerName = "sgd",
    work: CoreWork = CoreWork(),  # noqa: B008
    options: ServerOptions = ServerOptions(),  # noqa: B008
) -> Plan[ServerDecisions]:
    """A server with `cores` cores for workers on the same cores of one machine."""
    elements = model_bytes // 4 // KEYS
    machine = ServerMachine(
        name="this machine",
        domains=(cores,),
        interfaces=(MachineInterface(name="memory", domain=0, rate=10**12),),
        cores_per_interface=cores,
        work=work,
    )
    problem = ServerProblem(
        version=VERSION,
        name="one process",
        keys=tuple(ServerKey(name=f"key{number}", elements=elements) for number in range(KEYS)),
        workers=workers,
        mode="ncc",
        machine=machine,
        carrier=carrier,
        optimizer=optimizer,
        shared_cores=cores,
    )
    return plan_server(problem, options=options)


@contextmanager
def running(decisions: ServerDecisions) -> Iterator[tuple[Engine, list[Client]]]:
    """The server's threads on cores of their own, and the workers' on whichever is free."""
    job = ServedJob("bench", decisions, 0)
    cores = sorted(os.sched_getaffinity(0))
    with ExitStack() as stack:
        engine = Engine(len(job.slots), [cores[slot % len(cores)] for slot in range(len(job.slots))])
        stack.callback(engine.close)
        number = engine.add(native_job(job, range(len(job.slots)), 0))
        engine.load(number, 0, np.ones(job.elements, np.float32))
        rings = decisions.problem.carrier == "shared"
        addresses = [("127.0.0.1", 0)] * len(job.slots)
        clients = []
        for worker in job.workers:
            client = Client(job.layout(worker, 0, addresses, rings=rings, step=0, loads=1))
            stack.callback(client.close)
            connect(engine, number, worker, client, job, rings)
            for key in range(KEYS):
                client.gradient(key).view(np.float32)[:] = 1 + worker
            clients.append(client)
        yield engine, clients


def connect(engine: Engine, number: int, worker: int, client: Client, job: ServedJob, rings: bool) -> None:
    if rings:
        bells = [os.dup(bell) for bell in client.bells(0)]
        engine.arena(number, worker, 0, os.dup(client.memfd), bells)
        client.rings(0, [os.dup(engine.bell(core)) for core in range(len(job.slots))])
        return
    for core in range(len(job.slots)):
        with socket.create_server(("127.0.0.1", 0)) as listening:
            mine = socket.create_connection(listening.getsockname())
            theirs, _ = listening.accept()
        for end in (mine, theirs):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        engine.stream(number, worker, core, theirs.detach())
        client.stream(0, core, mine.detach())


def step_seconds(decisions: ServerDecisions, *, values: bool = True) -> list[float]:
    """Steps of all workers. Without `values` only the first worker takes weights back, the others push."""
    settings = np.zeros((KEYS, 16))
    settings[:, 0], settings[:, 1] = 1e-3, 0.9
    with running(decisions) as (_, clients):
        times = []
        for step in range(1, WARM + STEPS + 1):
            begin = time.perf_counter()
            for client in clients:
                if step == 1:
                    client.settings(step, settings)
                for key in range(KEYS):
                    client.push(key, step, PUSH_PULL if values or client is clients[0] else PUSH)
            for client in clients:
                client.wait(-1, step)
            times.append(time.perf_counter() - begin)
        weight = clients[0].value(0).view(np.float32)[0]
        assert np.isfinite(weight)
    return times[WARM:]
