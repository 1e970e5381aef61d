"""The backend `treadle` of torch.distributed: planned collectives for whatever calls a process group.

`init_process_group("treadle")` makes a group around the framework's own backends, gloo on the CPU and NCCL on GPUs.
What a plan serves runs as planned, everything else on those. Importing `treadle.comm` registers it.
"""

# torch.distributed and its C++ call these methods in one of the overloaded forms of the base class.
# mypy: disable-error-code="override, assignment"

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, distributed
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    ReduceScatterOptions,
)
from torch.distributed import ProcessGroup, ReduceOp, Work

from treadle.comm import calls, plans, splits
from treadle.comm.calls import CollectiveCall
from treadle.comm.framework_groups import framework_backend
from treadle.comm.library import LoadedAlgorithm
from treadle.comm.planned import PlannedGroup
from treadle.comm.plans import GroupOptions
from treadle.comm.work import SeveralWorks, then

NAME = "treadle"


class TreadleGroup(ProcessGroup):
    """A process group with plans. What it does not override goes to the backends that are registered with it."""

    def __init__(self, common: Any, options: GroupOptions, planned: PlannedGroup | None) -> None:
        rank, size = common.group_rank, common.group_size
        super().__init__(rank, size)  # type: ignore[call-arg]  # the only form that overriding works with
        self.options, self.planned = options, planned
        # The base class would call the overriding methods of this one again.
        self.wrapped = ProcessGroup(common.store, rank, size)
        for name in ("gloo", "nccl") if _has_nccl() else ("gloo",):
            found = framework_backend(name, common.store, rank, size, common.timeout)
            for group in (self, self.wrapped):
                found.register(group)

    def getBackendName(self) -> str:
        return NAME

    @cached_property
    def devices(self) -> frozenset[str]:
        """Types of the devices that are ours: of cpu:gloo,cuda:treadle only GPUs."""
        pairs = [pair.split(":") for pair in distributed.get_backend_config(self).split(",")]
        return frozenset(device for device, backend in pairs if backend == NAME)

    def planned_on(self, device: torch.device) -> PlannedGroup | None:
        """The plans for tensors on a device, if any."""
        return self.planned if self.planned is not None and device.type in self.devices else None

    def allreduce(self, tensors: Any, opts: Any = None) -> Work:
        opts = opts or AllreduceOptions()
        call = calls.all_reduce(tensors[0], opts.reduceOp)
        return self._reduced(call, opts, lambda given: self.wrapped.allreduce(tensors, given))

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Work:
        if self.planned is None:
            return self.wrapped.allreduce_coalesced(tensors, opts)
        each = AllreduceOptions()
        if opts is not None:
            each.reduceOp = opts.reduceOp
        return SeveralWorks(tensors, [self.allreduce([tensor], each) for tensor in tensors])

    def broadcast(self, tensors: Any, opts: Any) -> Work:
        call = calls.broadcast(tensors[0], opts.rootRank)
        return self._done(call, opts, lambda: self.wrapped.broadcast(tensors, opts))

    def reduce(self, tensors: Any, opts: Any) -> Work:
        call = calls.reduce(tensors[0], opts.rootRank, opts.reduceOp, self.rank())
        return self._reduced(call, opts, lambda given: self.wrapped.reduce(tensors, given))

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        opts = opts or AllgatherOptions()
        call = calls.all_gather_list(outputs[0], inputs[0])
        return self._done(call, opts, lambda: self.wrapped.allgather(outputs, inputs, opts), rows=outputs[0])

    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Work:
        opts = opts or AllgatherOptions()
        return self._done(
            calls.all_gather(output, tensor), opts, lambda: self.wrapped._allgather_base(output, tensor, opts)
        )

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        opts = opts or AllgatherOptions()
        if self.planned is None:
            return self.wrapped.allgather_into_tensor_coalesced(outputs, inputs, opts)
        pairs = zip(outputs, inputs, strict=True)
        return SeveralWorks(outputs, [self.all_gather_single(output, tensor, opts) for output, tensor in pairs])

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        opts = opts or ReduceScatterOptions()
        call = calls.reduce_scatter_list(outputs[0], inputs[0], opts.reduceOp)
        return self._reduced(
            call, opts, lambda given: self.wrapped.reduce_scatter(outputs, inputs, given), rows=inputs[0]
        )

    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Work:
        opts = opts or ReduceScatterOptions()
        call = calls.reduce_scatter(output, tensor, opts.reduceOp)
        return self._reduced(call, opts, lambda given: self.wrapped._reduce_scatter_base(output, tensor, given))

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        opts = opts or ReduceScatterOptions()
        if self.planned is None:
            return self.wrapped.reduce_scatter_tensor_coalesced(outputs, inputs, opts)
        pairs = zip(outputs, inputs, strict=True)
        return SeveralWorks(outputs, [self.reduce_scatter_single(output, tensor, opts) for output, tensor in pairs])

    def gather(self, outputs: Any, inputs: Any, opts: Any) -> Work:
        call = calls.gather(inputs[0], outputs[0] if outputs else None, opts.rootRank)
        return self._done(call, opts, lambda: self.wrapped.gather(outputs, inputs, opts))

    def scatter(self, outputs: Any, inputs: Any, opts: Any) -> Work:
        call = calls.scatter(outputs[0], inputs[0] if inputs else None, opts.rootRank, self.size())
        return self._done(call, opts, lambda: self.wrapped.scatter(outputs, inputs, opts))

    def all_to_all_single(
        self, output: Tensor, tensor: Tensor, output_sizes: Any, input_sizes: Any, opts: Any = None
    ) -> Work:
        opts = opts or AllToAllOptions()
        call = calls.all_to_all(output, tensor)

        def framework() -> Work:
            return self.wrapped.alltoall_base(output, tensor, output_sizes or [], input_sizes or [], opts)

        if not output_sizes and not input_sizes:
            return self._done(call, opts, framework)
        sizes = (
            splits.elements(output_sizes, output, self.size()),
            splits.elements(input_sizes, tensor, self.size()),
        )
        return self._split(call, sizes, opts, framework)

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        opts = opts or AllToAllOptions()
        sizes = ([row.numel() for row in outputs], [row.numel() for row in inputs])
        call = calls.all_to_all_list(outputs, inputs)
        return self._split(call, sizes, opts, lambda: self.wrapped.alltoall(outputs, inputs, opts))

    def barrier(self, opts: Any = None) -> Work:
        """Also waits for the planned calls before it, as those of gloo and NCCL do for theirs."""
        opts = opts or BarrierOptions()
        if self.planned is None:
            return self.wrapped.barrier(opts)
        self.planned.lane.run(lambda: None)
        return self.planned.framework(lambda: self.wrapped.barrier(opts))

    def shutdown(self) -> None:
        self.close()
        self.wrapped.shutdown()

    def abort(self) -> None:
        if self.planned is not None:
            self.planned.lane.stop()
        self.close()
        self.wrapped.abort()

    def close(self) -> None:
        """End what the plans use; calls then run on the framework's backends."""
        if self.planned is not None:
            self.planned.close()
        self.planned = None

    # Names of the same methods before PyTorch 2.13.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    def _done(
        self, call: CollectiveCall, opts: Any, framework: Callable[[], Work], rows: Sequence[Tensor] = ()
    ) -> Work:
        """A call as planned or by `framework`; `rows` are tensors of any sizes, the same on all ranks."""
        planned = self.planned_on(call.tensor.device)
        if planned is None:
            return framework()
        if len({row.numel() for row in rows}) > 1:
            planned.tally.fell_back(call.name, "the tensors of the ranks differ in size")
        elif (algorithm := planned.agreed(call)) is not None:
            return _work(planned, call, algorithm, opts)
        return planned.framework(framework, call.tensor)

    def _reduced(
        self, call: CollectiveCall, opts: Any, framework: Callable[[Any], Work], rows: Sequence[Tensor] = ()
    ) -> Work:
        """A reduction; `framework` gets the options. Gloo has averages only since PyTorch 2.13, sums are divided."""
        dtype = call.tensor.dtype
        averages = opts.reduceOp == ReduceOp.AVG and call.tensor.device.type == "cpu"
        if not averages or dtype == torch.bool or dtype.is_complex:
            return self._done(call, opts, lambda: framework(opts), rows)
        summed = type(opts)()
        for name in ("asyncOp", "rootRank", "rootTensor", "timeout"):
            if hasattr(opts, name):
                setattr(summed, name, getattr(opts, name))
        summed.reduceOp = ReduceOp(ReduceOp.SUM)
        rounding = None if dtype.is_floating_point else "trunc"

        def divide() -> None:
            for output in call.outputs:
                output.detach().div_(self.size(), rounding_mode=rounding)

        return self._done(call, opts, lambda: then(framework(summed), divide, call.outputs), rows)

    def _split(
        self, call: CollectiveCall, sizes: tuple[list[int], list[int]], opts: Any, framework: Callable[[], Work]
    ) -> Work:
        """A call with elements to receive from and to send to each rank, which other ranks do not know."""
        planned = self.planned_on(call.tensor.device)
        if planned is None:
            return framework()
        if (found := splits.agreed(planned, call, *sizes)) is not None:
            return _work(planned, *found, opts)
        return planned.framework(framework, call.tensor)


def _work(planned: PlannedGroup, call: CollectiveCall, algorithm: LoadedAlgorithm, opts: Any) -> Work:
    """Without a thread where the caller waits at once."""
    return (planned.start if getattr(opts, "asyncOp", True) else planned.run)(call, algorithm)


def _has_nccl() -> bool:
    return torch.cuda.is_available() and distributed.is_nccl_available()


def create(common: Any, given: Any) -> TreadleGroup:
    """A group for torch.distributed, which gives `common`: store, ranks, timeout; `given` are pg_options.

    Raises InputError on all ranks alike when one cannot load its plans or loads others.
    """
    world = distributed.group.WORLD
    options = plans.options_of(given, world.options if isinstance(world, TreadleGroup) else None)
    # Before anything connects: a rank that is refused would leave the others waiting.
    planned = plans.planned_group(options, common, first=world is None)
    return TreadleGroup(common, options, planned)


if NAME.upper() not in distributed.Backend._plugins:
    distributed.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu", "cuda"])
