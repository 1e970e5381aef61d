"""Collectives over symmetric memory: kernels that read the buffers of all ranks, for sizes where slots cost too much.

`one-shot`: every rank reads and sums what it needs from all others. `two-shot`, allreduce only: every rank
sums one part and writes it to all. Where a switch reduces and multicasts (NVLink SHARP) it does both for them. On
fibers all ranks are of one process (`VirtualRanks`); on GPUs each is a process of its own (`SymmetricRank`), whose
buffers are those of `torch.distributed._symmetric_memory`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, distributed

from treadle.codegen.collective.cuda import kernels
from treadle.codegen.collective.program import CollectiveProgram
from treadle.planner.documents.nearest import meant
from treadle.planner.documents.plan import Shots
from treadle.planner.errors import CheckFailed, InputError, MissingBackendError
from treadle.runtime.agreement import agreed
from treadle.runtime.collective.native import DTYPES, OPERATIONS
from treadle.runtime.native_build import Target, compile_library

METHODS = {("allreduce", "one-shot"): 0, ("allreduce", "two-shot"): 1, ("reducescatter", "one-shot"): 2,
           ("allgather", "one-shot"): 3, ("broadcast", "one-shot"): 4}  # fmt: skip
"""What the kernels execute, with the codes of treadle_symmetric.h."""
REDUCING = ("allreduce", "reducescatter")
MOST_RANKS = 64
LEAST_HALF = 1 << 20
"""Bytes of the smallest half of a buffer; a larger call makes larger buffers."""
ABORT = slice(128, 144)
"""Where the head of a buffer says that a launch was given up, by which block, whom it waited for, in which phase."""
NO_ROOM = "found a call of {} bytes while a CUDA graph is captured, expected one call as large before the capture"


class _Exchange(ctypes.Structure):
    _fields_ = [
        ("buffers", ctypes.c_uint64 * MOST_RANKS),
        ("multicast", ctypes.c_uint64),
        ("ranks", ctypes.c_int64),
        *((name, ctypes.c_uint64) for name in ("input", "output", "bytes", "half", "timeout_ns", "launches")),
        *((name, ctypes.c_int32) for name in ("rank", "root", "method", "operation", "averages", "blocks")),
    ]


@dataclass(frozen=True, eq=False)
class RankBuffer:
    """A rank's buffer, and the addresses at which it finds those of all ranks, and of the switch that knows them as one
    (0: there is none)."""

    rank: int
    buffer: Tensor
    pointers: tuple[int, ...]
    multicast: int = 0


@dataclass(frozen=True)
class Exchange:
    """A collective as these kernels do it. Raises InputError for one that they cannot do."""

    collective: str
    shots: Shots = "one-shot"
    root: int = 0

    def __post_init__(self) -> None:
        if (self.collective, self.shots) not in METHODS:
            known = ", ".join(f"{shots} {collective}" for collective, shots in METHODS)
            raise InputError(f"found {self.shots} {self.collective}, expected one of {known}")

    def output(self, tensor: Tensor, ranks: int) -> Tensor:
        """What the result is written to: `tensor` itself, which is contiguous, where input and output have one size."""
        if self.collective == "allgather":
            return tensor.new_empty(ranks * tensor.numel())
        if self.collective == "reducescatter":
            if tensor.numel() % ranks:
                raise InputError(f"found {tensor.numel()} elements, expected a multiple of {ranks} ranks")
            return tensor.new_empty(tensor.numel() // ranks)
        return tensor


class SymmetricKernels:
    """The compiled kernels, which serve every collective, data type and size."""

    def __init__(self, target: Target, arch: str | None = None) -> None:
        self.target = target
        self._library: Any = ctypes.CDLL(str(compile_library(kernels.symmetric(), kernels.SYMMETRIC, target, (), arch)))
        self._library.treadle_message.restype = ctypes.c_char_p
        self._library.treadle_exchange.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_void_p]
        self._library.treadle_synchronise.argtypes = [ctypes.c_int, ctypes.c_uint64]

    def bytes_of(self, half: int) -> int:
        """Bytes of a buffer whose halves hold `half` bytes each."""
        return int(self._library.treadle_head_bytes()) + 2 * half

    def start(
        self,
        member: RankBuffer,
        exchange: Exchange,
        tensor: Tensor,
        output: Tensor,
        op: str,
        *,
        half: int,
        blocks: int = 0,
        timeout: float = 0,
        launches: int = 0,
        stream: int = 0,
    ) -> None:
        """Start one launch of one rank; all of them must start alike ones, in one order. `blocks` limits its
        threadblocks, if given; `launches` is how many this rank has started on these buffers. Raises InputError where
        tensors, operation or buffers do not fit."""
        if op not in OPERATIONS:
            raise InputError(f"found operation {op!r}, {meant(op, OPERATIONS)}")
        if exchange.collective in REDUCING and tensor.dtype not in DTYPES:
            raise InputError(f"found tensors of {tensor.dtype}, expected {', '.join(map(str, DTYPES))}")
        if not max(tensor.numel(), output.numel()):
            return
        call = _Exchange(
            buffers=(ctypes.c_uint64 * MOST_RANKS)(*member.pointers),
            multicast=member.multicast,
            ranks=len(member.pointers),
            timeout_ns=round(timeout * 1e9),
            input=tensor.data_ptr(),
            output=output.data_ptr(),
            bytes=max(tensor.numel(), output.numel()) * tensor.element_size(),
            half=half,
            rank=member.rank,
            root=exchange.root,
            method=METHODS[exchange.collective, exchange.shots],
            operation=OPERATIONS[op],
            averages=op == "avg" and exchange.collective in REDUCING,
            blocks=blocks,
            launches=launches,
        )
        dtype, device = DTYPES.get(tensor.dtype, 0), tensor.device.index or 0
        self._require(self._library.treadle_exchange(ctypes.byref(call), dtype, device, stream))

    def wait(self, member: RankBuffer, seed: int = 0) -> None:
        """Wait for all launches on the device of a rank. Raises CheckFailed when one was given up."""
        self._require(self._library.treadle_synchronise(member.buffer.device.index or 0, seed))
        aborted, block, peer, phase = member.buffer[ABORT].view(torch.int32).tolist()
        if aborted:
            raise CheckFailed(
                "symmetric memory: the launch does not end",
                (f"rank {member.rank} tb {block}: waits for rank {peer} at its {('', 'entry', 'exit')[phase]}"
                 if phase else f"rank {member.rank}: another rank gave it up",),
            )  # fmt: skip

    def _require(self, status: int) -> None:
        if status:
            raise InputError(self._library.treadle_message().decode(), where="symmetric memory")


class VirtualRanks:
    """All ranks in one process and on one device. On the CPU they are fibers, whose order a seed chooses, and with
    `multicast` the instructions of a switch are stood in for. On a GPU every rank has a stream, and so few threadblocks
    that those of all ranks are resident at once."""

    def __init__(
        self,
        kernels: SymmetricKernels,
        ranks: int,
        half: int = LEAST_HALF,
        device: torch.device | str = "cpu",
        *,
        multicast: bool = False,
        timeout: float = 60.0,
    ) -> None:
        if not 1 <= ranks <= MOST_RANKS:
            raise InputError(f"found {ranks} ranks, expected 1 to {MOST_RANKS}")
        self._kernels, self._half, self._launches, self._timeout = kernels, half, 0, timeout
        buffers = [torch.zeros(kernels.bytes_of(half), dtype=torch.uint8, device=device) for _ in range(ranks)]
        pointers = tuple(buffer.data_ptr() for buffer in buffers)
        self.members = [
            RankBuffer(rank, buffer, pointers, pointers[0] * multicast) for rank, buffer in enumerate(buffers)
        ]
        self._blocks, self._streams = 0, [0] * ranks
        if kernels.target == "cuda":
            processors = torch.cuda.get_device_properties(device).multi_processor_count
            self._blocks = max(1, processors // ranks)
            self._made = [torch.cuda.Stream(device) for _ in range(ranks)]
            self._streams = [stream.cuda_stream for stream in self._made]
            torch.cuda.synchronize(device)

    def queue(self, exchange: Exchange, inputs: Sequence[Tensor], op: str = "sum") -> list[Tensor]:
        """The results, which are there after `wait`; allreduce and broadcast work in the contiguous `inputs`."""
        outputs = [exchange.output(tensor, len(self.members)) for tensor in inputs]
        for member, stream, tensor, output in zip(self.members, self._streams, inputs, outputs, strict=True):
            self._kernels.start(
                member, exchange, tensor, output, op, half=self._half, blocks=self._blocks, stream=stream,
                timeout=self._timeout, launches=self._launches,
            )  # fmt: skip
        self._launches += any(tensor.numel() for tensor in inputs)
        return outputs

    def wait(self, seed: int = 0) -> None:
        """Wait for what is queued; fibers run only now. Raises CheckFailed for every rank that waits forever."""
        found: list[str] = []
        for member in self.members:
            try:
                self._kernels.wait(member, seed)
            except CheckFailed as error:
                found += error.findings
        if found:
            raise CheckFailed("symmetric memory: the launch does not end", tuple(found))


@dataclass(frozen=True, eq=False)
class SymmetricProgram:
    """A program as these kernels do it, with virtual ranks: the counterpart of a CompiledProgram."""

    program: CollectiveProgram
    exchange: Exchange
    kernels: SymmetricKernels
    timeout: float = 60.0
    multicast: bool = False
    """On fibers: whether a switch is stood in for."""
    _ranks: dict[int, VirtualRanks] = field(default_factory=dict, repr=False)

    @property
    def reduces(self) -> bool:
        return self.exchange.collective in REDUCING

    def run(self, inputs: Sequence[Tensor], op: str = "sum", *, seed: int = 0) -> list[Tensor]:
        """What every rank gets, all on the device of the first tensor. Raises what `SymmetricKernels.start` raises, and
        CheckFailed when a rank waits forever."""
        given = [tensor.to(inputs[0].device).contiguous() for tensor in inputs]
        half = room(max(tensor.numel() for tensor in given) * given[0].element_size() * len(given))
        if half not in self._ranks:
            self._ranks[half] = VirtualRanks(
                self.kernels, len(given), half, given[0].device, multicast=self.multicast, timeout=self.timeout
            )
        if given[0].is_cuda:
            torch.cuda.synchronize(given[0].device)
        try:
            results = self._ranks[half].queue(self.exchange, given, op)
            self._ranks[half].wait(seed)
        except CheckFailed:
            del self._ranks[half]  # its counters stand anywhere
            raise
        return results


def room(bytes: int) -> int:
    """Bytes of a half that holds a tensor of `bytes`, each part of which begins at a whole word."""
    return max(LEAST_HALF, 1 << (bytes + 16 * MOST_RANKS - 1).bit_length())


@dataclass
class SymmetricBuffers:
    """The buffers of the processes of `group`, one GPU each. They grow with the largest call; older ones are kept, as
    CUDA graphs may replay launches on them."""

    kernels: SymmetricKernels
    device: torch.device
    group: Any
    half: int = 0
    members: list[RankBuffer] = field(default_factory=list)

    def grown(self, bytes: int) -> RankBuffer:
        """The buffer for tensors of `bytes`; a collective call where it must be made. Raises InputError on all ranks
        when one cannot make it."""
        if (half := room(bytes)) > self.half:
            if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
                raise InputError(NO_ROOM.format(bytes))
            self.members.append(
                agreed(lambda: attached(self.kernels.bytes_of(half), self.device, self.group), self.group)
            )
            self.half = half
        return self.members[-1]


def attached(bytes: int, device: torch.device, group: Any) -> RankBuffer:
    """A cleared buffer of this process, known to all of `group`. A collective call. Raises MissingBackendError where
    PyTorch has no symmetric memory, and what it raises where these GPUs have none."""
    try:
        import torch.distributed._symmetric_memory as memory

        make, meet = memory.empty, memory.rendezvous
    except (ImportError, AttributeError):
        raise MissingBackendError(
            f"found no symmetric memory in PyTorch {torch.__version__}, expected 2.9 or newer for CUDA"
        ) from None
    buffer = make(bytes, dtype=torch.uint8, device=device)
    buffer.zero_()
    torch.cuda.current_stream(device).synchronize()
    handle: Any = meet(buffer, group)
    at = int(getattr(handle, "offset", 0))
    pointers = tuple(int(each) + at for each in handle.buffer_ptrs)
    multicast = int(getattr(handle, "multicast_ptr", 0) or 0)
    return RankBuffer(distributed.get_rank(group), buffer, pointers, multicast and multicast + at)


class SymmetricRank:
    """One rank of a collective whose ranks are processes with a GPU each; calls follow one another on one stream.

    Making one is a collective call, as is the first call of a larger size. A switch that joins the ranks is used,
    but not by one-shot sums of floats: it may add in another order for each rank that asks.
    """

    def __init__(self, buffers: SymmetricBuffers, exchange: Exchange, timeout: float = 0) -> None:
        self._buffers, self._exchange, self._timeout = buffers, exchange, timeout
        buffers.grown(0)

    def __call__(self, tensor: Tensor, op: str = "sum") -> Tensor:
        """This rank's share, on the current stream; it does not wait for the GPU. Allreduce and broadcast work in
        a contiguous `tensor`."""
        given = tensor.detach().contiguous()
        output = self._exchange.output(given, distributed.get_world_size(self._buffers.group))
        most = max(given.numel(), output.numel()) * given.element_size()
        member = self._buffers.grown(most)
        if differs(self._exchange, given.dtype):
            member = RankBuffer(member.rank, member.buffer, member.pointers)
        stream = torch.cuda.current_stream(tensor.device).cuda_stream
        self._buffers.kernels.start(
            member, self._exchange, given, output, op, half=self._buffers.half, timeout=self._timeout, stream=stream
        )
        return output

    def wait(self) -> None:
        """Wait for the GPU. Raises CheckFailed when a launch was given up."""
        self._buffers.kernels.wait(self._buffers.members[-1])

    def close(self) -> None:
        """Wait for all ranks, after which their buffers may go. A collective call."""
        self.wait()
        distributed.barrier(self._buffers.group)


def differs(exchange: Exchange, dtype: torch.dtype) -> bool:
    """Whether a switch, which may add in any order, could give the ranks of a call different sums."""
    return exchange == Exchange("allreduce", "one-shot") and dtype.is_floating_point
