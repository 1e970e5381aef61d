"""One rank in a lab, one of which takes its own link down during its calls; prints what each says and when."""

from __future__ import annotations

import json
import os
import pickle
import sys
import threading
import time
from datetime import timedelta
from typing import Any

import torch
from pyroute2 import IPRoute
from torch.distributed import TCPStore

from tests.codegen.collective.algorithms import ring_allreduce
from treadle.codegen.collective.lower import lower
from treadle.planner.errors import CheckFailed
from treadle.runtime.collective.messages import on_wire
from treadle.runtime.collective.wire.native import RankWire
from treadle.runtime.sockets import connect

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
CUT_SECONDS = 0.5


def take_link_down() -> None:
    with IPRoute() as links:
        (index,) = links.link_lookup(ifname=os.environ["GLOO_SOCKET_IFNAME"])
        links.link("set", index=index, state="down")


def main() -> None:
    store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), WORLD, RANK == 0, timedelta(seconds=30))
    gathers = iter(range(9))

    def gather(value: Any) -> list[Any]:
        number = next(gathers)
        store.set(f"{number} {RANK}", pickle.dumps(value))
        return [pickle.loads(store.get(f"{number} {other}")) for other in range(WORLD)]

    program = lower(ring_allreduce(WORLD), inplace=True)
    executor = on_wire(program, RankWire(RANK, connect(RANK, WORLD, gather)), inplace=True)
    executor(torch.ones(3))
    gather(None)
    cut, victim = time.monotonic() + CUT_SECONDS, int(sys.argv[1]) == RANK
    if victim:
        threading.Timer(CUT_SECONDS, take_link_down).start()
    tensor = torch.ones(int(sys.argv[2]))
    try:
        while True:
            executor(tensor, op="max")
    except CheckFailed as error:
        print(json.dumps([RANK, str(error), time.monotonic() - cut]), flush=True)


if __name__ == "__main__":
    main()
