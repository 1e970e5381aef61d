"""A plan as the communication hook of DistributedDataParallel.

PyTorch calls such a hook with a bucket of gradients, of 25 MiB, in the reverse order of parameters at first, and in
buckets that are rebuilt after the first iteration. A group of a plan may be one small gradient or reach over several
buckets, and its compression is to start when its last gradient is ready. So readiness comes from hooks of the nodes
that accumulate gradients, which run right after DistributedDataParallel has copied one into its bucket. The
communication hook only brings what no backward pass produced, such as unused parameters, and takes the means. Buckets
of any size then give the same overlap. The hook of the last bucket runs when every gradient is ready; it returns when
all groups have been exchanged.

Buckets stay where they are once they have been rebuilt. A group whose gradients lie in one of them, one after the
other, is exchanged there; others are copied into a buffer of their own.

With a static graph a gradient may come in several parts. The first iteration counts them, and its groups start with
the buckets.
"""

# Annotations stay what they are, not text: DistributedDataParallel looks at them.
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch._C._distributed_c10d import GradBucket
from torch.autograd.graph import get_gradient_edge
from torch.nn.parallel import DistributedDataParallel

from treadle.runtime.compression.coders import Coders
from treadle.runtime.compression.exchange import PlannedExchange
from treadle.runtime.compression.handle import CompressedExchange, ExchangeStatistics
from treadle.runtime.watch import RankWatch


class DdpExchange(CompressedExchange):
    """The hooks of a model, whose `parameters` are numbered as the gradients of `exchange`. `unordered` are the groups
    of which nothing is kept for the next iteration: the order of their gradients does not matter."""

    def __init__(
        self,
        model: DistributedDataParallel,
        parameters: Sequence[nn.Parameter],
        exchange: PlannedExchange,
        coders: Coders,
        watch: RankWatch,
        unordered: Container[int] = (),
    ) -> None:
        self.model, self.exchange, self.coders, self.watch = model, exchange, coders, watch
        self.unordered = unordered
        self.parameters = parameters
        self.axes = [bucket_axes(each) for each in parameters]
        self.numbers: dict[Tensor, int] = {parameter: number for number, parameter in enumerate(parameters)}
        self.expected = self.closed = False
        """`expected`: gradients of the backward pass are to be exchanged, as of the last forward pass."""
        self.parts = None if model.static_graph else Counter(dict.fromkeys(range(len(parameters)), 1))
        """In how many parts each gradient comes, once that is known."""
        self.came: Counter[int] = Counter()
        self.buckets: list[tuple[torch.futures.Future[Tensor], Tensor, dict[int, Tensor]]] = []
        self.joined: dict[int, Tensor] = {}
        """Groups that lie in one bucket, one gradient after the other: that part of it."""
        self.rebuilt: bool | None = None
        """Whether buckets had been rebuilt when these were found, None before."""
        exchange.joined = lambda group: self._in_place().get(group)
        self.hooks = [
            get_gradient_edge(each).node.register_hook(partial(self._gradient, number))
            for number, each in enumerate(parameters)
        ]
        self.forward_hook = model.register_forward_pre_hook(self._before_forward)
        model.register_comm_hook(None, self._bucket)

    def state_dict(self) -> dict[str, Any]:
        return self.coders.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.coders.load_state_dict(state)

    def statistics(self) -> ExchangeStatistics:
        sent = sum(sum(run.sent_bytes) for run in self.exchange.runs)
        return ExchangeStatistics(self.coders.iterations, sent, self.exchange.last, self.coders.norms())

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        for hook in (self.forward_hook, *self.hooks):
            hook.remove()
        self.exchange.close()
        self.watch.close()

    def _before_forward(self, model: nn.Module, inputs: object) -> None:
        if torch.is_grad_enabled() and self.model.require_backward_grad_sync:
            self.expected = True

    def _gradient(self, number: int, *_: object) -> None:
        if not self.expected:
            return
        self.came[number] += 1
        if self.parts is None or self.came[number] != self.parts[number] or number in self.exchange.arrived:
            return
        values = self.parameters[number].grad
        assert values is not None
        self.exchange.put(number, values.permute(self.axes[number]))

    def _in_place(self) -> Mapping[int, Tensor]:
        return self.joined if self.rebuilt == self.model._has_rebuilt_buckets else {}

    def _bucket(self, state: object, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        buffer = bucket.buffer()
        if self.closed:
            return averaged(buffer, self.model.process_group)
        views = {
            self.numbers[parameter]: view
            for parameter, view in zip(bucket.parameters(), bucket.gradients(), strict=True)
        }
        for number, view in views.items():
            if number not in self.exchange.arrived:
                self.exchange.put(number, view)
        future = torch.futures.Future[Tensor](devices=[buffer.device] if buffer.is_cuda else [])
        self.buckets.append((future, buffer, views))
        if bucket.is_last():
            self._finish()
        return future

    def _finish(self) -> None:
        self.exchange.finish()
        views: dict[int, Tensor] = {}
        for _, _, inside in self.buckets:
            views |= inside
        joined = self._in_place()
        for number, group in enumerate(self.exchange.groups):
            if number in joined:
                self.exchange.means_into(number, joined[number])
            else:
                self.exchange.mean_into_each(number, [views[each] for each in members(group)])
        for future, buffer, _ in self.buckets:
            future.set_result(buffer)
        if self.rebuilt != self.model._has_rebuilt_buckets:
            self._locate()
        self.parts = self.parts or Counter(self.came)
        self.came.clear()
        self.buckets.clear()
        self.expected = False
        self.coders.iterations += 1

    def _locate(self) -> None:
        """Find the groups that lie in one bucket. One that is a bucket needs no other hook than that of the bucket."""
        self.rebuilt, self.joined = self.model._has_rebuilt_buckets, {}
        for _, buffer, inside in self.buckets:
            found = adjoining(buffer, inside, self.exchange.groups, self.unordered)
            if self.rebuilt and any(part.numel() == buffer.numel() for part in found.values()):
                for number in inside:
                    self.hooks[number].remove()
            self.joined |= found


def averaged(buffer: Tensor, group: Any) -> torch.futures.Future[Tensor]:
    """The mean over ranks, as DistributedDataParallel takes it without a hook."""
    buffer.mul_(1.0 / distributed.get_world_size(group))  # which for three ranks has other bits than a division
    work = distributed.all_reduce(buffer, group=group, async_op=True)
    assert work is not None
    done: torch.futures.Future[Tensor] = work.get_future().then(lambda future: future.value()[0])
    return done


def bucket_axes(parameter: Tensor) -> list[int]:
    """The axes of a gradient in the order in which a bucket has its elements: that of the parameter's memory, such as
    channels last, if it has no gaps."""
    axes = sorted(range(parameter.ndim), key=parameter.stride, reverse=True)
    return axes if parameter.permute(axes).is_contiguous() else list(range(parameter.ndim))


def members(group: tuple[int, int]) -> range:
    """The numbers of its gradients."""
    return range(group[0], group[1] + 1)


def adjoining(
    buffer: Tensor, views: Mapping[int, Tensor], groups: Sequence[tuple[int, int]], unordered: Container[int]
) -> dict[int, Tensor]:
    """By group, the part of `buffer` in which the `views` of its gradients lie one after the other; in any order for
    those that are `unordered`."""
    found = {}
    for number, group in enumerate(groups):
        inside = [views[each] for each in members(group) if each in views]
        if number in unordered:
            inside.sort(key=Tensor.storage_offset)
        starts = [view.storage_offset() - buffer.storage_offset() for view in inside]
        ends = [start + view.numel() for start, view in zip(starts, inside, strict=True)]
        if len(inside) == len(members(group)) and starts[1:] == ends[:-1]:
            found[number] = buffer[starts[0] : ends[-1]]
    return found
