"""Attach an aggregation plan to a model: the ranks, the hook."""

from __future__ import annotations

from collections.abc import Callable

from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from treadle.aggregate.aggregator import PlannedSums
from treadle.aggregate.ddp import AggregationHook
from treadle.planner.errors import InputError
from treadle.runtime.agreement import agreed

CALLER = "treadle.aggregate.attach"


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
