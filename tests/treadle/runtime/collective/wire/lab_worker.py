"""One rank in a lab: a job of forked processes for each round, one of which is killed; prints who said what when."""

from __future__ import annotations

import json
import os
import pickle
import random
import signal
import sys
import time
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import TCPStore

from tests.codegen.collective.algorithms import ring_allreduce
from treadle.codegen.collective.lower import lower
from treadle.planner.errors import CheckFailed
from treadle.runtime.collective.messages import on_wire
from treadle.runtime.collective.wire.native import RankWire, library
from treadle.runtime.sockets import connect

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
PROGRAM = lower(ring_allreduce(WORLD), inplace=True)


def call_without_end(number: int, ready: int) -> None:
    port = int(os.environ["MASTER_PORT"]) + number
    store = TCPStore(os.environ["MASTER_ADDR"], port, WORLD, RANK == 0, timedelta(seconds=30))

    def gather(value: Any) -> list[Any]:
        store.set(str(RANK), pickle.dumps(value))
        return [pickle.loads(store.get(str(other))) for other in range(WORLD)]

    wire = RankWire(RANK, connect(RANK, WORLD, gather))
    executor = on_wire(PROGRAM, wire, inplace=True)
    tensor = torch.ones(30_001)
    try:
        executor(tensor)
        os.write(ready, b"1")
        while True:
            executor(tensor, op="max")
    except CheckFailed as error:
        print(json.dumps([number, RANK, str(error), time.monotonic()]), flush=True)


def main(rounds: int) -> None:
    library()
    for number in range(rounds):
        dice = random.Random(number)
        victim, pause = dice.randrange(WORLD), dice.uniform(0, 0.3)
        heard, ready = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                call_without_end(number, ready)
            finally:
                os._exit(0)
        os.close(ready)
        os.read(heard, 1)
        if victim == RANK:
            time.sleep(pause)
            print(json.dumps([number, RANK, "killed", time.monotonic()]), flush=True)
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(heard)


if __name__ == "__main__":
    main(int(sys.argv[1]))
