"""The transfers of checkpoints: copies of a state through NCCL, buffers and pinned memory, byte by byte; their rate.

A card has no peer, so each rank sends to itself. In a dry run the library is compiled; its order of events is a test.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np
import torch

from benchmarks.common import Row, Table
from benchmarks.gpu.items import Kernel, Outcome
from treadle.planner.errors import CheckFailed
from treadle.planner.passes.checkpoint.decisions import CheckpointDecisions, OwnPiece, StatePiece
from treadle.planner.passes.checkpoint.problem import VERSION, CheckpointProblem, IdleSpan
from treadle.runtime.checkpoint.gpu import NCCL, GpuTransfers, transfers_library

STATE, PIECE, BUFFERS = 512 << 20, 32 << 20, 4
VERSIONS = 4


def kernels(dry: bool) -> Iterator[Kernel]:
    yield Kernel("checkpoint", lambda arch: transfers_library(decided(BUFFERS), arch), True)


def check(dry: bool) -> Outcome:
    """Raises CheckFailed where a version in host memory is not the state as it was."""
    if dry:
        return Outcome("no card: compiled only")
    communicator = ctypes.c_void_p()
    if failed := ctypes.CDLL(NCCL, mode=ctypes.RTLD_GLOBAL).ncclCommInitAll(ctypes.byref(communicator), 1, None):
        raise CheckFailed(f"NCCL makes no communicator of one GPU: its error {failed}")
    rows = [_measured(buffers, communicator.value or 0) for buffers in (1, 2, BUFFERS)]
    rate = rows[-1]["GB/s"]
    return Outcome(
        f"{VERSIONS} versions of {STATE >> 20} MiB arrive whole at {rate:.1f} GB/s",
        (Table(f"Copies of {STATE >> 20} MiB in pieces of {PIECE >> 20} MiB, own and received", rows),),
    )


def decided(buffers: int) -> CheckpointDecisions:
    """A machine that holds its own state twice: once from its own device, once through NCCL."""
    problem = CheckpointProblem(
        version=VERSION,
        name="one card",
        machines=1,
        copies=2,
        devices=1,
        state_bytes=STATE,
        iteration_ns=10**9,
        spans=(IdleSpan(after="begin", before="update", length_ns=10**9),),
        alpha_ns=10_000,
        link_rate=10**10,
        copy_rate=10**10,
        buffer_bytes=PIECE * buffers,
        buffers=buffers,
    )
    offsets = range(0, STATE, PIECE)
    return CheckpointDecisions(
        problem=problem,
        placement="groups",
        holders=((0, 0),),
        variant="planned" if buffers > 1 else "no-pipeline",
        pieces=tuple(
            StatePiece(span=0, copy=1, offset=offset, bytes=PIECE, buffer=number % buffers)
            for number, offset in enumerate(offsets)
        ),
        own=tuple(OwnPiece(message=None, offset=offset, bytes=PIECE) for offset in offsets),
        every=1,
        overflow_ns=0,
        checkpoint_ns=10**9,
        survival=(),
        waste=(),
        host_bytes=4 * STATE,
        time_ns=10**9,
    )


def _measured(buffers: int, communicator: int) -> Row:
    state = torch.randint(256, (STATE,), dtype=torch.uint8, device="cuda")
    cut = STATE // 3
    host = np.zeros((2, 2, STATE), np.uint8)
    queue, training = torch.cuda.Stream(), torch.cuda.Stream()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    milliseconds = []
    torch.cuda.synchronize()
    with GpuTransfers(decided(buffers), 0, communicator, queue.cuda_stream) as transfers:
        transfers.pin(host)
        for version in range(VERSIONS):
            expected = state.cpu().numpy()
            begin.record(training)
            transfers.begin([state[:cut], state[cut:]], list(host[version % 2]), training.cuda_stream)
            transfers.release(0)
            transfers.drain(training.cuda_stream)
            end.record(training)
            with torch.cuda.stream(training):
                state += 1
            transfers.wait()
            torch.cuda.synchronize()
            milliseconds.append(begin.elapsed_time(end))
            for copy in range(2):
                if not np.array_equal(host[version % 2, copy], expected):
                    raise CheckFailed(f"copy {copy} of version {version} differs with {buffers} buffers")
    best = min(milliseconds[1:])
    return {"buffers": buffers, "ms": best, "GB/s": 2 * STATE / best / 1e6}
