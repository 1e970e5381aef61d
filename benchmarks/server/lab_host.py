"""What a host of the lab does: `python -m benchmarks.server.lab_host served PLAN ACCESS STEPS`, where the last host
serves and the others are workers, or `... gloo ELEMENTS STEPS`, an allreduce and a local optimizer on all of them.

The first host prints the seconds of every step as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from treadle.runtime.server.worker import Worker

LEARNING_RATE, MOMENTUM = 0.01, 0.9
WAIT_SECONDS = 60.0


def served(plan: str, access: str, steps: str) -> None:
    """A worker, or on the last host the server, which listens on all of its interfaces."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if rank == world - 1:
        names = os.environ["NCCL_SOCKET_IFNAME"].split(",")
        command = [sys.executable, "-m", "treadle", "serve", plan, "--access", access]
        sys.exit(subprocess.call([*command, *(word for name in names for word in ("--address", name))]))
    from treadle.runtime.server.worker import Worker

    end = time.monotonic() + WAIT_SECONDS
    while not Path(access).exists() and time.monotonic() < end:
        time.sleep(0.05)
    worker = Worker(access, rank)
    prepare(worker)
    report(rank, int(steps), lambda: take_step(worker))
    worker.close()


def prepare(worker: Worker) -> None:
    """Weights on the server, a gradient, and settings of SGD with Nesterov's momentum."""
    from treadle.planner.passes.server.problem import STATES
    from treadle.runtime.server.worker import ServerState

    keys = worker.layout.keys
    elements = sum(key.elements for key in keys)
    if worker.worker == 0:
        states = [np.zeros(elements, np.float32) for _ in range(STATES[worker.layout.optimizer])]
        worker.load(ServerState(np.zeros(elements, np.float32), states, np.zeros(len(keys), np.uint64)))
    else:
        worker.await_first_load()
    for key in range(len(keys)):
        worker.gradient(key).view(np.float32)[:] = 1
    settings = np.zeros((worker.layout.groups, 16))
    settings[:, 0], settings[:, 1], settings[:, 8] = LEARNING_RATE, MOMENTUM, 1
    worker.settings(settings)


def take_step(worker: Worker) -> None:
    for key in range(len(worker.layout.keys)):
        worker.push_pull(key)
    worker.finish()


def gloo(elements: str, steps: str) -> None:
    """The sum of all gradients in one message, and a step of SGD with Nesterov's momentum."""
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    weights = torch.zeros(int(elements), requires_grad=True)
    gradient = weights.grad = torch.ones_like(weights)
    optimizer = torch.optim.SGD([weights], lr=LEARNING_RATE, momentum=MOMENTUM, nesterov=True)

    def step() -> None:
        distributed.all_reduce(gradient)
        gradient.div_(distributed.get_world_size())
        optimizer.step()

    report(distributed.get_rank(), int(steps), step)
    distributed.destroy_process_group()


def report(rank: int, steps: int, step: Callable[[], None]) -> None:
    """Seconds of every step but the first, which warms up, on the first rank."""
    ends = []
    for _ in range(steps + 1):
        step()
        ends.append(time.monotonic())
    if rank == 0:
        print(json.dumps([later - earlier for earlier, later in pairwise(ends)]))


if __name__ == "__main__":
    {"served": served, "gloo": gloo}[sys.argv[1]](*sys.argv[2:])
