"""One host of the lab: allreduces under the orders of a list, by unmodified PyTorch or by a program of ours.

The host's place in an order is its rank. Only the numbers of ranks change between orders, nothing in a library.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, distributed

import treadle.comm

WARM = 1


def main(works: str) -> None:
    """Print from host 0, as JSON, the seconds of each repeat of each work of the file: those of the slowest rank."""
    torch.set_num_threads(1)
    host, hosts = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = distributed.TCPStore(address, port, hosts, host == 0)
    for number, work in enumerate(json.loads(Path(works).read_text())):
        place = work["order"].index(host)
        mine = distributed.PrefixStore(f"work{number}", store)
        distributed.init_process_group("gloo", store=mine, rank=place, world_size=hosts)
        took = _timed(work["program"], work["bytes"] // 4, work["repeats"])
        distributed.destroy_process_group()
        if host == 0:
            print(json.dumps({"name": work["name"], "seconds": took}), flush=True)
    store.set(f"done{host}", "")
    store.wait([f"done{each}" for each in range(hosts)])


def _timed(program: str | None, floats: int, repeats: int) -> list[float]:
    """Raises SystemExit with what is wrong for sums that are."""
    values = torch.ones(floats)
    if program is not None:
        treadle.comm.init(program)
    times = []
    for _ in range(WARM + repeats):
        values.fill_(float(distributed.get_rank()))
        distributed.barrier()
        start = perf_counter()
        _allreduce(program, values)
        took = torch.tensor(perf_counter() - start, dtype=torch.float64)
        distributed.all_reduce(took, distributed.ReduceOp.MAX)
        times.append(float(took))
        world = distributed.get_world_size()
        if not bool((values == world * (world - 1) / 2).all()):
            raise SystemExit(f"wrong sums by {program or 'gloo'}")
    if program is not None:
        treadle.comm.shutdown()
    return times[WARM:]


def _allreduce(program: str | None, values: Tensor) -> Any:
    if program is None:
        distributed.all_reduce(values)
    else:
        treadle.comm.all_reduce(values)


if __name__ == "__main__":
    main(sys.argv[1])
