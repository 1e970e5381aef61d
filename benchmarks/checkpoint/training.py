"""One rank of the training that trials interrupt: a small GPT under DistributedDataParallel whose every loss is written
down bit by bit."""

from __future__ import annotations

import os
import time
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

WORDS, LENGTH, BATCH = 256, 32, 4
SEED = 21


@dataclass(frozen=True)
class RankWork:
    """What one rank trains, and where its checkpoints go. Without a plan there are none."""

    rank: int
    world: int
    address: str
    """HOST:PORT where rank 0 of this start listens."""
    interface: str
    steps: int
    curve: Path
    width: int = 64
    compute_s: float = 0.0
    """Stands for the computation of a device: a wait between forward and backward pass, in which links are idle."""
    plan: Path | None = None
    agent: Path | None = None
    persistent: Path | None = None
    disk: Path | None = None
    """A folder to which `torch.save` writes the state of every iteration, to compare."""


def train(work: RankWork) -> None:
    """Train to the last step from where the checkpoints are, and append every loss to the curve."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    _join(work)
    with work.curve.open("a", buffering=1) as curve:
        torch.manual_seed(SEED)
        model = _gpt(work.width)
        # otherwise buckets are built anew after the first step of a process, and gradients are added in another order
        called = DistributedDataParallel(model, find_unused_parameters=True)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        with _checkpoints(called, optimizer, work) as checkpoints:
            resumed = None if checkpoints is None else checkpoints.resumed
            came = "begin" if resumed is None else resumed.source
            curve.write(f"from {0 if resumed is None else resumed.step} {came} {time.monotonic_ns()}\n")
            for step in range(work.steps) if checkpoints is None else checkpoints.steps(work.steps):
                words = batch(step, work.rank)
                logits = called(words[:, :-1])
                time.sleep(work.compute_s)
                loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten())
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                if work.disk is not None:
                    began = time.monotonic_ns()
                    _save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, work.disk, work.rank)
                    curve.write(f"saved {time.monotonic_ns() - began}\n")
                curve.write(f"{step} {loss.item().hex()} {time.monotonic_ns()}\n")
        torch.distributed.barrier()


def forkable() -> None:
    """Import what a rank needs, so that a fork of this process need not, and without a thread, which no fork has."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"
    for name in ("torch._dynamo", "torch.distributed.checkpoint", "torch.nn.parallel", "treadle.checkpoint"):
        import_module(name)


def batch(step: int, rank: int) -> Tensor:
    """The words of a rank in a step, which depend on nothing else."""
    import torch

    dice = torch.Generator().manual_seed(SEED + 1_000_003 * step + rank)
    return torch.randint(0, WORDS, (BATCH, LENGTH + 1), generator=dice)


def _join(work: RankWork) -> None:
    """The process group, which ends with the process: destroying it may block forever, where a thread of gloo waits for
    Python's lock."""
    from torch import distributed

    os.environ["GLOO_SOCKET_IFNAME"] = work.interface
    distributed.init_process_group("gloo", init_method=f"tcp://{work.address}", rank=work.rank, world_size=work.world)


def _checkpoints(model: nn.Module, optimizer: Any, work: RankWork) -> Any:
    if work.plan is None:
        return nullcontext()
    import treadle.checkpoint

    return treadle.checkpoint.attach(model, optimizer, work.plan, agent=work.agent, persistent=work.persistent)


def _save(state: object, folder: Path, rank: int) -> None:
    """Write a state so that it outlives the machine's loss of power, in place of the last one."""
    import torch

    with (folder / f"rank{rank}.new").open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    (folder / f"rank{rank}.new").replace(folder / f"rank{rank}.pt")


def _gpt(width: int) -> nn.Module:
    from torch import nn

    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
    layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return nn.Sequential(nn.Embedding(WORDS, width), layers, nn.Linear(width, WORDS))
