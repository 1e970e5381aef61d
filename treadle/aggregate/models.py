"""`treadle.aggregate.attach` and `treadle.aggregate.Aggregator`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import distributed, nn

from treadle.aggregate.aggregator import PERIOD, PlannedSums
from treadle.aggregate.attached import CALLER, attach_ddp
from treadle.aggregate.autotune import Autotune
from treadle.aggregate.ddp import AggregationHook
from treadle.planner.documents.plan import Plan
from treadle.planner.errors import InputError
from treadle.planner.passes.aggregation.decisions import AggregationDecisions
from treadle.runtime.agreement import agreed
from treadle.runtime.sources import sound_decisions


class Aggregator(PlannedSums):
    """Sums over all ranks by the aggregation plan in a folder that `treadle generate` wrote, or in a plan file.

    A loop calls `all_reduce` for each tensor and `step` at the end of each iteration, the same on all ranks. With
    `autotune` the plan adapts to what its links carry: every `period` iterations the first rank compares what all
    ranks measured, and all of them take up a better plan before the same iteration. All ranks make it together, after
    torch.distributed.init_process_group; `close` ends it.

    Raises InputError, on all ranks alike, for a plan that one of them cannot read, that fails its check, that is for
    another number of ranks, or that differs between ranks.
    """

    def __init__(self, plan: Plan[Any] | Path | str, *, autotune: bool = True, period: int = PERIOD) -> None:
        if not distributed.is_initialized():
            raise InputError("call torch.distributed.init_process_group first", where="treadle.aggregate")
        decisions = agreed(lambda: sound_decisions(plan, CALLER, AggregationDecisions))
        super().__init__(decisions, Autotune(decisions) if autotune else None, period)


def attach(
    model: nn.Module, plan: Plan[Any] | Path | str, *, autotune: bool = True, period: int = PERIOD
) -> AggregationHook:
    """Average the gradients of `model`, one of DistributedDataParallel on CPUs, by an aggregation plan from now on.

    Arguments are those of `Aggregator`; an iteration ends with the last bucket of a backward pass. The means are the
    same on all ranks, bit by bit. All ranks call it together, before the first backward pass. Raises InputError as
    `Aggregator`, and for a model without hooks to give: of another kind, of a group without some ranks, or with a
    communication hook.
    """
    return attach_ddp(model, lambda: Aggregator(plan, autotune=autotune, period=period))
