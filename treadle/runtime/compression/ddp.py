"""A plan as the communication hook of DistributedDataParallel.

PyTorch calls such a hook with a bucket of gradients, of 25 MiB, in the reverse order of parameters at first, and in
buckets that are rebuilt after the first iteration. A group of a plan may be one small gradient or reach over several
buckets, and its compression is to start when its last gradient is ready. So readiness comes from hooks of the
parameters, which run right after a gradient was added to `.grad` and before DistributedDataParallel copies it into its
bucket. The communication hook only brings what no backward pass produced, such as unused parameters, and takes the
means. Buckets of any size then give the same overlap. The hook of the last bucket runs when every gradient is ready; it
returns when all groups have been exchanged.

With a static graph a gradient may come in several parts. The first iteration counts them, and its groups start with
the buckets.
"""

# Annotations stay what they are, not text: DistributedDataParallel looks at them.
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from treadle.runtime.compression.coders import Coders
from treadle.runtime.compression.exchange import PlannedExchange
from treadle.runtime.compression.handle import CompressedExchange, ExchangeStatistics
from treadle.runtime.compression.watch import RankWatch


class DdpExchange(CompressedExchange):
    """The hooks of a model, whose `parameters` are numbered as the gradients of `exchange`."""

    def __init__(
        self,
        model: DistributedDataParallel,
        parameters: Sequence[nn.Parameter],
        exchange: PlannedExchange,
        coders: Coders,
        watch: RankWatch,
    ) -> None:
        self.model, self.exchange, self.coders, self.watch = model, exchange, coders, watch
        self.numbers: dict[Tensor, int] = {parameter: number for number, parameter in enumerate(parameters)}
        self.expected = self.closed = False
        """`expected`: gradients of the backward pass are to be exchanged, as of the last forward pass."""
        self.parts = None if model.static_graph else Counter(dict.fromkeys(range(len(parameters)), 1))
        """In how many parts each gradient comes, once that is known."""
        self.came: Counter[int] = Counter()
        self.buckets: list[tuple[torch.futures.Future[Tensor], Tensor, dict[int, Tensor]]] = []
        self.hooks = [
            model.register_forward_pre_hook(self._before_forward),
            *(each.register_post_accumulate_grad_hook(self._gradient) for each in parameters),
        ]
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
        for hook in self.hooks:
            hook.remove()
        self.exchange.close()
        self.watch.close()

    def _before_forward(self, model: nn.Module, inputs: object) -> None:
        if torch.is_grad_enabled() and self.model.require_backward_grad_sync:
            self.expected = True

    def _gradient(self, parameter: Tensor) -> None:
        if not self.expected:
            return
        number = self.numbers[parameter]
        self.came[number] += 1
        if self.parts is not None and self.came[number] == self.parts[number]:
            assert parameter.grad is not None
            self.exchange.put(number, parameter.grad)

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
        for future, buffer, views in self.buckets:
            for number, view in views.items():
                self.exchange.mean_into(number, view)
            future.set_result(buffer)
        self.parts = self.parts or Counter(self.came)
        self.came.clear()
        self.buckets.clear()
        self.expected = False
        self.coders.iterations += 1


def averaged(buffer: Tensor, group: Any) -> torch.futures.Future[Tensor]:
    """The mean over ranks, as DistributedDataParallel takes it without a hook."""
    buffer.div_(distributed.get_world_size(group))
    work = distributed.all_reduce(buffer, group=group, async_op=True)
    assert work is not None
    done: torch.futures.Future[Tensor] = work.get_future().then(lambda future: future.value()[0])
    return done
