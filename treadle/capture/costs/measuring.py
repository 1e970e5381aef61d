"""Times and workspace of a trace's calls, measured on this machine."""

from __future__ import annotations

import logging
import os
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import psutil
import torch
from msgspec.structs import replace

from treadle.capture.costs.counting import dtype_of, layout_of, shadows_of, signature, with_counts
from treadle.capture.costs.roofline import kernel_workspace
from treadle.capture.operator_calls import call
from treadle.planner.documents.scalars import format_bytes
from treadle.planner.documents.trace import Costs, Implementation, Op, Tensor, Trace
from treadle.planner.errors import InputError
from treadle.probe.local import cpu_model

MIN_REPEATS, MAX_REPEATS, ENOUGH_SECONDS = 3, 30, 0.05

Measured = tuple[int, int] | None
"""Median nanoseconds and workspace bytes of one call; None where it cannot run."""

log = logging.getLogger("treadle.costs")


def with_measured(
    trace: Trace,
    progress: Callable[[int, int, str], None] = lambda done, of, target: None,
    *,
    device: str = "cpu",
    known: dict[str, Measured] | None = None,
) -> Trace:
    """`trace` with what its calls take on `device` of this machine, each in isolation on random data of its shapes.

    Times are medians. Workspace is the most bytes allocated while the call runs, less its inputs and results; what
    kernels allocate inside themselves counts. Calls that are the same on the same shapes are measured once; `known`
    has what was measured before, by signature, and takes what is new. An implementation that cannot run here is left
    out, and a log line says why. `progress` is called with (done, total, target). Raises InputError when an op's own
    call cannot run.
    """
    counted = with_counts(trace)
    tensors = {tensor.id: tensor for tensor in counted.tensors}
    known = {} if known is None else known
    total = sum(1 + len(op.implementations) for op in counted.ops)
    done = 0

    def measured(op: Op | Implementation, name: str) -> Measured:
        nonlocal done
        progress(done, total, op.target)
        done += 1
        key = signature(op, tensors)
        if key not in known:
            try:
                if device == "cpu":
                    _require_room(op, tensors)
                known[key] = _measure(op, tensors, device)
            except (RuntimeError, NotImplementedError, IndexError, ValueError, TypeError, MemoryError) as error:
                reason = f"{name} ({op.target}) cannot be measured here: {' '.join(str(error).split())[:300]}"
                if isinstance(op, Op):
                    raise InputError(reason, where=trace.name) from error
                log.warning("left out: %s", reason)
                if isinstance(error, MemoryError):  # there may be room another time
                    return None
                known[key] = None
        return known[key]

    def with_costs(op: Op) -> Op:
        own = measured(op, f"op {op.id!r}")
        if own is None:  # an implementation elsewhere that makes the same call
            raise InputError(f"op {op.id!r} ({op.target}) could not be measured here before", where=trace.name)
        others = [(other, measured(other, f"{other.name} of op {op.id!r}")) for other in op.implementations]
        return replace(
            op,
            time_ns=own[0],
            workspace_bytes=own[1],
            implementations=tuple(
                replace(other, time_ns=found[0], workspace_bytes=found[1]) for other, found in others if found
            ),
        )

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        ops = tuple(with_costs(op) for op in counted.ops)
    return replace(counted, ops=ops, costs=Costs(model="measured", device=this_device(device)))


def this_device(device: str = "cpu") -> str:
    """Name of what measurements run on: the CUDA device, or the CPU with its number of threads."""
    if device != "cpu":
        return torch.cuda.get_device_name(device)
    return f"{cpu_model()}, {torch.get_num_threads()} threads"


def _require_room(op: Op | Implementation, tensors: Mapping[str, Tensor]) -> None:
    """Raises MemoryError for a call that needs more than this machine has free, where the system would end the process.

    What a call moves is at least what it allocates; only for a kernel that moves too much is its workspace looked up.
    """
    needed, free = op.bytes_moved or 0, psutil.virtual_memory().available
    if needed > free and op.target.startswith("treadle."):
        keys = {*op.inputs, *(key for key in op.outputs if key is not None)}
        workspace = kernel_workspace(op, shadows_of(tensors[key] for key in op.inputs)) or 0
        needed = sum(tensors[key].bytes or 0 for key in keys) + workspace
    if needed > free:
        raise MemoryError(f"it needs {format_bytes(needed)} of memory, {format_bytes(free)} are free")


def _measure(op: Op | Implementation, tensors: Mapping[str, Tensor], device: str) -> tuple[int, int]:
    generator = torch.Generator(device).manual_seed(0)
    values = {key: sample(tensors[key], generator) for key in op.inputs}

    def run() -> Any:
        return call(op, values)

    finish: Callable[[], None]
    if device == "cpu":
        workspace, finish = _cpu_workspace(run), lambda: None
    else:
        workspace, finish = _cuda_workspace(run), torch.cuda.synchronize
    times: list[int] = []
    while len(times) < MIN_REPEATS or (len(times) < MAX_REPEATS and sum(times) < ENOUGH_SECONDS * 1e9):
        start = time.perf_counter_ns()
        run()
        finish()
        times.append(time.perf_counter_ns() - start)
    return round(statistics.median(times)), workspace


def _cpu_workspace(run: Callable[[], Any]) -> int:
    """Peak of what PyTorch's allocator hands out during the call, less what is left of it when the call is done."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler writes a line for each start and stop
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        result = run()
    events = profile.kineto_results.events()
    changes = [(event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"]
    del result
    live = peak = 0
    for _, change in sorted(changes, key=lambda change: change[0]):
        live += change
        peak = max(peak, live)
    return peak - live


def _cuda_workspace(run: Callable[[], Any]) -> int:
    """The same from the caching allocator, after a call that lets the libraries take what they keep."""
    run()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = run()
    torch.cuda.synchronize()
    peak, after = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
    del result
    return max(0, peak - max(before, after))


def sample(tensor: Tensor, generator: torch.Generator) -> torch.Tensor:
    """Numbers between 0 and 1 in the tensor's own layout; zeros, which are valid indices, for integers and booleans.

    Bytes of the size of a generator's state are the state of one.
    """
    shape, stride = layout_of(tensor)
    dtype = dtype_of(tensor)
    state = generator.get_state()
    if dtype == torch.uint8 and shape == tuple(state.shape):
        return state
    reach = 0 if 0 in shape else 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    if dtype.is_floating_point:
        drawn = dtype if dtype.itemsize >= 4 else torch.float32
        flat = torch.rand(reach, generator=generator, dtype=drawn, device=generator.device).to(dtype)
    else:
        flat = torch.zeros(reach, dtype=dtype, device=generator.device)
    return flat.as_strided(shape, stride)
