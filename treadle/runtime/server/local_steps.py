"""What the workers of a plan would compute without a server: random gradients, their mean in the order that the plan
has, and steps of the optimizer of PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn, optim

from treadle.planner.passes.server.decisions import ServerDecisions
from treadle.planner.passes.server.keys import TYPE_BYTES
from treadle.planner.passes.server.problem import OptimizerName
from treadle.server.lamb import Lamb

LR = 1e-3
OPTIMIZERS: dict[OptimizerName, Callable[[list[dict[str, Any]]], optim.Optimizer]] = {
    "sgd": lambda groups: optim.SGD(groups, LR, momentum=0.9, weight_decay=1e-4),
    "nesterov": lambda groups: optim.SGD(groups, LR, momentum=0.9, nesterov=True),
    "adam": lambda groups: optim.Adam(groups, LR),
    "lamb": lambda groups: Lamb(groups, LR, weight_decay=1e-2),
}


class LocalSteps:
    """Weights are the same in all processes, gradients the same in each step."""

    def __init__(self, decisions: ServerDecisions) -> None:
        self.decisions, self.keys = decisions, decisions.problem.keys
        generator = torch.Generator().manual_seed(0)
        self.parameters = [nn.Parameter(torch.randn(key.elements, generator=generator)) for key in self.keys]
        groups: dict[str, list[nn.Parameter]] = {}
        for key, parameter in zip(self.keys, self.parameters, strict=True):
            groups.setdefault(key.dtype, []).append(parameter)
        self.group_of = [list(groups).index(key.dtype) for key in self.keys]
        given: list[dict[str, Any]] = [{"params": members} for members in groups.values()]
        if decisions.problem.optimizer == "lamb":
            for dtype, group in zip(groups, given, strict=True):  # its norms are added up over the plan's chunks
                group["chunk_bytes"] = decisions.chunk_bytes * TYPE_BYTES["float32"] // TYPE_BYTES[dtype]  # type: ignore[index]
        make = OPTIMIZERS.get(decisions.problem.optimizer)
        self.optimizer = None if make is None else make(given)

    def gradient(self, worker: int, key: int) -> Tensor:
        """The gradient of one worker, as it travels."""
        generator = torch.Generator().manual_seed(1 + worker * len(self.keys) + key)
        values = torch.randn(self.keys[key].elements, generator=generator)
        return values.to(getattr(torch, self.keys[key].dtype))

    def mean(self, key: int) -> Tensor:
        """In float32: those of a rack in the order of workers, then the racks in theirs if the plan has two levels."""
        problem = self.decisions.problem
        racks = problem.racks if self.decisions.two_level else 1
        each = problem.workers // racks
        return _sum(_sum(self.gradient(rack * each + one, key) for one in range(each)) for rack in range(racks)).div_(
            problem.workers
        )

    def values(self, steps: int) -> Iterator[Tensor]:
        """What the servers send back after as many steps, key by key, as it travels."""
        means = [self.mean(key) for key in range(len(self.keys))]
        if self.optimizer is not None:
            for parameter, mean in zip(self.parameters, means, strict=True):
                parameter.grad = mean
            for _ in range(steps):
                self.optimizer.step()
        for key, parameter, mean in zip(self.keys, self.parameters, means, strict=True):
            found = mean if self.optimizer is None else parameter.detach()
            yield found.to(getattr(torch, key.dtype))


def _sum(terms: Iterator[Tensor]) -> Tensor:
    """In float32, in this order."""
    total = next(terms).float()
    for term in terms:
        total = total + term.float()
    return total
