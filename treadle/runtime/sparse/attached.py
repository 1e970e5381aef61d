"""Attach a plan for sparse gradients to a model: ranks, parameters, the hook."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from treadle.planner.documents.plan import Plan
from treadle.planner.errors import InputError
from treadle.planner.passes.sparse.decisions import SparseDecisions
from treadle.planner.passes.sparse.job import OTHERS
from treadle.runtime.agreement import agreed
from treadle.runtime.sources import given_plan
from treadle.runtime.sparse.ddp import SparseHook, reduced_parameters
from treadle.runtime.sparse.exchange import SparseExchange

P = TypeVar("P", bound=Tensor)
CALLER = "treadle.sparse.attach"


def decisions_of(plan: Plan[Any] | Path | str) -> SparseDecisions:
    """Raises InputError for a plan of another pass."""
    return given_plan(plan, CALLER, SparseDecisions).decisions


def attach_ddp(model: DistributedDataParallel, decisions: SparseDecisions) -> SparseHook:
    """Exchange the gradients of `model` as decided. All ranks call it together.

    Raises InputError, on all ranks alike, for a plan that is not for these ranks or parameters or differs between
    ranks, and for a model with a hook of its own.
    """

    def checked() -> dict[str, nn.Parameter]:
        for hook, _ in model._comm_hooks:
            owner = getattr(hook, "__self__", None)
            found = "a communication hook"
            if isinstance(owner, SparseHook):
                found = "a closed exchange, whose hook stays in it" if owner.closed else "an exchange"
            raise InputError(f"found {found}, expected a model without one; wrap its module anew", where=CALLER)
        ranks, world = distributed.get_world_size(model.process_group), distributed.get_world_size()
        if ranks != world:
            raise InputError(f"found a group of {ranks} ranks, expected one of all {world}")
        return planned_parameters(decisions, reduced_parameters(model), table_names(model.module, sparse=True))

    parameters = agreed(checked)
    return SparseHook(model, parameters, SparseExchange(decisions, device=next(iter(parameters.values())).device))


def planned_parameters(decisions: SparseDecisions, parameters: Mapping[str, P], sparse: frozenset[str]) -> dict[str, P]:
    """Those of the plan, by name in its order. `sparse` are the names of those whose gradients are COO tensors.

    Raises InputError that names the first one that differs from the plan.
    """
    found = {}
    for gradient in decisions.problem.gradients:
        name = gradient.name
        if name == OTHERS and name not in parameters:
            continue  # DistributedDataParallel has them in its own buckets
        if name not in parameters:
            raise InputError(f"found no parameter {name!r} that takes a gradient, expected that of the plan")
        if gradient.form == "coo" and gradient.unit != "row":
            raise InputError(f"found elements of the COO gradient of {name!r} in the plan, expected rows")
        parameter = found[name] = parameters[name]
        rows, elements = (parameter.shape[0] if parameter.ndim else 1), parameter.numel()
        units = rows if gradient.unit == "row" else elements
        if units != gradient.units or elements != gradient.units * gradient.width:
            expected = f"{gradient.units} {gradient.unit}s of {gradient.width} as in the plan"
            raise InputError(f"found {name!r} of shape {list(parameter.shape)}, expected {expected}")
        if parameter.dtype != torch.float32:
            dtype = str(parameter.dtype).removeprefix("torch.")
            raise InputError(f"found {dtype} gradients of {name!r}, expected float32 ones")
        if (form := "coo" if name in sparse else "dense") != gradient.form:
            raise InputError(f"found {form} gradients of {name!r}, expected {gradient.form} ones as in the plan")
    return found


def table_names(module: nn.Module, *, sparse: bool = False) -> frozenset[str]:
    """Names of the weights of embeddings; with `sparse` of those only whose gradients are COO tensors, as
    DistributedDataParallel decides it."""
    tables = (each for each in module.modules() if isinstance(each, nn.Embedding | nn.EmbeddingBag))
    weights = {id(each.weight) for each in tables if each.sparse or not sparse}
    return frozenset(name for name, parameter in module.named_parameters() if id(parameter) in weights)
