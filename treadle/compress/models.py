"""`treadle.compress.attach`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import distributed, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from treadle.kernels.compression.codec import IDENTITY
from treadle.planner.documents.plan import Plan
from treadle.planner.errors import InputError
from treadle.runtime.compression.attached import CALLER, attach_ddp, decisions_of
from treadle.runtime.compression.coders import KernelCoders
from treadle.runtime.compression.fsdp import attach_fsdp
from treadle.runtime.compression.handle import CompressedExchange


def attach(
    model: nn.Module,
    plan: Plan[Any] | Path | str,
    *,
    group: Any = None,
    seed: int = 0,
    momentum: float = 0.0,
    clip_norm: float | None = None,
) -> CompressedExchange:
    """Exchange the gradients of `model` under a compression plan from now on: one of DistributedDataParallel, or
    of `fully_shard` where the plan is flat.

    `plan` is a plan or its file; the plan's machines times devices are the ranks, numbered node by node. Names of its
    gradients are those of the parameters inside `model`. `seed` is that of random compressors, the same on all ranks;
    `momentum` and `clip_norm` are those of `dgc`, whose optimizer then has neither.
    All ranks call it together, after torch.distributed.init_process_group and before the first forward pass. The
    gradients are the same on all ranks, bit by bit. A rank that ends in the middle ends the others with CheckFailed,
    which names it. Residuals have the scale of the gradients: with a GradScaler, that of the moment.

    Raises InputError for another kind of plan or model, for a group that does not hold all ranks, for another number of
    ranks or other parameters than the plan's (the first difference by name), for a compressor that treadle does not
    have, gradients other than float32, and for a model that has a communication hook.
    """
    decisions = decisions_of(plan)
    decisions.require_algorithms(CALLER, IDENTITY)
    if not distributed.is_initialized():
        raise InputError("call torch.distributed.init_process_group first", where=CALLER)
    coders = KernelCoders(
        distributed.get_rank(), distributed.get_world_size(), seed, momentum=momentum, clip_norm=clip_norm
    )
    if isinstance(model, DistributedDataParallel):
        return attach_ddp(model, decisions, coders, group)
    if isinstance(model, FSDPModule):
        return attach_fsdp(model, decisions, coders)
    expected = "a DistributedDataParallel model or one of fully_shard"
    raise InputError(f"found a {type(model).__name__}, expected {expected}", where=CALLER)
