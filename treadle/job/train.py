"""The work of every rank of a job: the same steps under plain DistributedDataParallel and under the plans."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from treadle.job.part import MeasuredRank, RankStep, StepClock

if TYPE_CHECKING:
    from torch import Tensor, nn, optim

    from treadle.capture.load import ModelStep

TIMED_SECONDS = 6.0
WARM_STEPS, LEAST_TIMED, MOST_TIMED = 2, 3, 20
"""Steps before those that are timed, and bounds of their number."""


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
    lossy: bool = False
    """Whether the plans lose a part of the gradients: then the steps also run without that loss."""


@dataclass(frozen=True)
class RankTraining:
    """Losses of the compared steps, their highest peak of live tensor bytes, and times of the steps after them."""

    losses: list[float]
    measured: MeasuredRank


@dataclass(frozen=True)
class RankResult:
    plain: RankTraining
    planned: RankTraining
    exact_losses: list[float]
    """Losses of the compared steps under the plans without what they lose: those of `planned` where that is nothing."""
    parameter_difference: float
    """Largest absolute difference between parameters of the plain and the exact run after the last compared step."""
    parameter_scale: float
    """Largest absolute parameter, to read the difference against."""
    parameters_agree: bool
    """Whether the planned parameters are those of rank 0, bit by bit."""


def work(rank: int, world: int, task: TrainingTask) -> RankResult:
    """Train plainly and under the plans from the same seed on the same batches and compare."""
    import torch

    torch.set_num_threads(1)
    plain_parameters, plain = _train(task, _plain(rank, world, task))
    planned_parameters, planned = _train(task, planned_step(rank, world, task))
    agree, exact_parameters, losses = _agree(planned_parameters), planned_parameters, planned.losses
    if task.lossy:
        exact_parameters, losses, _ = _compared(task, planned_step(rank, world, task, exact=True))
    pairs = list(zip(plain_parameters, exact_parameters, strict=True))
    return RankResult(
        plain=plain,
        planned=planned,
        exact_losses=losses,
        parameter_difference=max(float((a - b).abs().max()) for a, b in pairs),
        parameter_scale=max(float(a.abs().max()) for a, _ in pairs),
        parameters_agree=agree,
    )


def timed_steps(task: TrainingTask, step: RankStep) -> MeasuredRank:
    """Times of steps on one batch, all ranks at once, after some that warm up.

    The forward and backward pass ends when the last rank is ready for the exchange, so that the parts add up to the
    step. Nothing else is measured meanwhile, which would take time of its own.
    """
    from torch import distributed

    optimizer, batch = _optimizer_of(task, step), _batch_of(task, step, 0)

    def take() -> _Timed:
        distributed.barrier()
        return _step(step, batch, optimizer)

    warm = [take() for _ in range(WARM_STEPS)]
    steps = [take() for _ in range(_repeats(warm[-1].clock.times.step_s))]
    return MeasuredRank(tuple(each.clock for each in steps), median(each.cpu_s for each in steps))


def planned_step(rank: int, world: int, task: TrainingTask, *, exact: bool = False) -> RankStep:
    """The step of a rank with every change of the task."""
    made = _fresh(task, task.seed)
    step = _rank_step(rank, world, made, made.model)
    step.exact = exact
    for part in task.parts:
        part(step)
    return step


def _optimizer_of(task: TrainingTask, step: RankStep) -> optim.Optimizer:
    import torch

    return torch.optim.SGD(step.model.parameters(), lr=task.learning_rate)


def batch_of(task: TrainingTask, rank: int, world: int, number: int) -> ModelStep:
    """The batch of a rank in step `number`: the function's example inputs under a seed of their own, which decides
    weights too; those are dropped."""
    return _fresh(task, task.seed + 1 + number * world + rank)


def _batch_of(task: TrainingTask, step: RankStep, number: int) -> ModelStep:
    return batch_of(task, step.rank, step.world, number)


def _train(task: TrainingTask, step: RankStep) -> tuple[list[Tensor], RankTraining]:
    """Parameters after the compared steps, and what was measured in those and in the timed ones."""
    parameters, losses, peak = _compared(task, step)
    return parameters, RankTraining(losses, timed_steps(task, step)._replace(peak_bytes=peak))


def _compared(task: TrainingTask, step: RankStep) -> tuple[list[Tensor], list[float], int]:
    """Parameters after the compared steps, their losses, and the highest peak of live tensors in bytes."""
    from treadle.runtime.meter import Meter

    optimizer, losses, peaks = _optimizer_of(task, step), [], []
    for number in range(task.steps):
        batch = _batch_of(task, step, number)
        with Meter(step.model, batch.inputs, [kept() for kept in step.kept]) as iteration:
            taken = _step(step, batch, optimizer)
        losses.append(taken.loss)
        peaks.append(iteration.peak_bytes)
    return [parameter.detach().clone() for parameter in step.model.parameters()], losses, max(peaks)


def _agree(parameters: list[Tensor]) -> bool:
    """Whether they are those of rank 0, bit by bit. All ranks call it."""
    import torch
    from torch import distributed

    same = True
    for each in parameters:
        first = each.contiguous().clone()
        distributed.broadcast(first, 0)
        same = same and torch.equal(first.view(torch.uint8), each.contiguous().view(torch.uint8))
    return same


class _Timed(NamedTuple):
    loss: float
    clock: StepClock
    cpu_s: float


def _step(step: RankStep, batch: ModelStep, optimizer: optim.Optimizer) -> _Timed:
    """One step with its exchange and the update of the parameters."""
    from torch import distributed

    started, cpu = time.monotonic(), time.process_time()
    loss = step.loss_of(batch)
    loss.backward()
    cpu = time.process_time() - cpu
    distributed.barrier()
    ready = time.monotonic()
    for exchange in step.exchanges:
        exchange()
    exchanged = time.monotonic()
    optimizer.step()
    optimizer.zero_grad()
    updated = time.monotonic()
    for tensor in batch.inputs:
        tensor.grad = None
    return _Timed(float(loss.detach()), StepClock(started, ready, exchanged, updated), cpu)


def _repeats(step_s: float) -> int:
    """How many steps to time, on all ranks the same number."""
    import torch
    from torch import distributed

    longest = torch.tensor(step_s, dtype=torch.float64)
    distributed.all_reduce(longest, distributed.ReduceOp.MAX)
    return min(MOST_TIMED, max(LEAST_TIMED, math.ceil(TIMED_SECONDS / float(longest))))


def _plain(rank: int, world: int, task: TrainingTask) -> RankStep:
    from torch.nn.parallel import DistributedDataParallel

    made = _fresh(task, task.seed)
    return _rank_step(rank, world, made, DistributedDataParallel(made.model))


def _rank_step(rank: int, world: int, made: ModelStep, called: nn.Module) -> RankStep:
    from treadle.runtime.training import loss_of

    return RankStep(rank, world, made.model, lambda batch: loss_of(batch._replace(loss=made.loss).run(called)))


def _fresh(task: TrainingTask, seed: int) -> ModelStep:
    """Model, inputs and loss of the job's function under `seed`."""
    import torch

    from treadle.capture.load import build_step, load_function

    torch.manual_seed(seed)
    return build_step(load_function(task.model, task.folder), task.model)
