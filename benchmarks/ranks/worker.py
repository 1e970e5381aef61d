"""One host of the lab: allreduces and training under the orders of a list, by unmodified PyTorch or by our programs.

The host's place in an order is its rank. Only the numbers of ranks change between orders, nothing in a library.
"""

# Annotations stay what they are, not text: DistributedDataParallel looks at them.
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.nn.parallel import DistributedDataParallel

import treadle.comm

WARM = 1
WIDTH, BATCH = 208, 32
"""A model of three layers with 0.5 MiB of gradients."""
ROWS, FEATURES, BINS, DEPTH = 2000, 28, 64, 5
"""Of a host, and of its histograms for a boosted tree: 14 KiB for the root, 224 KiB for the lowest level."""


def main(works: str) -> None:
    """Print from host 0, as JSON, the seconds of each repeat of each work of the file: those of the slowest rank."""
    torch.set_num_threads(1)
    host, hosts = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = distributed.TCPStore(address, port, hosts, host == 0)  # type: ignore[attr-defined]  # it exists
    for number, work in enumerate(json.loads(Path(works).read_text())):
        place = work["order"].index(host)
        mine = PrefixStore(f"work{number}", store)
        distributed.init_process_group("gloo", store=mine, rank=place, world_size=hosts)
        if work["program"] is not None:
            treadle.comm.init(work["program"])
        took = timed(LOOPS[work["loop"]](work), work["repeats"])
        if work["program"] is not None:
            treadle.comm.shutdown()
        distributed.destroy_process_group()
        if host == 0:
            print(json.dumps({"name": work["name"], "seconds": took}), flush=True)
    store.set(f"done{host}", "")
    store.wait([f"done{each}" for each in range(hosts)])


def timed(run: Callable[[], object], repeats: int) -> list[float]:
    """Seconds of the slowest rank, by repeat."""
    times = []
    for _ in range(WARM + repeats):
        distributed.barrier()
        start = perf_counter()
        run()
        took = torch.tensor(perf_counter() - start, dtype=torch.float64)
        distributed.all_reduce(took, distributed.ReduceOp.MAX)
        times.append(float(took))
    return times[WARM:]


def allreduce(work: dict[str, Any]) -> Callable[[], object]:
    """Ends with what is wrong for sums that are wrong."""
    values, world = torch.empty(work["bytes"] // 4), distributed.get_world_size()

    def run() -> None:
        values.fill_(float(distributed.get_rank()))
        if work["program"] is None:
            distributed.all_reduce(values)
        else:
            treadle.comm.all_reduce(values)
        if not bool((values == world * (world - 1) / 2).all()):
            raise SystemExit(f"wrong sums by {work['program'] or 'gloo'}")

    return run


def training(work: dict[str, Any]) -> Callable[[], object]:
    """An iteration of a small model under DistributedDataParallel."""
    torch.manual_seed(0)
    layers = [layer for _ in range(3) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    batch = torch.randn(BATCH, WIDTH)

    def run() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    return run


def boosted_tree(work: dict[str, Any]) -> Callable[[], object]:
    """A tree of gradient boosting over rows that lie on the hosts: at each level all hosts add up the histograms of its
    nodes, then split each node where that gains most."""
    generator = torch.Generator().manual_seed(distributed.get_rank())
    bins = torch.randint(BINS, (ROWS, FEATURES), generator=generator)
    gradients = torch.randn(ROWS, generator=generator)
    return partial(_grow, bins, gradients)


def _grow(bins: Tensor, gradients: Tensor) -> None:
    node = torch.zeros(ROWS, dtype=torch.int64)
    for level in range(DEPTH):
        width = 2**level
        places = ((node[:, None] * FEATURES + torch.arange(FEATURES)) * BINS + bins).flatten()
        sums = [values.repeat_interleave(FEATURES) for values in (gradients, torch.ones(ROWS))]
        found = torch.stack([torch.zeros(width * FEATURES * BINS).index_add_(0, places, each) for each in sums])
        distributed.all_reduce(found)
        left = found.reshape(2, width, FEATURES, BINS).cumsum(3)
        whole = left[:, :, :, -1:]
        right = whole - left
        gain = left[0] ** 2 / (left[1] + 1) + right[0] ** 2 / (right[1] + 1)
        best = gain.flatten(1).argmax(1)
        node = node * 2 + (bins[torch.arange(ROWS), (best // BINS)[node]] > (best % BINS)[node])


LOOPS = {"allreduce": allreduce, "training": training, "boosted tree": boosted_tree}


if __name__ == "__main__":
    main(sys.argv[1])
