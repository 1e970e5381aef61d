"""The work of every rank of a job: the same steps under plain DistributedDataParallel and under the plans."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from treadle.job.part import RankStep

if TYPE_CHECKING:
    from torch import nn

    from treadle.capture.load import ModelStep


@dataclass(frozen=True)
class TrainingTask:
    """Input of a rank; plain data, since it is sent to another process."""

    model: str
    folder: str
    parts: tuple[Callable[[RankStep], None], ...]
    """What changes the step for the plans, one for each part of the job that does."""
    steps: int
    learning_rate: float
    seed: int


@dataclass
class RankTraining:
    """Per step: loss, measured peak of live tensor bytes over the whole iteration, seconds."""

    losses: list[float] = field(default_factory=list)
    peaks: list[int] = field(default_factory=list)
    compute_seconds: list[float] = field(default_factory=list)
    exchange_seconds: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class RankResult:
    plain: RankTraining
    planned: RankTraining
    parameter_difference: float
    """Largest absolute difference between the parameters of both runs after the last step."""
    parameter_scale: float
    """Largest absolute parameter, to read the difference against."""


def work(rank: int, world: int, task: TrainingTask) -> RankResult:
    """Train twice from the same seed on the same batches and compare."""
    import torch

    torch.set_num_threads(1)
    plain_model, plain = _train(task, _plain(rank, world, task))
    planned_model, planned = _train(task, _planned(rank, world, task))
    pairs = list(zip(plain_model.parameters(), planned_model.parameters(), strict=True))
    return RankResult(
        plain=plain,
        planned=planned,
        parameter_difference=max(float((a.detach() - b.detach()).abs().max()) for a, b in pairs),
        parameter_scale=max(float(a.detach().abs().max()) for a, _ in pairs),
    )


def _train(task: TrainingTask, step: RankStep) -> tuple[nn.Module, RankTraining]:
    import torch

    from treadle.runtime.meter import Meter

    optimizer = torch.optim.SGD(step.model.parameters(), lr=task.learning_rate)
    result = RankTraining()
    for number in range(task.steps):
        # The function's example inputs under another seed, which decides the weights too; those are dropped.
        batch = _fresh(task, task.seed + 1 + number * step.world + step.rank)
        with Meter(step.model, batch.inputs) as iteration:
            started = time.perf_counter()
            loss = step.loss_of(batch)
            loss.backward()
            computed = time.perf_counter()
            torch.distributed.barrier()  # an exchange is timed from when the last rank is ready for it
            ready = time.perf_counter()
            for exchange in step.exchanges:
                exchange()
            exchanged = time.perf_counter()
            optimizer.step()
            optimizer.zero_grad()
        result.losses.append(float(loss.detach()))
        result.peaks.append(iteration.peak_bytes)
        result.compute_seconds.append(computed - started)
        result.exchange_seconds.append(exchanged - ready)
    return step.model, result


def _plain(rank: int, world: int, task: TrainingTask) -> RankStep:
    from torch.nn.parallel import DistributedDataParallel

    made = _fresh(task, task.seed)
    return _step(rank, world, made, DistributedDataParallel(made.model))


def _planned(rank: int, world: int, task: TrainingTask) -> RankStep:
    made = _fresh(task, task.seed)
    step = _step(rank, world, made, made.model)
    for part in task.parts:
        part(step)
    return step


def _step(rank: int, world: int, made: ModelStep, called: nn.Module) -> RankStep:
    from treadle.runtime.training import loss_of

    return RankStep(rank, world, made.model, lambda batch: loss_of(batch._replace(loss=made.loss).run(called)))


def _fresh(task: TrainingTask, seed: int) -> ModelStep:
    """Model, inputs and loss of the job's function under `seed`."""
    import torch

    from treadle.capture.load import build_step, load_function

    torch.manual_seed(seed)
    return build_step(load_function(task.model, task.folder), task.model)
