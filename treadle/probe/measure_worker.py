"""The work of one of the N measuring processes: rates of its device, then timed sends with the others.

It sends a message to the parent after each unit of work.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from treadle.host.loopback import stay_on_loopback
from treadle.probe.timing import (
    COPY_BYTES,
    DTYPES,
    MATMUL,
    PINNED_BYTES,
    RATE_SECONDS,
    MeasureResults,
    MeasureSettings,
    SendTiming,
)
from treadle.runtime.launch import send

STEP = "step"


def measured(rank: int, settings: MeasureSettings) -> MeasureResults:
    """Rates and timings of this process."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # gloo announces its connections on stdout
    results = MeasureResults()
    torch.set_num_threads(settings.threads)
    if settings.device == "cuda":
        torch.cuda.set_device(rank)
    stay_on_loopback()
    dist.init_process_group(
        "nccl" if settings.device == "cuda" else "gloo",
        init_method=f"file://{settings.store}",
        rank=rank,
        world_size=settings.world,
        timeout=timedelta(seconds=60),
    )
    try:
        _rates(settings, results)
        for name, pairs in settings.pairs.items():
            for first, second in pairs:
                dist.barrier()
                if rank in (first, second):
                    _pair(name, rank == first, second if rank == first else first, settings, results)
        dist.barrier()
    finally:
        dist.destroy_process_group()
    return results


def _rates(settings: MeasureSettings, results: MeasureResults) -> None:
    """All processes at once, as in a data-parallel step, so that shared memory and cores are shared here too."""
    device, size = settings.device, MATMUL[settings.device]
    for name in DTYPES[device]:
        left = torch.randn(size, size, device=device).to(getattr(torch, name))
        out = torch.empty_like(left)
        per_second = _per_second(partial(torch.matmul, left, left, out=out), device)
        results.rates.append((f"flops.{name}", 2 * size**3 * per_second))
        send(STEP)
    source = torch.ones(COPY_BYTES[device], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    per_second = _per_second(lambda: target.copy_(source), device)
    results.rates.append(("memory_bandwidth", 2 * source.numel() * per_second))
    send(STEP)
    tiny = torch.zeros(1, device=device)
    results.rates.append(("launch_us", 1e6 / _per_second(lambda: tiny.add_(1), device)))
    send(STEP)
    if device == "cuda":
        _host_copies(results)


def _host_copies(results: MeasureResults) -> None:
    """Pinned copies in both directions; one chunk per timing, so several sizes separate alpha from beta."""
    for direction in ("host-to-device", "device-to-host"):
        for size in PINNED_BYTES:
            host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
            card = torch.empty(size, dtype=torch.uint8, device="cuda")
            target, source = (card, host) if direction == "host-to-device" else (host, card)
            per_second = _per_second(partial(target.copy_, source, non_blocking=True), "cuda")
            results.timings.append((direction, SendTiming(1, size / 2**20, True, (1e6 / per_second,))))
            send(STEP)


def _per_second(call: Callable[[], object], device: str) -> float:
    """Calls per second; the device works through a batch before the clock is read, so queueing hides nothing."""
    call()
    _synchronize(device)
    dist.barrier()
    batch, done = 1, 0
    start = time.perf_counter()
    while True:
        for _ in range(batch):
            call()
        _synchronize(device)
        done += batch
        elapsed = time.perf_counter() - start
        if elapsed >= RATE_SECONDS:
            return done / elapsed
        batch = min(batch * 2, 4096)


def _pair(name: str, starts: bool, peer: int, settings: MeasureSettings, results: MeasureResults) -> None:
    """Time both modes for every size. The time of one direction is half the round trip, because both carry the same."""
    for size in settings.sizes:
        buffers = [torch.zeros(size, dtype=torch.uint8, device=settings.device) for _ in range(settings.chunks)]
        for sequential in (True, False):
            groups = [[buffer] for buffer in buffers] if sequential else [buffers]
            times = []
            for repeat in range(settings.repeats + 1):
                _synchronize(settings.device)
                start = time.perf_counter()
                for group in groups:
                    _exchange(group, dist.isend if starts else dist.irecv, peer)
                    _exchange(group, dist.irecv if starts else dist.isend, peer)
                _synchronize(settings.device)
                if repeat > 0:  # the first round opens connections
                    times.append((time.perf_counter() - start) / 2 * 1e6)
            if starts:
                results.timings.append((name, SendTiming(settings.chunks, size / 2**20, sequential, tuple(times))))
                send(STEP)


def _exchange(group: list[torch.Tensor], operation: Callable[..., Any], peer: int) -> None:
    for work in dist.batch_isend_irecv([dist.P2POp(operation, buffer, peer) for buffer in group]):
        work.wait()


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
