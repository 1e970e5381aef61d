"""A plan for sparse gradients as the communication hook of DistributedDataParallel.

PyTorch calls the hook with buckets of dense gradients, and with a bucket for each sparse one. The parts of a bucket
that the plan does not name are averaged at once, while the backward pass goes on: by the planned allreduce that
treadle.comm has for the ranks of the model, else as DistributedDataParallel does it. The gradients of the plan are
exchanged after the last bucket, together and in the order of the plan, which is the same on all ranks. Dense messages
may still be in flight.

Buckets are not numbered in the first iteration of a static graph; the last one is that which completes the parameters.
"""

# Annotations stay what they are, not text: DistributedDataParallel looks at them.
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed, nn
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from treadle.comm import collectives
from treadle.comm.hook import started
from treadle.runtime.sparse.exchange import SparseExchange
from treadle.runtime.sparse.tally import Growth


@dataclass(frozen=True)
class SparseStatistics:
    """What this rank did: bytes and densities are those of the last iteration."""

    iterations: int
    sent_bytes: int
    """To other ranks, for the gradients of the plan."""
    densities: dict[str, float]
    """The share of units of this rank's gradients that are not zero, where the scheme looks."""
    growths: tuple[Growth, ...]
    """Every time that hash memory was too small, and grew."""

    @property
    def retries(self) -> int:
        """How often units were placed again in larger hash memory."""
        return sum(growth.retries for growth in self.growths)


class SparseHook:
    """The hook of a model until `close`; `parameters` are those of the plan, by name in its order."""

    def __init__(
        self, model: DistributedDataParallel, parameters: Mapping[str, nn.Parameter], exchange: SparseExchange
    ) -> None:
        self.model, self.exchange, self.world = model, exchange, distributed.get_world_size(model.process_group)
        self.names: dict[Tensor, str] = {parameter: name for name, parameter in parameters.items()}
        self.order = tuple(parameters)
        self.expected = len(reduced_parameters(model))
        """Parameters in all buckets of an iteration."""
        self.closed, self.iterations = False, 0
        self._begin()
        model.register_comm_hook(None, self._bucket)

    def statistics(self) -> SparseStatistics:
        """What this rank did so far."""
        last = self.exchange.last.values()
        return SparseStatistics(
            self.iterations,
            sum(tally.sent() for tally in last),
            {tally.gradient: tally.density for tally in last if tally.density is not None},
            tuple(self.exchange.growths),
        )

    def close(self) -> None:
        """Exchange gradients as torch.distributed does from now on. All ranks call it after the same iteration.

        The model keeps the hook, which then takes plain means: for another plan, attach to a new
        DistributedDataParallel of its module.
        """
        if not self.closed:
            self.closed = True
            self.exchange.close()

    def _begin(self) -> None:
        self.missing = self.expected
        self.buckets: list[_Bucket] = []

    def _bucket(self, state: object, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        buffer, parameters = bucket.buffer(), bucket.parameters()
        views = [buffer] if buffer.is_sparse else bucket.gradients()
        planned = {} if self.closed else {
            self.names[parameter]: view
            for parameter, view in zip(parameters, views, strict=True) if parameter in self.names
        }  # fmt: skip
        future = torch.futures.Future[Tensor](devices=[buffer.device] if buffer.is_cuda else [])
        works = [self._averaged(part) for part in others(buffer, list(planned.values()))]
        self.buckets.append(_Bucket(future, buffer, works, planned))
        self.missing -= len(parameters)
        if not self.missing:
            self._finish()
        return future

    def _averaged(self, values: Tensor) -> Any:
        """The work that averages `values` over the ranks in place."""
        values.div_(self.world)
        group = self.model.process_group
        if collectives.planned_of(group, values) is None or values.is_sparse:
            return distributed.all_reduce(values, group=group, async_op=True)
        return started(values, group)

    def _finish(self) -> None:
        buckets = self.buckets
        views = {name: view for bucket in buckets for name, view in bucket.planned.items()}
        sums = self.exchange.exchange_together(
            {name: views[name] for name in self.order if name in views}, in_place=True
        )
        means = {name: each.div_(self.world) for name, each in sums.items()}
        with self.exchange.watch.named():
            for bucket in buckets:
                for work in bucket.works:
                    work.wait()
        for bucket in buckets:
            bucket.future.set_result(bucket.result(means))
        self.iterations += not self.closed
        self._begin()


class _Bucket(NamedTuple):
    """A bucket in use: its result, its values, what averages parts of it, and the gradients of the plan in it."""

    future: torch.futures.Future[Tensor]
    buffer: Tensor
    works: list[Any]
    planned: dict[str, Tensor]

    def result(self, means: Mapping[str, Tensor]) -> Tensor:
        """The means of the bucket, those of the plan by name."""
        for name, view in self.planned.items():
            if view.is_sparse:
                return means[name]
            view.copy_(means[name])
        return self.buffer


def others(buffer: Tensor, planned: Sequence[Tensor]) -> Iterator[Tensor]:
    """The parts of a bucket between the views that are `planned`."""
    if buffer.is_sparse:
        if not planned:
            yield buffer
        return
    ends = [(int(view.storage_offset()), int(view.storage_offset()) + view.numel()) for view in planned]
    first = int(buffer.storage_offset())
    starts = [first, *sorted(end for _, end in ends)]
    for start, end in zip(starts, [*sorted(start for start, _ in ends), first + buffer.numel()], strict=True):
        if end > start:
            yield buffer[start - first : end - first]


def reduced_parameters(model: DistributedDataParallel) -> dict[str, nn.Parameter]:
    """The parameters whose gradients the model exchanges, by their names inside `model.module`."""
    return {
        name: parameter
        for name, parameter in model.module.named_parameters()
        if parameter.requires_grad and name not in model.parameters_to_ignore
    }
