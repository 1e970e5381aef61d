"""A communication hook for DistributedDataParallel: gradients are averaged by the planned allreduce.

treadle.comm.init("artefacts")
model.register_comm_hook(None, treadle.comm.ddp_hook)
"""

# Annotations stay what they are, not text: DistributedDataParallel looks at them.
from typing import Any

import torch
from torch import Tensor, distributed
from torch._C._distributed_c10d import GradBucket

from treadle.comm import calls, collectives


def ddp_hook(group: Any, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """Average one bucket of gradients over the ranks; the backward pass goes on meanwhile.

    `group` is the state given to register_comm_hook: None for the group of `init`, or the process group of the model.
    Buckets that no plan serves are averaged by torch.distributed, which is logged once.
    """
    group, tensor = collectives.group_of(group), bucket.buffer()
    tensor.div_(distributed.get_world_size(group))
    averaged: torch.futures.Future[Tensor] = started(tensor, group).get_future().then(lambda done: done.value()[0])
    return averaged


def started(tensor: Tensor, group: Any) -> Any:
    """The work that sums `tensor` over the ranks of `group` in the background."""
    call = calls.all_reduce(tensor, "sum")
    if (found := collectives.agreed(call, group)) is not None:
        planned, algorithm = found
        return planned.start(call, algorithm)

    def framework() -> Any:
        return distributed.all_reduce(tensor, group=group, async_op=True)

    known = collectives.planned_of(group, tensor)
    return framework() if known is None else known.framework(framework, tensor)
