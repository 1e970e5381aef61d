"""`treadle.sparse.attach`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from treadle.comm import collectives as planned
from treadle.planner.documents.plan import Plan
from treadle.planner.errors import InputError
from treadle.planner.passes.sparse.decisions import SparseDecisions
from treadle.runtime.agreement import agreed
from treadle.runtime.sparse.attached import CALLER, attach_ddp, decisions_of
from treadle.runtime.sparse.ddp import SparseHook


def attach(model: nn.Module, plan: Plan[Any] | Path | str, *, collectives: Path | str | None = None) -> SparseHook:
    """Exchange the gradients of `model`, one of DistributedDataParallel, under a plan for sparse ones from now on.

    `plan` is a plan or its file; the plan's machines times devices are the ranks, numbered node by node. Names of its
    gradients are those of the parameters inside `model`. Gradients that it does not name are averaged by the planned
    allreduce that treadle.comm has for these ranks, if any, and as before otherwise; `collectives` is a folder of
    them for `treadle.comm.init`. Those of the plan are exchanged after the last bucket, in the order of the plan.
    All ranks call it together, after torch.distributed.init_process_group and before the first forward pass. The
    gradients are the same on all ranks, bit by bit. Nothing is kept from one step to the next that changes a number,
    so checkpoints are those of the model and its optimizer.

    Raises InputError, on all ranks alike, for another kind of plan or model, for a group that does not hold all ranks,
    for another number of ranks or other parameters than the plan's (the first difference by name), gradients other than
    float32, and for a model that has a communication hook.
    """
    if not distributed.is_initialized():
        raise InputError("call torch.distributed.init_process_group first", where=CALLER)

    def checked() -> tuple[DistributedDataParallel, SparseDecisions]:
        if not isinstance(model, DistributedDataParallel):
            raise InputError(f"found a {type(model).__name__}, expected a DistributedDataParallel model", where=CALLER)
        return model, decisions_of(plan)

    wrapped, decisions = agreed(checked)  # the file may be missing on one host
    if collectives is not None:
        planned.init(collectives)
    return attach_ddp(wrapped, decisions)
