"""Attach a plan to a model: ranks, parameters, process groups, hooks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from treadle.planner.documents.plan import Plan
from treadle.planner.errors import InputError
from treadle.planner.machine.compressors import keeps_residual
from treadle.planner.passes.compression.decisions import CompressionDecisions
from treadle.runtime.agreement import agreed_on
from treadle.runtime.compression import setup
from treadle.runtime.compression.coders import Coders
from treadle.runtime.compression.ddp import DdpExchange
from treadle.runtime.compression.group_run import Grid
from treadle.runtime.compression.lanes import Issue
from treadle.runtime.sources import given_plan
from treadle.runtime.watch import lost_rank, watch_of

CALLER = "treadle.compress.attach"


def decisions_of(plan: Plan[Any] | Path | str) -> CompressionDecisions:
    """Raises InputError for a plan of another pass."""
    return given_plan(plan, CALLER, CompressionDecisions).decisions


def attach_ddp(
    model: DistributedDataParallel, decisions: CompressionDecisions, coders: Coders, group: Any = None
) -> DdpExchange:
    """Exchange the gradients of `model` as decided. All ranks call it together.

    Raises InputError, on all ranks alike, for a plan that is not for these ranks or parameters or differs between
    ranks, and for a model with a hook of its own; MissingBackendError without the compiler of a compressor.
    """
    parameters = {
        name: parameter
        for name, parameter in model.module.named_parameters()
        if parameter.requires_grad and name not in model.parameters_to_ignore
    }

    def checked() -> tuple[Grid, tuple[Issue, ...]]:
        setup.check_parameters(decisions, parameters)
        for hook, _ in model._comm_hooks:
            owner = getattr(hook, "__self__", None)
            found = "a communication hook"
            if isinstance(owner, DdpExchange):
                found = (
                    "a closed exchange, whose hook stays in DistributedDataParallel" if owner.closed else "an exchange"
                )
            raise InputError(f"found {found}, expected a model without one; wrap its module anew", where=CALLER)
        return setup.grid_of(decisions, group or model.process_group), setup.order_of(decisions)

    grid, order = agreed_on(checked, decisions)
    device = next(iter(parameters.values())).device
    exchange = setup.exchange_of(decisions, grid, order, coders, device)
    watch = watch_of(distributed.group.WORLD, lambda rank: exchange.fail(lost_rank(rank)))
    exchange.lost_within = watch.lost_within
    ordered: list[nn.Parameter] = [parameters[gradient.name] for gradient in decisions.problem.gradients]
    unordered = {number for number, each in enumerate(decisions.groups) if not keeps_residual(each.compressor)}
    return DdpExchange(model, ordered, exchange, coders, watch, unordered)
