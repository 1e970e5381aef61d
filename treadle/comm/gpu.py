"""Planned collectives on GPUs: one process per GPU, through the compiled kernels of treadle.runtime.collective.native.

No GPU is used before the first call with a CUDA tensor. At the first call of each program all ranks agree whether it
runs as kernels: if a single rank fell back to the framework, the others would block forever.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed

from treadle.comm.library import LoadedAlgorithm
from treadle.planner.errors import InputError, MissingBackendError
from treadle.runtime.collective import native
from treadle.runtime.native_build import compiler

REDUCING = frozenset({"allreduce", "reducescatter", "reduce"})
MOVING = frozenset({"allgather", "broadcast", "alltoall"})
DTYPES = frozenset(native.DTYPES)
NO_LIMIT = native.LaunchSettings(timeout=0)
"""A rank may be late for as long as it likes: a kernel that gave up would leave wrong numbers behind."""


def on_gpu(tensor: Tensor) -> bool:
    return tensor.device.type == "cuda"


def device_of(tensor: Tensor) -> torch.device:
    return tensor.device


def unfit(collective: str, dtype: torch.dtype) -> str | None:
    """Why no kernel runs this collective with this dtype, None when one does."""
    if collective not in REDUCING | MOVING:
        return f"{collective} is not executed on GPUs"
    if dtype not in DTYPES:
        return f"{str(dtype).removeprefix('torch.')} is not a dtype that is executed on GPUs"
    return None


class SerialStream:
    """The stream of one GPU on which all planned calls run, one after the other, in the order of the calls."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.stream = device, torch.cuda.Stream(device, priority=-1)

    def start(self, work: Callable[[], Any]) -> Any:
        """Queue `work` after what the caller's current stream holds by now. Does not wait for the GPU."""
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            return work()

    def run(self, work: Callable[[], Tensor], tensor: Tensor) -> Tensor:
        """Queue `work` on `tensor`, and make the caller's current stream wait for it before it uses the result."""
        result: Tensor = self.start(work)
        current = torch.cuda.current_stream(self.device)
        current.wait_stream(self.stream)
        # The allocator must not give away what a stream still uses that it was not allocated on.
        tensor.record_stream(self.stream)
        result.record_stream(current)
        return result

    def framework(self, work: Callable[[], Any]) -> Any:
        """Start a collective of the framework, and have later ones of ours wait for it: two that run at the same time
        can each take the room on one GPU that the other needs there, and then both wait forever."""

        def both() -> Any:
            handle = work()
            handle.wait()  # of the stream, not of this thread
            return handle

        return self.start(both)

    def future(self) -> torch.futures.Future[Tensor]:
        """A future whose value streams wait for; to be fulfilled inside `start`."""
        return torch.futures.Future(devices=[self.device])


@dataclass
class GpuExecutor:
    """The GPU of this rank, and for each program the member that runs it or the reason why none does. `group` is a
    process group of the CPU, for messages between the ranks."""

    rank: int
    group: Any
    device: torch.device | None = None
    general: str | None = None
    """Why no program at all runs on these GPUs."""
    lane: SerialStream | None = None
    members: dict[str, native.CompiledRank | str] = field(default_factory=dict)

    def known(self, name: str) -> tuple[str | None, str]:
        """Why the program does not run as kernels, as far as earlier calls have shown; else how it runs."""
        member = self.members.get(name)
        if self.general is not None or isinstance(member, str):
            return self.general or str(member), ""
        return None, "by kernels" if member else "by kernels if its first call finds all that they need"

    def prepare(self, algorithm: LoadedAlgorithm, tensor: Tensor) -> str | None:
        """Make what runs a program; returns why nothing can. The first call for a program is one of all ranks."""
        device = device_of(tensor)
        if self.device is None:
            self.device = device
            self.general = self._obstacle(device)
        if device != self.device:
            raise InputError(f"found a tensor on {device}, expected one on {self.device} like those of earlier calls: "
                             "treadle.comm uses one GPU per process")  # fmt: skip
        if self.general is None and algorithm.name not in self.members:
            try:
                self.members[algorithm.name] = self._made(algorithm, device)
            except InputError as error:
                self.members[algorithm.name] = str(error)
        return self.known(algorithm.name)[0]

    def run(self, algorithm: LoadedAlgorithm, tensor: Tensor, op: str = "sum") -> Tensor:
        """The result of a program whose member stands, ready for the caller's current stream."""
        member, lane = self._standing(algorithm)
        return lane.run(lambda: member(tensor, op), tensor)

    def queued_sum(self, algorithm: LoadedAlgorithm, tensor: Tensor) -> torch.futures.Future[Tensor]:
        """Sum `tensor` in place; only a wait for the future waits for the GPU."""
        member, lane = self._standing(algorithm)
        future = lane.future()

        def work() -> None:
            result = member(tensor)
            if result.data_ptr() != tensor.data_ptr():
                tensor.copy_(result.reshape(tensor.shape))
            future.set_result(tensor)

        lane.start(work)
        return future

    def _standing(self, algorithm: LoadedAlgorithm) -> tuple[native.CompiledRank, SerialStream]:
        member, lane = self.members[algorithm.name], self.lane
        assert isinstance(member, native.CompiledRank)
        assert lane is not None
        return member, lane

    def close(self) -> None:
        """Give back what lies on the GPU; all ranks must call it."""
        for member in self.members.values():
            if isinstance(member, native.CompiledRank):
                member.close()
        self.members.clear()

    def _made(self, algorithm: LoadedAlgorithm, device: torch.device) -> native.CompiledRank:
        first = self.rank == 0  # the others find in the cache what rank 0 compiled
        native.agreed(lambda: compiled(algorithm, device) if first else None, self.group)
        library = native.agreed(lambda: compiled(algorithm, device), self.group)
        member = native.CompiledRank(library, self.rank, device.index, self.group)
        self.lane = self.lane or SerialStream(device)
        return member

    def _obstacle(self, device: torch.device) -> str | None:
        """Why no program runs on the GPUs of these ranks, the same words on every rank."""
        try:
            compiler("cuda")
            problem = None
        except MissingBackendError as error:
            problem = str(error)
        facts: list[Any] = [None] * distributed.get_world_size(self.group)
        distributed.all_gather_object(facts, (problem, host(), identity(device)), group=self.group)
        for rank, (each, _, _) in enumerate(facts):
            if each is not None:
                return f"rank {rank}: {each}"
        hosts = len({each for _, each, _ in facts})
        if hosts > 1:
            return f"the ranks are on {hosts} hosts, and CUDA IPC does not leave a host"
        most, count = Counter(each for _, _, each in facts).most_common(1)[0]
        if count > 1:
            sharing = ", ".join(str(rank) for rank, (_, _, each) in enumerate(facts) if each == most)
            return f"ranks {sharing} share one GPU, and each needs one of its own"
        return None


def compiled(algorithm: LoadedAlgorithm, device: torch.device) -> native.CompiledProgram:
    """The kernel of a program for this GPU; the interpreter, which programs of one protocol share."""
    major, minor = torch.cuda.get_device_capability(device)
    return native.build(algorithm.program, "cuda", arch=f"sm_{major}{minor}", settings=NO_LIMIT)


def identity(device: torch.device) -> str:
    """The UUID of the GPU, the same in every process."""
    return str(torch.cuda.get_device_properties(device).uuid)


def host() -> str:
    """The same for all processes of a machine and for no others, also where machines share a name."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return boot.read_text() if boot.is_file() else socket.gethostname()
