"""Gradients of DistributedDataParallel are sent to servers bucket by bucket while the backward pass goes on."""

# Annotations stay what they are, not text: DistributedDataParallel looks at them.
import torch
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel

from treadle.planner.errors import InputError
from treadle.runtime.compression.ddp import averaged
from treadle.server.optimizers import CALLER
from treadle.server.training import ServedTraining

queue_callback = Variable._execution_engine.queue_callback


def push_buckets(model: DistributedDataParallel, training: ServedTraining) -> None:
    """Have `model` send gradients to the servers of `training` in place of an allreduce. Once that is closed they are
    averaged as before."""
    keys: dict[Tensor, int] = {each.parameter: key for key, each in enumerate(training.parameters)}
    group = model.process_group  # the model holds the hook, and nothing could free both

    def push(state: object, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        buffer = bucket.buffer()
        if training.closed:
            return averaged(buffer, group)
        if not training.pushed:
            # The model writes gradients once more in a callback that it queues between these two.
            queue_callback(lambda: queue_callback(training.watch_gradients))
        views = [buffer] if buffer.is_sparse else bucket.gradients()
        for parameter, gradient in zip(bucket.parameters(), views, strict=True):
            key = keys[parameter]
            if key in training.pushed:
                found = "found a second backward pass before optimizer.step()"
                raise InputError(f"{found}; run all but the last one under model.no_sync()", where=CALLER)
            # What autograd saved of the weights is refused from now on: they change while the pass goes on.
            torch.autograd.graph.increment_version(parameter)
            training.push(key, None if parameter.grad is None else gradient)
        done = torch.futures.Future[Tensor](devices=[buffer.device] if buffer.is_cuda else [])
        done.set_result(buffer)
        return done

    model.register_comm_hook(None, push)
