"""One rank of a loop of iterations as boosted trees have them, each with one sum over all ranks; prints each iteration
from rank 0, and says at once when a sum is wrong."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, distributed

from treadle.aggregate import Aggregator

WAYS = ("autotune", "fixed", "gloo")


def main(way: str, plan: str, elements: int, iterations: int) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank, world = distributed.get_rank(), distributed.get_world_size()
    logging.getLogger("treadle.aggregate").setLevel(logging.INFO)
    logging.getLogger("treadle.aggregate").addHandler(_Printed())
    aggregator = None if way == "gloo" else Aggregator(plan, autotune=way == "autotune")
    add: Callable[[Tensor], Any] = distributed.all_reduce if aggregator is None else aggregator.all_reduce
    pattern = torch.arange(elements) % 7
    total = world * (world + 1) // 2
    for iteration in range(iterations):
        values = (pattern * (rank + 1) + iteration).float()
        start = time.perf_counter()
        add(values)
        seconds = time.perf_counter() - start
        if not torch.equal(values, (pattern * total + world * iteration).float()):
            raise SystemExit(f"rank {rank}: the sum of iteration {iteration} is wrong")
        if rank == 0:
            print(json.dumps({"iteration": iteration, "ms": seconds * 1e3}), flush=True)
        if aggregator is not None:
            aggregator.step()
    if aggregator is not None:
        if rank == 0:
            print(json.dumps({"versions": aggregator.statistics().first_iterations}), flush=True)
        aggregator.close()
    distributed.destroy_process_group()


class _Printed(logging.Handler):
    """Decisions as lines of JSON."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):
            print(json.dumps({"said": record.getMessage()}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
