"""A small training, a plan for it, and a memory of checkpoints in this process."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn, optim

from treadle.checkpoint.layout import PackedState
from treadle.planner.errors import CheckFailed
from treadle.planner.passes.checkpoint.decisions import CheckpointDecisions
from treadle.planner.passes.checkpoint.planning import CheckpointOptions, plan_checkpoint
from treadle.planner.passes.checkpoint.problem import CheckpointProblem, IdleSpan, TrainingMessage


def problem(**changed: Any) -> CheckpointProblem:
    """Two machines; an iteration has two messages, with idle links before, between and after them."""
    spans = (("begin", "allreduce 0", 400), ("allreduce 0", "allreduce 1", 100), ("allreduce 1", "update", 300))
    messages = (("allreduce 0", 400, 500), ("allreduce 1", 600, 700))
    given: dict[str, Any] = {
        "name": "small",
        "machines": 2,
        "copies": 2,
        "devices": 1,
        "state_bytes": 1 << 20,
        "iteration_ns": 1_000_000,
        "messages": tuple(
            TrainingMessage(name=name, start_ns=1000 * start, end_ns=1000 * end) for name, start, end in messages
        ),
        "spans": tuple(IdleSpan(after=a, before=b, length_ns=1000 * length) for a, b, length in spans),
        "alpha_ns": 1000,
        "link_rate": 10**9,
        "copy_rate": 10**9,
        "buffer_bytes": 1 << 17,
    }
    return CheckpointProblem(version=1, **{**given, **changed})


def decisions(options: CheckpointOptions | None = None, **changed: Any) -> CheckpointDecisions:
    return plan_checkpoint(problem(**changed), options=options or CheckpointOptions()).decisions


class Training:
    """Steps whose bits depend on weights, buffers, optimizer, schedule and random numbers."""

    def __init__(self, seed: int = 3) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(), nn.Linear(16, 4))
        self.optimizer = optim.Adam(self.model.parameters(), lr=0.05)
        self.schedule = optim.lr_scheduler.StepLR(self.optimizer, 2, 0.5)

    def step(self) -> float:
        loss = self.model(torch.randn(6, 8)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        return float(loss.detach())

    def steps(self, count: int) -> list[float]:
        return [self.step() for _ in range(count)]


class ListedMemory:
    """What a rank does with its memory, as a list of calls, and the last two versions that it kept."""

    epoch = 1

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.kept: dict[int, Tensor] = {}
        self.damaged: set[int] = set()
        self._state: PackedState | None = None

    def versions(self) -> set[int]:
        return set(self.kept)

    def read(self, version: int) -> tuple[Tensor, str]:
        if version in self.damaged:
            raise CheckFailed(f"version {version} is damaged")
        return self.kept[version], "machine 0"

    def renew(self, epoch: int = 0) -> None:
        self.calls.append("renew")

    def begin(self, state: PackedState, *, first: bool = False) -> None:
        self._state = state
        self.calls.append(("begin", state.version))

    def release(self, span: int) -> None:
        self.calls.append(("span", span))

    def release_own(self, message: int | None) -> None:
        self.calls.append(("own", message))

    def drain(self) -> None:
        assert self._state is not None
        self.calls.append("drain")
        self.kept[self._state.version] = torch.cat(self._state.parts)
        for version in sorted(self.kept)[:-2]:
            del self.kept[version]

    def close(self) -> None:
        self.calls.append("close")
