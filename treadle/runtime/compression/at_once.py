"""A plan executed after the backward pass, when all gradients are ready, and what it keeps between two steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from treadle.planner.machine.compressors import compressor, keeps_residual, matrix
from treadle.planner.passes.compression.decisions import CompressionDecisions, GradientGroup
from treadle.runtime.agreement import agreed_on
from treadle.runtime.compression import setup
from treadle.runtime.compression.coders import KernelCoders
from treadle.runtime.compression.group_run import Grid, GroupRun
from treadle.runtime.compression.lanes import Issue

META = torch.device("meta")


class ExchangeAtOnce:
    """Called after each backward pass of all ranks, it leaves the means over them in the gradients of `parameters`,
    which are those of the plan by name. All ranks make it together.

    Raises InputError, on all ranks alike, for a plan that is not for these ranks or parameters.
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], decisions: CompressionDecisions, coders: KernelCoders
    ) -> None:
        def checked() -> tuple[Grid, tuple[Issue, ...]]:
            setup.check_parameters(decisions, parameters)
            return setup.grid_of(decisions, None), setup.order_of(decisions)

        grid, order = agreed_on(checked, decisions)
        self.coders = coders
        self.parameters = [parameters[gradient.name] for gradient in decisions.problem.gradients]
        self.exchange = setup.exchange_of(decisions, grid, order, coders, self.parameters[0].device)

    def __call__(self) -> None:
        for number, parameter in enumerate(self.parameters):
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            self.exchange.put(number, parameter.grad)
        self.exchange.finish()
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        for group, (first, last) in enumerate(self.exchange.groups):
            self.exchange.mean_into_each(group, gradients[first : last + 1])
        self.coders.iterations += 1

    def kept(self) -> list[Tensor]:
        """The tensors that live from one step to the next."""
        buffers = [each for run in self.exchange.runs for each in run.buffers.values()]
        return [*buffers, *self.coders.kept()]


def kept_bytes(decisions: CompressionDecisions) -> int:
    """Bytes of what `ExchangeAtOnce.kept` returns after a step, on the rank that has the most of them."""
    problem = decisions.problem
    grids = (Grid(rank, problem.machines, problem.devices) for rank in range(problem.ranks))
    return max(sum(_kept_bytes(decisions, group, grid) for group in decisions.groups) for grid in grids)


def _kept_bytes(decisions: CompressionDecisions, group: GradientGroup, grid: Grid) -> int:
    """The steps of a group run on tensors without memory."""
    coder = _Sizes(group.compressor)
    elements = decisions.problem.elements(group.first, group.last)
    run = GroupRun(group.steps, elements, grid, lambda *_: None, {"device": coder, "host": coder}, META)
    stays = group.first == group.last and group.steps[0].startswith("compress@")
    run.start(torch.empty(elements, device=META) if stays else run.flat)
    for number in range(len(group.steps)):
        run.step(number)
    return sum(each.nbytes for each in run.buffers.values()) + coder.residual_bytes


class _Sizes:
    """Payloads and residuals of a compressor, as sizes."""

    def __init__(self, name: str | None) -> None:
        self.name, self.residual_bytes = name or "", 0

    def wire_bytes(self, elements: int) -> int:
        return compressor(self.name).wire_bytes(elements)

    def encode(self, point: str, values: Tensor, payload: Tensor, *, shared: bool) -> None:
        found = compressor(self.name)
        if found.algorithm.messages > 1:  # a factor, and the matrix that holds the residual
            rows, columns = matrix(values.numel())
            self.residual_bytes += 4 * columns * (rows + min(int(found.parameter), rows, columns))
        elif keeps_residual(self.name):
            self.residual_bytes += values.nbytes

    def decode_add(self, point: str, payloads: Tensor, out: Tensor) -> None:
        pass

    def sum(self, point: str, payload: Tensor, elements: int, allreduce: Callable[[Tensor], object]) -> None:
        pass
