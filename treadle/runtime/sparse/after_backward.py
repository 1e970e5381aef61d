"""A plan for all gradients of a model, executed after the backward pass, when they are ready."""

from __future__ import annotations

import torch
from torch import Tensor, distributed, nn

from treadle.planner.errors import InputError
from treadle.planner.passes.sparse.decisions import SparseDecisions
from treadle.planner.passes.sparse.job import OTHERS
from treadle.runtime.agreement import agreed
from treadle.runtime.sparse.attached import planned_parameters, table_names
from treadle.runtime.sparse.exchange import SparseExchange
from treadle.runtime.sparse.memory import kept_tensors


class AfterBackward:
    """Called after each backward pass of all ranks, it leaves the means over them in the gradients of `model`: those
    that the plan names, and all others, if any, together as the one that it calls OTHERS. All ranks make it together.

    Raises InputError, on all ranks alike, for a plan that is not for these ranks or parameters.
    """

    def __init__(self, model: nn.Module, decisions: SparseDecisions) -> None:
        self.parameters = {name: each for name, each in model.named_parameters() if each.requires_grad}
        self.order = [gradient.name for gradient in decisions.problem.gradients]
        self.others = [each for name, each in self.parameters.items() if name not in self.order]

        def checked() -> None:
            together = torch.empty(sum(each.numel() for each in self.others), device="meta")
            known: dict[str, Tensor] = {**self.parameters, OTHERS: together}
            planned_parameters(decisions, known, table_names(model, sparse=True))
            if self.others and OTHERS not in self.order:
                name = next(name for name in self.parameters if name not in self.order)
                raise InputError(f"found parameter {name!r} that takes a gradient, expected one of the plan's")

        agreed(checked)
        self.exchange = SparseExchange(decisions)
        self.world = distributed.get_world_size()

    def __call__(self) -> None:
        given = {name: packed(self.others) if name == OTHERS else ready(self.parameters[name]) for name in self.order}
        for name, total in self.exchange.exchange_together(given).items():
            mean = total.div_(self.world)
            if name == OTHERS:
                unpack(mean, self.others)
            else:
                self.parameters[name].grad = mean

    def kept(self) -> list[Tensor]:
        """The tensors that live from one step to the next."""
        return kept_tensors(self.exchange)


def ready(parameter: nn.Parameter) -> Tensor:
    """The gradient of a parameter, zeros where it has none."""
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def packed(parameters: list[nn.Parameter]) -> Tensor:
    """All gradients one after the other, which takes over their memory."""
    flat = torch.cat([ready(parameter).reshape(-1) for parameter in parameters])
    for parameter in parameters:
        parameter.grad = None
    return flat


def unpack(flat: Tensor, parameters: list[nn.Parameter]) -> None:
    """Give each parameter its part of `flat` as its gradient."""
    for parameter, part in zip(parameters, flat.split([each.numel() for each in parameters]), strict=True):
        parameter.grad = part.view_as(parameter)
