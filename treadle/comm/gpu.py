"""Planned collectives on GPUs, one process per GPU: on one host through compiled kernels
(treadle.runtime.collective.native) or over symmetric memory (treadle.runtime.collective.symmetric), on several as
rounds of grouped messages (treadle.runtime.collective.grouped).

No GPU is used before the first call with a CUDA tensor. At the first call of each program all ranks agree whether and
how it runs: if a single rank fell back to the framework, the others would block forever.
"""

from __future__ import annotations

import logging
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

from treadle.comm import symmetric
from treadle.comm.calls import CollectiveCall
from treadle.comm.cards import CardClaim
from treadle.comm.library import LoadedAlgorithm, with_one_instance
from treadle.planner.errors import CheckFailed, InputError, MissingBackendError
from treadle.runtime import agreement
from treadle.runtime.collective import native
from treadle.runtime.collective.grouped import grouped_executor
from treadle.runtime.collective.messages import Executor, cut_of
from treadle.runtime.collective.symmetric import SymmetricBuffers, SymmetricRank
from treadle.runtime.collective.wire.groups import stands
from treadle.runtime.native_build import compiler

T = TypeVar("T")

REDUCING = frozenset({"allreduce", "reducescatter", "reduce"})
MOVING = frozenset({"allgather", "broadcast", "alltoall"})
DTYPES = frozenset(native.DTYPES)
MESSAGES = "nccl"
"""The backend of torch.distributed that carries messages between hosts."""
Member = native.CompiledRank | SymmetricRank | Executor

log = logging.getLogger("treadle.comm")


def on_gpu(tensor: Tensor) -> bool:
    return tensor.device.type == "cuda"


def device_type() -> str:
    """What a tensor on a GPU calls the type of its device."""
    return "cuda"


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

    def queue(self, work: Callable[[], Any], call: CollectiveCall) -> torch.futures.Future[list[Tensor]]:
        """Queue `work` for a call; whoever waits for the future has its current stream wait, not its thread."""
        future: torch.futures.Future[list[Tensor]] = torch.futures.Future(devices=[self.device])

        def both() -> None:
            work()
            future.set_result(list(call.outputs))

        self.start(both)
        for tensor in (call.tensor, *call.inputs, *call.outputs):
            # The allocator must not give away what a stream still uses that it was not allocated on.
            tensor.record_stream(self.stream)
        return future

    def framework(self, work: Callable[[], T]) -> T:
        """Start a collective of the framework, and have later ones of ours wait for it: two that run at the same time
        can each take the room on one GPU that the other needs there, and then both wait forever."""

        def both() -> Any:
            handle: Any = work()
            handle.wait()  # of the stream, not of this thread
            return handle

        started: T = self.start(both)
        return started


@dataclass
class GpuExecutor:
    """The GPU of this rank, and for each program the member that runs it or the reason why none does."""

    rank: int
    connect: Callable[[str], Any]
    """Makes a process group of a backend for the same ranks; all of them call it together."""
    disconnect: Callable[[Any], Any]
    """Ends that group."""
    group: Any = None
    """A process group of the CPU, for messages between the ranks; `prepare` needs it."""
    timeout: float = 0
    """Seconds after which a rank is too late; 0 without a limit. One that has ended is always noticed."""
    device: torch.device | None = None
    general: str | None = None
    """Why no program at all runs on these GPUs."""
    lane: SerialStream | None = None
    claim: CardClaim | None = None
    members: dict[str, Member | str] = field(default_factory=dict)
    messages: Any = None
    """A process group of the library that carries messages, where the ranks are on several hosts."""
    several: bool = False
    buffers: SymmetricBuffers | None = None

    def known(self, algorithm: LoadedAlgorithm) -> tuple[str | None, str]:
        """Why the program does not run as kernels, as far as earlier calls have shown; else how it runs."""
        member = self.members.get(symmetric.key_of(algorithm))
        if self.general is not None or isinstance(member, str):
            return self.general or str(member), ""
        if self.messages is not None:
            return None, "by grouped messages between the hosts"
        if isinstance(member, SymmetricRank):
            return None, f"{algorithm.symmetric} over symmetric memory"
        return None, "by kernels" if member else "by kernels if its first call finds all that they need"

    def prepare(self, algorithm: LoadedAlgorithm, tensor: Tensor) -> str | None:
        """Make what runs a program; returns why nothing can. The first call for a program is one of all ranks."""
        device = device_of(tensor)
        if self.device is None:
            self.device = device
            self.general = self._obstacle(device)
            if self.general is None and self.several:
                self.messages = self.connect(MESSAGES)
        if device != self.device:
            raise InputError(
                f"rank {self.rank}: found a tensor on {device}, expected one on {self.device} like those of earlier "
                "calls: treadle.comm uses one GPU per process"
            )
        key = symmetric.key_of(algorithm)
        if self.general is None and key not in self.members:
            try:
                self.members[key] = self._made(algorithm, device)
            except InputError as error:
                self.members[key] = str(error)
        return self.known(algorithm)[0]

    def queued(self, algorithm: LoadedAlgorithm, call: CollectiveCall) -> torch.futures.Future[list[Tensor]]:
        """Run a call by a program whose member stands; only a wait for the future waits for the GPU."""
        member, lane = self._standing(algorithm)

        def run(tensor: Tensor, *, op: str = "sum", out: Tensor | None = None, part: int | None = None) -> Tensor:
            return member(tensor, op=op)

        return lane.queue(lambda: call.body(run), call)

    def _standing(self, algorithm: LoadedAlgorithm) -> tuple[Callable[..., Tensor], SerialStream]:
        member, lane = self.members[symmetric.key_of(algorithm)], self.lane
        assert not isinstance(member, str)
        assert lane is not None
        return member, lane

    def close(self) -> None:
        """Give back what lies on the GPU; all ranks must call it. Raises CheckFailed when a call was given up and
        nothing has shown it yet."""
        problems: list[Exception] = []
        for member in self.members.values():
            try:
                if isinstance(member, native.CompiledRank | SymmetricRank):
                    member.close()
            except (CheckFailed, RuntimeError) as error:  # gloo raises a RuntimeError where a rank is gone
                problems.append(error)
        self.members.clear()
        self.buffers = None
        if self.messages is not None and stands(self.messages):
            self.disconnect(self.messages)
        self.messages = None
        if self.claim is not None:
            self.claim.close()
        for problem in problems:
            raise problem

    def _made(self, algorithm: LoadedAlgorithm, device: torch.device) -> Member:
        if algorithm.switched and (self.messages is not None or self.timeout):
            raise InputError("what a switch does runs on one host, and without a limit on waits")
        if self.messages is not None:
            alone, kind = with_one_instance(algorithm), device_type()
            made = agreement.agreed(
                lambda: grouped_executor(alone.program, self.rank, self.messages, kind, cut=cut_of(alone.decisions)),
                self.group,
            )
            self.lane = self.lane or SerialStream(device)
            return made
        if algorithm.symmetric is not None:
            try:
                return self._over_symmetric_memory(algorithm, device)
            except (InputError, MissingBackendError) as error:
                if algorithm.switched:
                    raise InputError(str(error)) from error
                log.warning("%s runs through slots, not over symmetric memory: %s", algorithm.name, error)
        first = self.rank == 0  # the others find in the cache what rank 0 compiled
        agreement.agreed(lambda: compiled(algorithm, device, self.timeout) if first else None, self.group)
        library = agreement.agreed(lambda: compiled(algorithm, device, self.timeout), self.group)
        member = native.CompiledRank(library, self.rank, device.index, self.group)
        claim = self.claim = self.claim or CardClaim(identity(device))
        try:
            agreement.agreed(lambda: claim.extend(member.share), self.group)
        except InputError:
            member.close()
            raise
        self.lane = self.lane or SerialStream(device)
        return member

    def _over_symmetric_memory(self, algorithm: LoadedAlgorithm, device: torch.device) -> SymmetricRank:
        if self.buffers is None:
            self.buffers = symmetric.buffers_on(device, arch_of(device), self.rank == 0, self.group)
        member = symmetric.member_of(algorithm, self.buffers)
        self.lane = self.lane or SerialStream(device)
        return member

    def _obstacle(self, device: torch.device) -> str | None:
        """Why no program runs on the GPUs of these ranks, the same words on every rank; finds out whether they are on
        `several` hosts."""
        try:
            compiler("cuda")
            problem = None
        except MissingBackendError as error:
            problem = str(error)
        library = distributed.is_backend_available(MESSAGES)
        facts: list[Any] = [None] * distributed.get_world_size(self.group)
        distributed.all_gather_object(facts, (problem, library, host(), identity(device)), group=self.group)
        self.several = len({each for _, _, each, _ in facts}) > 1
        for rank, (without, known, _, _) in enumerate(facts):
            if self.several and not known:
                return f"rank {rank}: PyTorch has no {MESSAGES}, which carries messages between hosts"
            if not self.several and without is not None:
                return f"rank {rank}: {without}"
        most, count = Counter(each for *_, each in facts).most_common(1)[0]
        if count > 1:
            sharing = ", ".join(str(rank) for rank, (*_, each) in enumerate(facts) if each == most)
            return f"ranks {sharing} share one GPU, and each needs one of its own"
        return None


def compiled(algorithm: LoadedAlgorithm, device: torch.device, timeout: float) -> native.CompiledProgram:
    """The kernel of a program for this GPU; the interpreter, which programs of one protocol share."""
    return native.build(
        algorithm.program, "cuda", arch=arch_of(device), settings=native.LaunchSettings(timeout=timeout)
    )


def arch_of(device: torch.device) -> str:
    """What nvcc calls this GPU."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


def identity(device: torch.device) -> str:
    """The UUID of the GPU, the same in every process."""
    return str(torch.cuda.get_device_properties(device).uuid)


def host() -> str:
    """The same for all processes of a machine and for no others, also where machines share a name."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return boot.read_text() if boot.is_file() else socket.gethostname()
