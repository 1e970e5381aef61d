"""Training with each compressor against plain training: steps to a loss, on data made here.

Four ranks are simulated in one process: each has its own batch and its own residuals, and the exchange of a group is
encode, allgather, decode and add, as the runtime does it. Every seed is fixed.
"""

from __future__ import annotations

import logging
import logging.handlers
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import hypot, isfinite
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.common import Row, Table, progress
from benchmarks.compression.curves import Curves, page
from examples.models.common import classification_loss
from examples.models.gpt2 import GPT2, Config, language_model_loss
from examples.models.resnet50 import ResNet
from treadle.kernels.compression import Feedback, PowerSGD, codec
from treadle.kernels.compression.feedback import seed_of
from treadle.planner.machine.compressors import compressor

RANKS, GROUPS, SEED = 4, 2, 1
SMOOTHED = 10
"""Steps whose mean loss has to reach the target."""
COMPRESSORS = (
    *("fp16", "bf16", "int8", "qsgd", "efsignsgd", "onebit"),
    *("topk:0.01", "dgc:0.01", "randomk:0.01", "randomk:0.1", "powersgd:4", "powersgd:16"),
)
REPORT = Path("build", "compression", "accuracy.html")
WORDS, LENGTH, ROWS = 32, 32, 8
CLASSES, PIXELS, NOISE = 10, 16, 2.0

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Setting:
    """How a compressor is tried: a share of the task's rate, the momentum, and steps at most."""

    share: float = 1.0
    momentum: float = 0.9
    steps: int = 400


SETTINGS = (Setting(), Setting(1 / 4, 0.9, 800), Setting(1 / 16, 0.9, 1600), Setting(1 / 10, 0.0, 1600))
"""The next one where a compressor misses the loss."""


@dataclass(frozen=True)
class Task:
    """A model and its data: `batch` draws the next one of a rank."""

    name: str
    make: Callable[[], nn.Module]
    loss: Callable[[nn.Module, Tensor, Tensor], Tensor]
    batch: Callable[[torch.Generator], Batch]
    rate: float
    target: float


@dataclass(frozen=True)
class Training:
    """Losses and the norm of rank 0's residuals by step; warnings about residuals."""

    name: str
    setting: Setting
    losses: list[float]
    residuals: list[float]
    warnings: list[str]

    def reached(self, target: float) -> int | None:
        """The step at which the mean of the last SMOOTHED losses is at most `target`."""
        return next((place for place in range(SMOOTHED, len(self.losses) + 1) if self.mean(place) <= target), None)

    def mean(self, end: int) -> float:
        return sum(self.losses[end - SMOOTHED : end]) / SMOOTHED


class Exchange:
    """The exchange of all groups by one compressor: what each rank keeps, and what the ranks send each other.

    Sums of random elements and of factors are those of an allreduce; other payloads are gathered, decoded and added.
    """

    def __init__(self, name: str, sizes: Sequence[int], momentum: float) -> None:
        self.feedback = [Feedback(rank=rank, ranks=RANKS, momentum=momentum) for rank in range(RANKS)]
        self.name = name
        self.factors = [[PowerSGD(name, size) for size in sizes] for _ in range(RANKS)] if _factors(name) else []
        self.codecs = [] if self.factors else [codec(name, size) for size in sizes]

    def mean(self, group: int, values: Sequence[Tensor], step: int) -> Tensor:
        """The mean over ranks that every rank gets of a group's gradients."""
        out = torch.zeros_like(values[0])
        if self.factors:
            points = [rank[group] for rank in self.factors]
            kept = zip(self.feedback, points, values, strict=True)
            left = torch.stack([feedback.first((group,), point, each) for feedback, point, each in kept]).sum(0)
            right = torch.stack([point.second(left) for point in points]).sum(0)
            results = [torch.zeros_like(out) for _ in points]
            for point, result in zip(points, results, strict=True):
                point.decode_add(right, result)
            return results[0] / RANKS
        used = self.codecs[group]
        payloads = torch.empty(RANKS, used.wire_bytes, dtype=torch.uint8)
        for feedback, each, payload in zip(self.feedback, values, payloads, strict=True):
            feedback.encode((group,), used, each, payload, step)
        used.decode_add(payloads.view(-1), out, seed_of((group,), step))
        return out / RANKS

    def norm(self) -> float:
        """Of all residuals of rank 0."""
        return hypot(*self.feedback[0].norms().values())


def _factors(name: str) -> bool:
    return compressor(name).algorithm.messages > 1


def tables() -> Iterator[Table]:
    """Steps to a loss with each compressor, with residual norms: a language model and a convolutional network."""
    torch.set_num_threads(1)
    shown: list[tuple[Table, list[Curves]]] = []
    for task in tasks():
        trained = [each for name in (None, *COMPRESSORS) for each in attempts(task, name)]
        plain = trained[0].reached(task.target)
        table = Table(
            f"{task.name}: steps to a loss of {task.target:g} on {RANKS} ranks",
            [_row(each, task.target, plain) for each in trained],
            ("loss: mean of the last steps. residual: norm on rank 0, after a third of the steps and at the end.",),
        )
        shown.append((table, [curves(each) for each in trained]))
        yield table
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_text(page(shown), encoding="utf-8")
    progress(f"curves: {REPORT}")


def tasks() -> tuple[Task, Task]:
    """A language model on text of a Markov chain, a convolutional network on noisy pictures of ten kinds."""
    fixed = torch.Generator().manual_seed(SEED)
    chain = torch.softmax(3 * torch.randn(WORDS, WORDS, generator=fixed), dim=1)
    kinds = torch.randn(CLASSES, 3, PIXELS, PIXELS, generator=fixed)
    config = Config(layers=2, heads=4, width=64, vocabulary=WORDS, context=LENGTH)
    return (
        Task("GPT-2", partial(GPT2, config), language_model_loss, partial(_text, chain), 0.1, 1.9),
        Task(
            "ResNet",
            partial(ResNet, (1, 1), 16, CLASSES),
            classification_loss,
            partial(_pictures, kinds),
            0.02,
            0.5,
        ),
    )


def attempts(task: Task, name: str | None) -> list[Training]:
    """Train with each setting until one reaches the loss."""
    found: list[Training] = []
    for setting in SETTINGS:
        found.append(training(task, name, setting))
        if found[-1].reached(task.target):
            break
    return found


def training(task: Task, name: str | None, setting: Setting) -> Training:
    """Train with a compressor, or plainly, until the loss is reached or is no number."""
    progress(f"{task.name}: {name or 'plain'}, rate x {setting.share:g}, momentum {setting.momentum:g}")
    torch.manual_seed(SEED)
    model = task.make()
    parameters = list(model.parameters())[::-1]
    corrected = name is not None and compressor(name).algorithm.name == "dgc"
    momentum = 0.0 if corrected else setting.momentum
    optimizer = torch.optim.SGD(parameters, setting.share * task.rate, momentum=momentum)
    draws = [torch.Generator().manual_seed(SEED + 1 + rank) for rank in range(RANKS)]
    groups = grouped(parameters)
    sizes = [sum(each.numel() for each in group) for group in groups]
    exchange = Exchange(name, sizes, setting.momentum) if name else None
    found = Training(name or "plain", setting, [], [], [])
    with warnings_to(found.warnings):
        for step in range(setting.steps):
            losses, ranks = zip(*(_gradients(task, model, groups, draw) for draw in draws), strict=True)
            for place, group in enumerate(groups):
                values = [rank[place] for rank in ranks]
                mean = torch.stack(values).mean(0) if exchange is None else exchange.mean(place, values, step)
                for parameter, piece in zip(group, mean.split([each.numel() for each in group]), strict=True):
                    parameter.grad = piece.view_as(parameter)
            optimizer.step()
            found.losses.append(sum(losses) / RANKS)
            found.residuals.append(exchange.norm() if exchange else 0.0)
            if found.reached(task.target) or not isfinite(found.losses[-1]):
                break
    return found


@contextmanager
def warnings_to(messages: list[str]) -> Iterator[None]:
    """Append what treadle.compression logs."""
    handler = logging.handlers.BufferingHandler(1 << 20)
    log = logging.getLogger("treadle.compression")
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        messages += [record.getMessage() for record in handler.buffer]


def _gradients(
    task: Task, model: nn.Module, groups: Sequence[Sequence[nn.Parameter]], draw: torch.Generator
) -> tuple[float, list[Tensor]]:
    """The loss of a rank's next batch, and its gradients, a flat tensor for each group."""
    loss = task.loss(model, *task.batch(draw))
    found = torch.autograd.grad(loss, [each for group in groups for each in group])
    gradients = iter(found)
    return loss.item(), [torch.cat([next(gradients).flatten() for _ in group]) for group in groups]


def grouped(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    """GROUPS groups of consecutive parameters of about as many elements each."""
    total = sum(each.numel() for each in parameters)
    groups: list[list[nn.Parameter]] = [[] for _ in range(GROUPS)]
    before = 0
    for each in parameters:
        groups[before * GROUPS // total].append(each)
        before += each.numel()
    return groups


def curves(found: Training) -> Curves:
    """Smoothed losses, and residuals."""
    share, momentum = found.setting.share, found.setting.momentum
    words = [found.name, *([f"rate x {share:g}"] if share != 1 else ()), *(() if momentum else ["no momentum"])]
    losses = [found.mean(end) for end in range(SMOOTHED, len(found.losses) + 1)]
    return Curves(", ".join(words), losses, found.residuals)


def _row(found: Training, target: float, plain: int | None) -> Row:
    steps = found.reached(target)
    residuals = found.residuals
    return {
        "compressor": found.name,
        "rate x": found.setting.share,
        "momentum": found.setting.momentum,
        "steps": steps,
        "x plain": steps / plain if steps and plain else None,
        "loss": found.mean(len(found.losses)),
        "residual at a third": residuals[len(residuals) // 3] or None,
        "residual": residuals[-1] or None,
        "warned": "yes" if found.warnings else "no",
        "reached": "yes" if steps else "MISSED",
    }


def _text(chain: Tensor, draw: torch.Generator) -> Batch:
    tokens = [torch.randint(WORDS, (ROWS,), generator=draw)]
    for _ in range(LENGTH):
        tokens.append(torch.multinomial(chain[tokens[-1]], 1, generator=draw).squeeze(1))
    text = torch.stack(tokens, 1)
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def _pictures(kinds: Tensor, draw: torch.Generator) -> Batch:
    labels = torch.randint(CLASSES, (ROWS,), generator=draw)
    return kinds[labels] + NOISE * torch.randn(ROWS, *kinds.shape[1:], generator=draw), labels
