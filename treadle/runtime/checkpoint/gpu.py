"""The transfers of a plan over NCCL (`templates/checkpoint/treadle_transfers.h`), called through ctypes by a rank."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

from treadle.codegen.checkpoint.cuda import MAIN, texts_of
from treadle.planner.errors import CheckFailed, InputError, MissingBackendError
from treadle.planner.passes.checkpoint.decisions import CheckpointDecisions
from treadle.runtime.checkpoint.memory import Bytes
from treadle.runtime.native_build import compile_library

NCCL = "libnccl.so.2"
_POINTER = ctypes.c_void_p


class _Segment(ctypes.Structure):
    _fields_ = [("data", _POINTER), ("bytes", ctypes.c_size_t)]


def transfers_library(decisions: CheckpointDecisions, arch: str | None = None) -> str:
    """The path of the compiled library of a plan. Raises MissingBackendError without nvcc."""
    return str(compile_library(texts_of(decisions, "plan"), MAIN, "cuda", (), arch))


class GpuTransfers:
    """What rank `rank` sends, receives and copies of a plan. A context.

    `communicator` is an ncclComm_t of all ranks in their order, `queue` a stream, best that on which the training
    queues its collectives, both as numbers. Raises MissingBackendError without nvcc or NCCL.
    """

    def __init__(
        self, decisions: CheckpointDecisions, rank: int, communicator: int, queue: int, library: Any = None
    ) -> None:
        self._library = library or _loaded(transfers_library(decisions))
        self._library.treadle_message.restype = ctypes.c_char_p
        self._problem = decisions.problem
        self._state: list[Tensor] = []
        self._made = _POINTER()
        self._call("open", rank, _POINTER(communicator), _POINTER(queue), ctypes.byref(self._made))

    def pin(self, memory: Bytes) -> None:
        """Lock host memory in its place, so that copies into it run while the host does something else."""
        self._call("pin", self._made, _POINTER(memory.ctypes.data), ctypes.c_size_t(memory.nbytes))

    def unpin(self) -> None:
        """Free all host memory that was locked."""
        self._call("unpin", self._made)

    def begin(self, state: Sequence[Tensor], memory: Sequence[Bytes], training: int) -> None:
        """Start a version: the bytes of `state`, 1-D tensors of this device, as the stream `training` has made them by
        now; less than the plan's state is padded. For round r of the plan, 0 for the own copy, `memory[r]` takes what
        arrives: pinned, a whole state each, not read before `wait`. Raises InputError for a larger state."""
        size, most = sum(part.numel() for part in state), self._problem.state_bytes
        if size > most:
            raise InputError(f"found a state of {size} bytes, expected at most {most}", where="a checkpoint")
        self._state = [part for part in state if part.numel()]
        if size < most:
            self._state.append(torch.zeros(most - size, dtype=torch.uint8, device=state[0].device))
        segments = (_Segment * len(self._state))(*(_Segment(part.data_ptr(), part.numel()) for part in self._state))
        places = (_POINTER * self._problem.copies)(*(each.ctypes.data for each in memory))
        self._call("begin", self._made, segments, len(segments), places, _POINTER(training))

    def release(self, span: int) -> None:
        """Queue the pieces of spans up to `span`, once the message before it is queued."""
        self._call("release", self._made, span)

    def message(self, number: int) -> None:
        """Let own copies run next to message `number`, which is queued next; the number of messages: after them."""
        self._call("message", self._made, number)

    def drain(self, training: int) -> None:
        """Queue what is left, and let the stream `training` go on once all is sent and copied."""
        self._call("drain", self._made, _POINTER(training))

    def wait(self) -> None:
        """Block until the version that was drained last is whole in host memory."""
        self._call("wait", self._made)

    def close(self) -> None:
        """Wait for the copies to the host, and give memory and streams back."""
        self._library.treadle_transfers_close(self._made)
        self._made = _POINTER()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, name: str, *arguments: Any) -> None:
        if getattr(self._library, f"treadle_transfers_{name}")(*arguments):
            raise CheckFailed(f"transfers of checkpoints: {self._library.treadle_message().decode()}")


def _loaded(path: str) -> Any:
    try:
        ctypes.CDLL(NCCL, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise MissingBackendError(f"found no {NCCL}; import a PyTorch built for CUDA first, or install NCCL") from error
    return ctypes.CDLL(path)
