"""What every rank of a job runs: the same steps under plain DistributedDataParallel and under the plans."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(frozen=True)
class Work:
    """What a rank needs to know; plain data, so that it travels to another process.

    messages: for each gradient bucket its parameter names and the folder of its collective.
    """

    model: str
    folder: str
    memory_plan: str
    trace: str
    messages: tuple[tuple[tuple[str, ...], str], ...]
    steps: int
    learning_rate: float
    seed: int


@dataclass
class Run:
    """Per step: loss, measured peak of live tensor bytes over the whole iteration, seconds."""

    losses: list[float] = field(default_factory=list)
    peaks: list[int] = field(default_factory=list)
    compute_seconds: list[float] = field(default_factory=list)
    exchange_seconds: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class RankResult:
    plain: Run
    planned: Run
    parameter_difference: float
    """Largest absolute difference between the parameters of both runs after the last step."""
    parameter_scale: float
    """Largest absolute parameter, to read the difference against."""


def work(rank: int, world: int, job: Work) -> RankResult:
    """Train twice from the same seed on the same batches and compare."""
    import torch

    torch.set_num_threads(1)
    plain_model, plain = _train(rank, world, job, planned=False)
    planned_model, planned = _train(rank, world, job, planned=True)
    pairs = list(zip(plain_model.parameters(), planned_model.parameters(), strict=True))
    return RankResult(
        plain=plain,
        planned=planned,
        parameter_difference=max(float((a.detach() - b.detach()).abs().max()) for a, b in pairs),
        parameter_scale=max(float(a.detach().abs().max()) for a, _ in pairs),
    )


def _train(rank: int, world: int, job: Work, *, planned: bool) -> tuple[nn.Module, Run]:
    import torch

    from treadle.runtime.meter import Meter

    model, loss_of, exchange = (_planned if planned else _plain)(rank, world, job)
    optimizer = torch.optim.SGD(model.parameters(), lr=job.learning_rate)
    result = Run()
    for step in range(job.steps):
        inputs = batch(job, seed=job.seed + 1 + step * world + rank)
        with Meter(model, inputs) as iteration:
            started = time.perf_counter()
            loss = loss_of(inputs)
            loss.backward()
            computed = time.perf_counter()
            torch.distributed.barrier()  # an exchange is timed from when the last rank is ready for it
            ready = time.perf_counter()
            exchange()
            exchanged = time.perf_counter()
            optimizer.step()
            optimizer.zero_grad()
        result.losses.append(float(loss.detach()))
        result.peaks.append(iteration.peak_bytes)
        result.compute_seconds.append(computed - started)
        result.exchange_seconds.append(exchanged - ready)
    return model, result


Exchange = Callable[[], None]
LossOf = Callable[[Sequence["torch.Tensor"]], "torch.Tensor"]


def _plain(rank: int, world: int, job: Work) -> tuple[nn.Module, LossOf, Exchange]:
    from torch.nn.parallel import DistributedDataParallel

    model, _, loss = fresh_step(job, job.seed)
    wrapped = DistributedDataParallel(model)
    return model, lambda inputs: loss(wrapped, *inputs) if loss else wrapped(*inputs), lambda: None


def _planned(rank: int, world: int, job: Work) -> tuple[nn.Module, LossOf, Exchange]:
    import torch

    from treadle.runtime.collective.messages import load_executor
    from treadle.runtime.memory.apply import apply

    model, _, _ = fresh_step(job, job.seed)
    wrapped = apply(model, job.memory_plan, job.trace)
    parameters = dict(model.named_parameters())
    messages = [(names, load_executor(folder, rank)) for names, folder in job.messages]

    def exchange() -> None:
        for names, allreduce in messages:
            gradients = [parameters[name].grad for name in names]
            present = [gradient for gradient in gradients if gradient is not None]
            flat = torch.cat([gradient.reshape(-1) for gradient in present])
            summed = allreduce(flat).div_(world)
            for gradient, part in zip(present, summed.split([g.numel() for g in present]), strict=True):
                gradient.copy_(part.view_as(gradient))

    return model, lambda inputs: wrapped(*inputs), exchange


def fresh_step(job: Work, seed: int) -> tuple[nn.Module, tuple[torch.Tensor, ...], Callable[..., torch.Tensor] | None]:
    """Model, inputs and loss of the job's function under `seed`."""
    import torch

    from treadle.capture.load import build_step, load_function

    torch.manual_seed(seed)
    step = build_step(load_function(job.model, job.folder), job.model)
    return step.model, step.inputs, step.loss


def batch(job: Work, seed: int) -> tuple[torch.Tensor, ...]:
    """One batch: the function's example inputs under another seed, which decides the weights too; those are dropped."""
    return fresh_step(job, seed)[1]
