"""An aggregation plan as the communication hook of DistributedDataParallel.

Buckets are averaged in the background, one after the other as PyTorch fills them. An iteration ends with the bucket
that completes the parameters: buckets are not numbered in the first iteration of a static graph.
"""

# Annotations stay what they are, not text: DistributedDataParallel looks at them.
import torch
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from treadle.aggregate.aggregator import AggregationStatistics, PlannedSums
from treadle.comm.lane import CallLane
from treadle.comm.work import ThreadWork
from treadle.planner.errors import InputError
from treadle.runtime.compression.ddp import averaged
from treadle.runtime.sparse.ddp import reduced_parameters


class AggregationHook:
    """The hook of a model until `close`."""

    def __init__(self, model: DistributedDataParallel, sums: PlannedSums) -> None:
        self.group, self.sums = model.process_group, sums  # the model holds the hook, and nothing could free both
        self.lane = CallLane(sums.stop)
        self.expected = self.missing = len(reduced_parameters(model))
        self.closed = False
        model.register_comm_hook(None, self._bucket)

    def statistics(self) -> AggregationStatistics:
        """What this rank did so far."""
        return self.sums.statistics()

    def close(self) -> None:
        """Average gradients as torch.distributed does from now on. All ranks call it after the same iteration.

        The model keeps the hook: for another plan, attach to a new DistributedDataParallel of its module.
        """
        if not self.closed:
            self.closed = True
            self.lane.close()
            self.sums.close()

    def _bucket(self, state: object, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        buffer = bucket.buffer()
        if self.closed:
            return averaged(buffer, self.group)
        if buffer.is_sparse:
            raise InputError("found a sparse gradient, expected dense ones; treadle.sparse exchanges sparse ones")
        self.missing -= len(bucket.parameters())
        last = not self.missing
        if last:
            self.missing = self.expected

        def work() -> None:
            self.sums.all_reduce(buffer, op="avg")
            if last:
                self.sums.step()

        future = ThreadWork([buffer], self.lane.later(work), self.lane.wait).get_future()
        done: torch.futures.Future[Tensor] = future.then(lambda ended: ended.value()[0])
        return done
