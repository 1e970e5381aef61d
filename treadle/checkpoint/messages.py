"""The messages of a training, each counted when it begins and when it is done: buckets of DistributedDataParallel,
units of FSDP2."""

# Annotations stay what they are, not text: DistributedDataParallel looks at them.
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from treadle.checkpoint.pacing import MessageCount
from treadle.runtime.compression.ddp import averaged

log = logging.getLogger("treadle.checkpoint")


def count_messages(model: nn.Module, count: MessageCount) -> Callable[[], None]:
    """Count the messages of `model` from now on, until what is returned is called. Other models have none, nor has one
    whose communication hook is taken: then nothing says when links are idle, and pieces move at once."""
    if isinstance(model, DistributedDataParallel):
        if model._comm_hooks:
            log.warning("the model has a communication hook: checkpoints move when an iteration begins, not in spans")
            return _nothing
        return count_buckets(model, count)
    found = [each for each in model.modules() if isinstance(each, FSDPModule)]
    return count_units(found, count)


def count_buckets(model: DistributedDataParallel, count: MessageCount) -> Callable[[], None]:
    """Those of the buckets, averaged as without a hook."""
    group = model.process_group  # the model holds the hook, and nothing could free both
    counts = [count]

    def average(state: object, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        for each in counts:
            each.begin()

        def done(future: torch.futures.Future[Tensor]) -> Tensor:
            for each in counts:
                each.done()
            return future.value()

        return averaged(bucket.buffer(), group).then(done)

    model.register_comm_hook(None, average)
    return counts.clear


class CountedUnit:
    """A message of a unit, as `set_custom_all_gather` and `set_custom_reduce_scatter` take it."""

    def __init__(self, inner: Any, count: MessageCount) -> None:
        self.inner, self.count = inner, count

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        found: Tensor = self.inner.allocate(size, dtype=dtype, device=device)
        return found

    def __call__(self, *given: Any, **named: Any) -> distributed.Work | None:
        self.count.begin()
        work: distributed.Work | None = self.inner(*given, **named)
        if work is None:
            self.count.done()
        else:
            work.get_future().then(lambda _: self.count.done())
        return work


def count_units(units: Sequence[FSDPModule], count: MessageCount) -> Callable[[], None]:
    """Those of all units that have one group of parameters; a version of PyTorch without the settings has none."""
    undo: list[Callable[[], None]] = []
    for unit in units:
        groups = getattr(unit._get_fsdp_state(), "_fsdp_param_groups", [])
        if len(groups) != 1 or not hasattr(groups[0], "_all_gather_comm"):
            continue
        for inner, custom in (
            (groups[0]._all_gather_comm, unit.set_custom_all_gather),
            (groups[0]._reduce_scatter_comm, unit.set_custom_reduce_scatter),
        ):
            custom(CountedUnit(inner, count))  # type: ignore[arg-type]
            undo.append(_call(custom, inner))

    def stop() -> None:
        for each in undo:
            each()

    return stop


def _call(function: Callable[[Any], None], value: Any) -> Callable[[], None]:
    return lambda: function(value)


def _nothing() -> None:
    """There is nothing to undo."""
