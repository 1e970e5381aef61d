"""One rank of the lab benchmark: iterations of a model with each exchange of gradients, in turns."""

# Annotations stay what they are, not text: DistributedDataParallel looks at them.
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter_ns

import torch
from torch import Tensor, distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from examples.gpt2_dp.model import reduced
from treadle.compress import attach

WARM, SEED, SECONDS = 4, 1, 30
"""Iterations before the first that counts: DDP rebuilds its buckets after the first, PowerSGD begins at the third.
Slow links have as many rounds as fit into the seconds."""
NOTHING = "no exchange"
ONE_BUCKET_MB = 1024
"""gloo runs PowerSGD's collectives of several buckets into each other."""

Step = Callable[[], None]


def small() -> tuple[nn.Module, tuple[Tensor, ...], Callable[..., Tensor] | None]:
    """A reduced GPT-2 on little text, so that one core computes a step about as fast as a slow link sends it."""
    return reduced(batch=2, tokens=64)


def main(plans: Sequence[str], rounds: int) -> None:
    """Print ms of an iteration by exchange from rank 0, the slowest rank's in the fastest round: other work on a shared
    machine makes single rounds several times as long."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    exchanges: dict[str, Callable[[DistributedDataParallel], object]] = {
        NOTHING: lambda model: model.register_comm_hook(None, unsent),
        "DDP": lambda model: None,
        "DDP, fp16": lambda model: model.register_comm_hook(None, default_hooks.fp16_compress_hook),
        "DDP, PowerSGD": lambda model: model.register_comm_hook(_powersgd(), powerSGD_hook.powerSGD_hook),
        **{Path(plan).stem: partial(attach, plan=plan) for plan in plans},
    }
    steps = {name: _step(name, exchange) for name, exchange in exchanges.items()}
    times: dict[str, list[int]] = {name: [] for name in steps}
    for turn in range(WARM + rounds):
        if sum(map(sum, times.values())) > SECONDS * 1e9:
            break
        for name, step in steps.items():
            distributed.barrier()
            start = perf_counter_ns()
            step()
            took = torch.tensor(perf_counter_ns() - start)
            distributed.all_reduce(took, distributed.ReduceOp.MAX)
            times[name] += [int(took)] if turn >= WARM else []
    if distributed.get_rank() == 0:
        print(json.dumps({name: min(found) / 1e6 for name, found in times.items()}))
    distributed.destroy_process_group()


def _step(name: str, exchange: Callable[[DistributedDataParallel], object]) -> Step:
    """Forward, backward, exchange and update of a model of its own."""
    torch.manual_seed(SEED)
    model, inputs, loss = small()
    assert loss is not None
    wrapped = DistributedDataParallel(model, bucket_cap_mb=ONE_BUCKET_MB if "PowerSGD" in name else 25)
    exchange(wrapped)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def iterate() -> None:
        optimizer.zero_grad()
        loss(wrapped, *inputs).backward()
        optimizer.step()

    return iterate


def unsent(state: object, bucket: distributed.GradBucket) -> torch.futures.Future[Tensor]:
    """A communication hook that leaves gradients as they are."""
    future = torch.futures.Future[Tensor]()
    future.set_result(bucket.buffer())
    return future


def _powersgd() -> powerSGD_hook.PowerSGDState:
    return powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)


if __name__ == "__main__":
    main(sys.argv[2:], int(sys.argv[1]))
