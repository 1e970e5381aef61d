"""What each rank does while a runtime is measured: it runs the probe programs and times its calls."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch
from torch import distributed

from treadle.probe.cpu_programs import ProbeRun
from treadle.runtime.collective.backends import Backend, RankBackend, backend_of

PASSES = 4
"""Rounds over all runs: a shared machine can be slow for seconds."""
SAMPLES = 4
SAMPLE_SECONDS, MOST_CALLS = 0.01, 50
RUN_SECONDS = 0.5
"""A run whose samples take longer has fewer of them."""
OTHER_BYTES = 20 << 20
"""What a step uses between exchanges: more than a rank's share of the caches, which keep some of the gradients."""


def measured_calls(
    rank: int, world: int, runs: list[ProbeRun], cold: bool, backend: Backend = "cpu"
) -> list[list[list[float]]]:
    """By pass and run: seconds of a call of this rank, by sample; a sample is several calls, one after the other, or if
    `cold` one after the rank has used other memory, as a training step does. A call has ended when the device has."""
    torch.set_num_threads(1)
    run_on = backend_of(backend)
    return [_passed(run_on, rank, runs, cold) for _ in range(PASSES)]


def _passed(run_on: RankBackend, rank: int, runs: list[ProbeRun], cold: bool) -> list[list[float]]:
    found, device = [], run_on.device
    other = torch.zeros(OTHER_BYTES // 4 if cold else 0, device=device)
    for run in runs:
        call = run_on.executor(run.program, rank, checked=False)
        elements = run.total_bytes // 4
        source, out = torch.ones(elements, device=device), torch.ones(elements, device=device)
        work = partial(call, source, out=out)
        calls, samples = _agreed(_sample(work, 2, other))
        calls = 1 if cold else calls
        found.append([_sample(work, calls, other) for _ in range(samples)])
    return found


def _sample(work: Callable[[], object], calls: int, other: torch.Tensor) -> float:
    other.add_(1)
    distributed.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        work()
    if other.is_cuda:
        torch.cuda.synchronize(other.device)
    return (time.perf_counter() - start) / calls


def _agreed(seconds: float) -> tuple[int, int]:
    """Calls of a sample, and samples, the same on all ranks."""
    slowest = torch.tensor([seconds])
    distributed.all_reduce(slowest, op=distributed.ReduceOp.MAX)
    calls = max(1, min(MOST_CALLS, int(SAMPLE_SECONDS / float(slowest))))
    return calls, max(3, min(SAMPLES, int(RUN_SECONDS / float(slowest) / calls)))
