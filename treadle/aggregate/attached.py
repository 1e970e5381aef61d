"""Attach an aggregation plan to a model: the plan, the ranks, the hook."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from treadle.aggregate.aggregator import PlannedSums
from treadle.aggregate.ddp import AggregationHook
from treadle.codegen import emit
from treadle.codegen.targets import PLAN_NAME
from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan
from treadle.planner.errors import CheckFailed, InputError
from treadle.planner.passes import pass_of, require_pass
from treadle.planner.passes.aggregation.decisions import AggregationDecisions
from treadle.runtime.agreement import agreed

CALLER = "treadle.aggregate.attach"


def decisions_of(plan: Plan[Any] | Path | str) -> AggregationDecisions:
    """Those of a plan, of its file, or of a folder that was generated from it. Raises InputError for a plan of another
    pass and for a folder that was changed, CheckFailed for a plan that fails its check."""
    given, where = (_read(Path(plan)), str(plan)) if isinstance(plan, str | Path) else (plan, CALLER)
    if not isinstance(given, Plan):
        raise InputError(f"found a plan of type {type(plan).__name__}, expected a Plan or its file", where=where)
    found = require_pass(given, AggregationDecisions, where)
    if findings := pass_of(found).findings(found.decisions):
        raise CheckFailed(f"{where}: the plan fails its check: {findings[0]}", tuple(findings))
    return found.decisions


def attach_ddp(model: nn.Module, sums: Callable[[], PlannedSums]) -> AggregationHook:
    """Average the gradients of `model` by `sums`. All ranks call it together.

    Raises InputError, on all ranks alike, for a model that is none of DistributedDataParallel over all ranks or has a
    communication hook, and what `sums` raises.
    """

    def checked() -> DistributedDataParallel:
        if not isinstance(model, DistributedDataParallel):
            raise InputError(f"found a {type(model).__name__}, expected a DistributedDataParallel model", where=CALLER)
        if model._comm_hooks:
            raise InputError(
                "found a communication hook, expected a model without one; wrap its module anew", where=CALLER
            )
        ranks, world = distributed.get_world_size(model.process_group), distributed.get_world_size()
        if ranks != world:
            raise InputError(f"found a group of {ranks} ranks, expected one of all {world}", where=CALLER)
        return model

    if not distributed.is_initialized():
        raise InputError("call torch.distributed.init_process_group first", where=CALLER)
    return AggregationHook(agreed(checked), sums())


def _read(path: Path) -> Plan[Any]:
    if not path.is_dir():
        return store.load(path, Plan)
    emit.read(path)
    return store.load(path / PLAN_NAME, Plan)
