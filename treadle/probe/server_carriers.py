"""What a core of the compiled server spends on gradients that come over TCP or in memory of this host, and what a
worker spends on its end.

A core serves a worker of this process, and both threads share a processor, so that neither waits for the other while it
could work. From their times, per byte of gradients:

    receive = core's, pushes only, - add - optimizer      send = core's, with values, - core's, pushes only

and a message takes what small chunks take more than large ones. On processors of their own each end waits for the
other: of an exchange of one chunk, what neither works is the time until both were awake.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from treadle.planner.documents.scalars import MEBIBYTE
from treadle.planner.documents.server_parts import Carrier, ServerCosts
from treadle.planner.errors import CheckFailed
from treadle.runtime.server.client_library import PUSH, PUSH_PULL, Client
from treadle.runtime.server.engine import Engine, NativeJob
from treadle.runtime.server.messages import JobLayout, LayoutKey

LARGE, SMALL = 256 << 10, 16 << 10
"""Bytes of a chunk."""
STEPS = 20
SECONDS = 60


class _Spent(NamedTuple):
    """ns of a step: of the core's thread, of the worker's, and until the worker had what it asked for."""

    core: float
    worker: float
    whole: float


def carrier_costs(
    carrier: Carrier, processors: Sequence[int], add_us_per_MB: float, mean_us_per_MB: float, model: int
) -> tuple[ServerCosts, float]:
    """The costs of a carrier, with a model of `model` bytes; and the bytes per second in each direction that a worker
    and a core reached on processors of their own. Raises CheckFailed when nothing moves any more, MissingBackendError
    without a compiler."""
    first = processors[:1]
    pushed = _spent(carrier, first, LARGE, PUSH, model)
    pulled = _spent(carrier, first, LARGE, PUSH_PULL, model)
    small = _spent(carrier, first, SMALL, PUSH_PULL, model)
    apart = _spent(carrier, processors, LARGE, PUSH_PULL, model)
    one = _spent(carrier, processors, SMALL, PUSH_PULL, SMALL)
    scale = MEBIBYTE / model / 1000
    costs = ServerCosts(
        receive_us_per_MB=_figure(pushed.core * scale - add_us_per_MB - mean_us_per_MB),
        add_us_per_MB=add_us_per_MB,
        send_us_per_MB=_figure((pulled.core - pushed.core) * scale),
        message_us=_figure((small.core - pulled.core) / 1000 / (model / SMALL - model / LARGE)),
        latency_us=_figure((one.whole - one.core - one.worker) / 1000 / 2),
        worker_us_per_MB=_figure(pulled.worker * scale),
    )
    return costs, model * 1e9 / apart.whole


def _spent(carrier: Carrier, processors: Sequence[int], chunk: int, request: int, model: int) -> _Spent:
    """The least of some steps of one worker, after a first one that starts its thread."""
    others = _threads()
    with _pair(carrier, processors, chunk, model) as (engine, client):
        _step(engine, client, 1, request)
        core, worker = sorted(_threads() - others)
        steps = []
        for step in range(2, STEPS + 2):
            before = _thread_ns(core), _thread_ns(worker), time.perf_counter_ns()
            _step(engine, client, step, request)
            after = _thread_ns(core), _thread_ns(worker), time.perf_counter_ns()
            steps.append([end - begin for begin, end in zip(before, after, strict=True)])
    core_ns, worker_ns, whole_ns = (min(each) for each in zip(*steps, strict=True))
    return _Spent(core_ns, worker_ns, whole_ns)


def _step(engine: Engine, client: Client, step: int, request: int) -> None:
    client.push(0, step, request)
    deadline = time.monotonic() + SECONDS
    if client.wait(0, step, SECONDS * 1000):
        while engine.versions(0)[0] < step and time.monotonic() < deadline:
            engine.events(0.001)
    if engine.versions(0)[0] < step:
        raise CheckFailed(f"a step of the server took more than {SECONDS} s")


def _thread_ns(thread: int) -> int:
    """What a thread has run so far."""
    return int(Path(f"/proc/self/task/{thread}/schedstat").read_text(encoding="utf-8").split()[0])


def _threads() -> set[int]:
    return {int(each.name) for each in Path("/proc/self/task").iterdir()}


@contextmanager
def _pair(carrier: Carrier, processors: Sequence[int], chunk: int, model: int) -> Iterator[tuple[Engine, Client]]:
    """A server of one core and a worker, which share a key; the worker's thread runs on the last processors."""
    elements, count = model // 4, model // chunk
    engine = Engine(1, processors[:1])
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(processors[1:] or processors))
    try:
        job = engine.add(
            NativeJob(
                name="costs",
                workers=1,
                chunk_elements=np.full(count, chunk // 4),
                chunk_keys=np.zeros(count, np.int32),
                slots=np.zeros(count, np.int32),
                key_types=("float32",),
                key_groups=[0],
                settings=np.zeros(16),
                optimizer="mean",
                shared=carrier == "shared",
            )
        )
        engine.load(job, 0, np.zeros(elements, np.float32))
        client = Client(_layout(elements, chunk, count, carrier == "shared"))
        try:
            client.gradient(0)[:] = 0
            if carrier == "shared":
                engine.arena(job, 0, 0, os.dup(client.memfd), [os.dup(each) for each in client.bells(0)])
                client.rings(0, [os.dup(engine.bell(0))])
            else:
                mine, theirs = _streams()
                engine.stream(job, 0, 0, mine)
                client.stream(0, 0, theirs)
            yield engine, client
        finally:
            client.close()
    finally:
        os.sched_setaffinity(0, before)
        engine.close()


def _streams() -> tuple[int, int]:
    """Both ends of a connection over loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        near = socket.create_connection(listening.getsockname())
        far, _ = listening.accept()
    for each in (near, far):
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        each.setblocking(False)
    return near.detach(), far.detach()


def _layout(elements: int, chunk: int, count: int, rings: bool) -> JobLayout:
    return JobLayout(
        plan="",
        server=0,
        servers=1,
        rack=0,
        slot_servers=(0,),
        slots=(0,),
        addresses=(("127.0.0.1", 0),),
        rings=rings,
        session=0,
        workers=1,
        racks=1,
        two_level=False,
        keys=(LayoutKey("key", elements, "float32", 0),),
        chunk_bytes=chunk,
        places=((0,) * count,),
        optimizer="mean",
        synchronous=True,
        groups=1,
        step=0,
        loads=1,
    )


def _figure(value: float) -> float:
    return float(f"{max(0.0, value):.4g}")
