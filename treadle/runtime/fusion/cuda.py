"""A schedule on GPUs: every rank has one of its own where there are enough, else all are virtual ranks of the first."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from treadle.planner.errors import InputError, MissingBackendError
from treadle.runtime.fusion.build import Compiled
from treadle.runtime.fusion.runs import RunReport, Runs
from treadle.runtime.fusion.session import FusionSession
from treadle.runtime.fusion.tensors import Tensors


def run(compiled: Compiled, tensors: Tensors, runs: Runs | None = None) -> RunReport:
    """Run `compiled`, of target cuda, on copies of `tensors`, which get the results.

    Raises MissingBackendError without a GPU that PyTorch can use, InputError where its threadblocks do not fit,
    CheckFailed naming what blocks where a schedule hangs.
    """
    runs = runs or Runs()
    devices = devices_of(compiled)
    session = FusionSession(compiled.path, compiled.ranks, devices)
    seconds = []
    try:
        for number in range(runs.repeats):
            first = number * compiled.ranks % tensors.rows
            copies = {rank: upload(tensors, first + rank, device) for rank, device in devices.items()}
            session.bind({rank: addresses(tensors, copy) for rank, copy in copies.items()}, keep=copies)
            for device in set(devices.values()):
                _torch().cuda.synchronize(device)
            start = time.perf_counter()
            session.run(seed=runs.seed, step=runs.step + number, timeout=runs.timeout, streams=streams_of(devices))
            session.wait()
            seconds.append(time.perf_counter() - start)
            for rank, copy in copies.items():
                tensors.row(first + rank)[:] = copy.cpu().numpy()
        return RunReport(tuple(seconds), tuple(session.counted(rank) for rank in devices))
    finally:
        session.close()


def devices_of(compiled: Compiled) -> dict[int, int]:
    """The GPU of each rank. Raises InputError for another library, MissingBackendError without a GPU."""
    if compiled.target != "cuda":
        raise InputError(f"found a library for {compiled.target}, expected one for cuda")
    torch = _torch()
    spread = torch.cuda.device_count() >= compiled.ranks
    return {rank: rank if spread else 0 for rank in range(compiled.ranks)}


def streams_of(devices: Mapping[int, int]) -> list[int]:
    """The current stream of each rank's GPU."""
    torch = _torch()
    return [torch.cuda.current_stream(devices[rank]).cuda_stream for rank in sorted(devices)]


def _torch() -> Any:
    hint = "install a driver and PyTorch for CUDA, or take backend fibers"
    try:
        import torch
    except ImportError:
        raise MissingBackendError(f"found no PyTorch, expected it for backend cuda; {hint}") from None
    if not torch.cuda.is_available():
        raise MissingBackendError(f"found no GPU that PyTorch can use, expected one for backend cuda; {hint}")
    return torch


def upload(tensors: Tensors, row: int, device: int) -> Any:
    """A copy of a row on a GPU, as bytes."""
    torch = _torch()
    return torch.from_numpy(tensors.row(row).copy()).to(f"cuda:{device}")


def addresses(tensors: Tensors, copy: Any) -> list[int]:
    """Addresses of the buffers in a copy."""
    return [copy.data_ptr() + offset for offset in tensors.offsets]
