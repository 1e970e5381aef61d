"""An hour of steps through one server: `python -m benchmarks.server.soak [MINUTES] [tcp|shared]`.

Prints a line a minute: steps per second, and memory of the server and of a worker. Ends with exit code 1 if a minute's
throughput is more than 10 % from the median, or memory grew after the first minute.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import psutil

from benchmarks.server.inside import planned
from benchmarks.server.lab_host import prepare, take_step
from treadle.planner.documents import store
from treadle.planner.documents.scalars import MEBIBYTE
from treadle.runtime.launch import launch, send
from treadle.runtime.server.started import started_servers

MINUTES, WORKERS, MODEL = 60, 2, 45 * MEBIBYTE
WARM, SECONDS = 20, 60.0
AWAY, GROWN = 0.1, 8 * MEBIBYTE
"""Share of the median throughput, and bytes that are taken after the first minute."""


class Minute(NamedTuple):
    steps_per_s: float
    server_bytes: int
    worker_bytes: int


def main(minutes: int, carrier: Any) -> int:
    """The exit code."""
    plan = planned(WORKERS, MODEL, carrier=carrier)
    found: list[Minute] = []

    def note(minute: Minute) -> None:
        found.append(minute)
        server, worker = (size / MEBIBYTE for size in minute[1:])
        print(
            f"{len(found):4} {minute.steps_per_s:8.2f} steps/s  server {server:8.1f} MiB  worker {worker:8.1f} MiB",
            flush=True,
        )

    with TemporaryDirectory() as folder:
        file = Path(folder) / "soak.plan.json"
        store.save(plan, file)
        with started_servers(file, 1, Path(folder)) as (access, servers):
            launch(WORKERS, work, (str(access), servers[0], minutes), on_message=note)
    return verdict(found)


def work(rank: int, world: int, access: str, server: int, minutes: int) -> None:
    """Steps of one worker, as many in each minute."""
    import torch
    from torch import distributed

    from treadle.runtime.server.worker import Worker

    worker = Worker(access, rank)
    prepare(worker)
    count = torch.tensor(0)
    begin = time.monotonic()
    for _ in range(WARM):
        take_step(worker)
    count.fill_(max(1, round(SECONDS * WARM / (time.monotonic() - begin))))
    distributed.broadcast(count, 0)
    processes = psutil.Process(server), psutil.Process()
    for _ in range(minutes):
        begin = time.monotonic()
        for _ in range(int(count)):
            take_step(worker)
        took = time.monotonic() - begin
        if rank == 0:
            send(Minute(int(count) / took, *(process.memory_info().rss for process in processes)))
    worker.close()


def verdict(minutes: list[Minute]) -> int:
    """0 where throughput held and memory was flat; says which did not."""
    middle = median(minute.steps_per_s for minute in minutes)
    worst = max(abs(minute.steps_per_s / middle - 1) for minute in minutes)
    grown = max(max(minute[1:][of] for minute in minutes) - minutes[0][1:][of] for of in range(2))
    print(f"median {middle:.2f} steps/s, at most {worst:.1%} away; memory grew by {grown / MEBIBYTE:.1f} MiB")
    return int(worst > AWAY or grown > GROWN)


if __name__ == "__main__":
    sys.exit(main(int((*sys.argv, "", "")[1] or MINUTES), (*sys.argv, "", "")[2] or "tcp"))
