"""A model with the gradients of a compression problem and none of its operators, which are slept through."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn

from treadle.planner.passes.compression.problem import CompressionProblem


class Sleeper:
    """Sleeps for as long as operators would run. What one sleep takes too long the next ones make up for."""

    def __init__(self) -> None:
        self.ahead_ns = 0

    def sleep(self, ns: int) -> None:
        self.ahead_ns += ns
        if self.ahead_ns > 0:
            start = time.perf_counter_ns()
            time.sleep(self.ahead_ns / 1e9)
            self.ahead_ns -= time.perf_counter_ns() - start


class SyntheticModel(nn.Module):
    """Parameters by the names of the problem's gradients, which its backward pass makes in their order and in time.

    `gradients` are what it makes, in that order. The model is called without arguments and returns a scalar.
    """

    def __init__(self, problem: CompressionProblem, gradients: list[Tensor]) -> None:
        super().__init__()
        self.problem, self.gradients, self.sleeper = problem, gradients, Sleeper()
        for gradient in problem.gradients:
            *above, last = gradient.name.split(".")
            module: nn.Module = self
            for name in above:
                if name not in module._modules:
                    module.add_module(name, nn.Module())
                module = module.get_submodule(name)
            module.register_parameter(last, nn.Parameter(torch.zeros(gradient.elements)))

    def forward(self) -> Tensor:
        self.sleeper.sleep(self.problem.forward_ns)
        found = []
        for gradient, values in reversed([*zip(self.problem.gradients, self.gradients, strict=True)]):
            parameter = self.get_parameter(gradient.name)
            found.append(_Ready.apply(parameter, values, gradient.backward_ns, self.sleeper))  # type: ignore[no-untyped-call]
        # The backward pass runs the node first that was made last.
        return torch.stack(found).sum()


class _Ready(torch.autograd.Function):
    """Zero; the gradient of its parameter is given, and ready after a time."""

    @staticmethod
    def forward(ctx: Any, parameter: Tensor, values: Tensor, ns: int, sleeper: Sleeper) -> Tensor:
        ctx.given = values, ns, sleeper
        return parameter.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *above: Tensor) -> tuple[Tensor, None, None, None]:
        values, ns, sleeper = ctx.given
        sleeper.sleep(ns)
        return values, None, None, None


def random_gradients(problem: CompressionProblem, rank: int, *, whole: bool) -> list[Tensor]:
    """Gradients of one rank: `whole` numbers, whose sums are exact, or normally distributed ones."""
    generator = torch.Generator().manual_seed(rank)
    sizes = [gradient.elements for gradient in problem.gradients]
    if whole:
        return [torch.randint(-8, 9, (size,), generator=generator).float() for size in sizes]
    return [torch.randn(size, generator=generator) for size in sizes]
