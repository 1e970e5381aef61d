"""The planned collectives of one process group: which algorithm a call takes, and how it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from treadle.comm import gpu, symmetric
from treadle.comm.calls import COLLECTIVES, CollectiveCall
from treadle.comm.framework import WORDS, op_name, word
from treadle.comm.gpu import GpuExecutor
from treadle.comm.lane import CallLane
from treadle.comm.library import Choice, Library, LoadedAlgorithm, call_bytes
from treadle.comm.tally import Tally
from treadle.comm.work import OwnWork, StreamWork, ThreadWork, finished
from treadle.planner.errors import MissingBackendError
from treadle.runtime.collective.messages import Executor, cut_of, executor
from treadle.runtime.collective.wire.groups import close_wire, stands, stop_wire, wire_of

T = TypeVar("T")

DTYPES = frozenset({torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64})
ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})
INPLACE = frozenset({"allreduce", "broadcast"})


@dataclass
class PlannedGroup:
    """The algorithms for the ranks of one process group. On the CPU all calls run one after the other, in the order of
    the calls, on GPUs on a stream of their own (gpu.py)."""

    rank: int
    planned: Library
    """As planned, for GPUs."""
    alone: Library
    """With one instance, for the CPU."""
    connect: Callable[[str], Any]
    """Makes a process group of a backend for the same ranks in the same order; all of them call it together."""
    disconnect: Callable[[Any], Any]
    """Ends that group."""
    group: Any = None
    """One of gloo, for messages of our own; None before the first call."""
    timeout: float = 0
    """Seconds after which a rank is too late for a kernel on GPUs; 0 without a limit."""
    tally: Tally = field(default_factory=Tally)
    executors: dict[str, Executor] = field(default_factory=dict)
    obstacle: str | None = None
    """Why programs cannot run on the CPUs of the group, once that is known."""

    def __post_init__(self) -> None:
        self.lane = CallLane(lambda: stop_wire(self.group))
        self.gpu = GpuExecutor(self.rank, self.connect, self.disconnect, self.group, self.timeout)

    def joined(self) -> Any:
        """The gloo group; the first call is one of all ranks."""
        if self.group is None:
            self.group = self.gpu.group = self.connect("gloo")
        return self.group

    def stands(self) -> bool:
        """False once torch.distributed has ended the gloo group."""
        return self.group is None or stands(self.group)

    def choose(self, call: CollectiveCall) -> tuple[LoadedAlgorithm | None, Choice]:
        """The algorithm for a call, or None; and why."""
        collective, on_gpu = call.collective, gpu.on_gpu(call.tensor)
        reason = self.unfit(collective, call)
        if reason is not None:
            return None, Choice(collective, call.input_bytes, None, reason)
        library, root = self.planned if on_gpu else self.alone, call.root if collective in ROOTED else None
        algorithm, choice = library.choose(collective, call.input_bytes, inplace=collective in INPLACE, root=root)
        if algorithm is not None and on_gpu:
            most = call_bytes(collective, call.input_bytes, library.ranks)
            algorithm = symmetric.carried(algorithm, most, self.timeout)
            obstacle, how = self.gpu.known(algorithm)
            if obstacle is not None:
                return None, Choice(collective, call.input_bytes, None, obstacle)
            choice = replace(choice, reason=f"{choice.reason}, {how}")
        return algorithm, choice

    def unfit(self, collective: str, call: CollectiveCall) -> str | None:
        """Why no algorithm may run on this call, whatever its size."""
        if word(call.op) is None:
            return f"op {op_name(call.op)} is not one of {', '.join(WORDS)}"
        for one in (call.tensor, *call.inputs, *call.outputs):
            if one.device != call.tensor.device:
                return f"the tensors are on {call.tensor.device} and {one.device}"
            if one.device.type != "cpu" and not gpu.on_gpu(one):
                return f"tensors on {one.device.type} are not executed by this runtime"
            if one.layout != torch.strided:
                return f"{str(one.layout).removeprefix('torch.')} tensors are not executed as planned"
            if one.dtype not in DTYPES:
                return f"{str(one.dtype).removeprefix('torch.')} is not a dtype that is executed"
        return gpu.unfit(collective, call.tensor.dtype) if gpu.on_gpu(call.tensor) else None

    def agreed(self, call: CollectiveCall) -> LoadedAlgorithm | None:
        """The algorithm that all ranks run for a call, None (and a logged line) where the framework must."""
        algorithm, choice = self.choose(call)
        if algorithm is None:
            self.tally.fell_back(call.name, choice.reason)
            return None
        return self.ready(algorithm, call)

    def ready(self, algorithm: LoadedAlgorithm, call: CollectiveCall) -> LoadedAlgorithm | None:
        """`algorithm` once it can run on all ranks, None (and a logged line) where something is missing on one."""

        def obstacle() -> str | None:
            self.joined()
            return self.gpu.prepare(algorithm, call.tensor) if gpu.on_gpu(call.tensor) else self._unready()

        if (reason := self.lane.run(obstacle)) is not None:
            self.tally.fell_back(call.name, reason)
            return None
        self.tally.planned[call.name] += 1
        return algorithm

    def run(self, call: CollectiveCall, algorithm: LoadedAlgorithm) -> OwnWork:
        """Do a call; on GPUs the caller's current stream waits for it, this thread does not."""
        if gpu.on_gpu(call.tensor):
            work = self.start(call, algorithm)
            work.wait()
            return work
        executed = self.executor(algorithm)
        self.lane.run(lambda: call.body(executed))
        return finished(call.outputs)

    def start(self, call: CollectiveCall, algorithm: LoadedAlgorithm) -> OwnWork:
        """Do a call in the background, after those before it."""
        if gpu.on_gpu(call.tensor):
            return StreamWork(call.outputs, self.gpu.queued(algorithm, call))
        executed = self.executor(algorithm)
        return ThreadWork(call.outputs, self.lane.later(lambda: call.body(executed)), self.lane.wait)

    def framework(self, begin: Callable[[], T], tensor: Tensor | None = None) -> T:
        """The result of `begin`, which starts a collective of the framework, on `tensor` if any. On the CPU it shares
        nothing with ours; on a GPU they would compete for the same multiprocessors."""
        lane = self.gpu.lane if tensor is None or gpu.on_gpu(tensor) else None
        return begin() if lane is None else lane.framework(begin)

    def executor(self, algorithm: LoadedAlgorithm) -> Executor:
        found = self.executors.get(algorithm.name)
        if found is None:
            cut = cut_of(algorithm.decisions)
            found = self.executors[algorithm.name] = executor(algorithm.program, self.rank, self.group, cut=cut)
        return found

    def close(self) -> None:
        """Wait for what is pending and give everything back. All ranks must call it where kernels ran on GPUs."""
        self.lane.close()
        if self.group is not None and stands(self.group):
            try:
                self.gpu.close()
            finally:
                close_wire(self.group)
                self.disconnect(self.group)

    def _unready(self) -> str | None:
        if self.obstacle is None:
            try:
                wire_of(self.joined())
            except MissingBackendError as error:
                self.obstacle = str(error)
        return self.obstacle


def described(call: str, tensor: Tensor, op: Any, root: int, ranks: int) -> CollectiveCall:
    """A call that only `choose` looks at, with `tensor` as its input."""
    scattered = ranks if COLLECTIVES[call] == "scatter" else 1
    return CollectiveCall(call, tensor, lambda run: None, (), op, root, scattered)
