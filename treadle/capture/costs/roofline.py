"""Times modelled from the rates of a device that is not available for measurements.

A call runs in phases, one after the other; a phase takes the larger of its FLOPs over the rate that its kind of work
reaches and its bytes over the memory bandwidth, and a launch. On a GPU convolutions reach these shares of the peak
(`GPU_SHARES`), the same for every network:

| work | share | where it is from |
|---|---|---|
| direct: implicit convolution without workspace | 0.73 | MONeT's published VGG-16 instance, batch 176, on a P100: without a choice of algorithms 2498 ms at 10 GB (`inplace_normal`), of which about 0.1 s are element-wise; 16.4 TFLOP in 2.4 s are 6.8 of 9.3 TFLOP/s |
| product: matrix products inside im2col, Winograd and FFT | 0.9 | what vendors' libraries reach on large single precision products |
| elementwise: transforms and copies | 1 | bounded by their bytes |

With that model Winograd wins because it multiplies less and im2col because its product runs faster, as in the
published instance, where the choice of algorithms brings 2498 ms down to 1333 ms (`inplace_conv_normal`). A product
whose results are fewer than `GPU_FILL` leaves multiprocessors idle: its share falls in proportion, which is what
im2col sample by sample pays in late layers. On a CPU every kind of work reaches the profile's rate.
"""  # noqa: E501

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from msgspec.structs import replace

from treadle.capture.costs.convolution import Phase, convolution_of, phases
from treadle.capture.costs.counting import is_view, shadows_of, signature, with_counts
from treadle.capture.operator_calls import call, with_each_call
from treadle.planner.documents.hardware import Device, Hardware
from treadle.planner.documents.trace import Costs, Implementation, Op, Tensor, Trace
from treadle.planner.errors import InputError
from treadle.runtime.meter import Meter

GPU_SHARES = {"direct": 0.73, "product": 0.9, "elementwise": 1.0}
GPU_FILL = 64 * 64 * 64
"""Results of a product that fill a GPU: 64 multiprocessors with tiles of 64 x 64."""


def with_roofline(trace: Trace, hardware: Hardware) -> Trace:
    """`trace` with modelled times of every op and of its implementations, and the workspace of treadle's kernels.

    Views are free, and integer arithmetic takes only the time of its bytes. Workspace is what treadle's kernels
    allocate besides their results, found by running them on tensors without memory; what PyTorch's kernels allocate
    inside themselves shows only when they are measured, and counts as nothing here. The device is the profile's first
    GPU, else its first device. Raises InputError when the profile lacks the device's bandwidth or its peak for a dtype
    that occurs.
    """
    place, device = next(
        ((index, device) for index, device in enumerate(hardware.devices) if device.kind == "gpu"),
        (0, hardware.devices[0]),
    )
    counted = with_counts(trace)
    tensors = {tensor.id: tensor for tensor in counted.tensors}
    shadows = shadows_of(counted.tensors)
    known: dict[str, int | None] = {}

    def priced(op: Any) -> Any:
        if isinstance(op, Op) and is_view(op, tensors):
            return replace(op, time_ns=0, workspace_bytes=0)
        workspace: int | None = 0
        if not op.target.startswith("treadle."):
            pass
        elif (workspace := known.get(key := signature(op, tensors), -1)) == -1:
            workspace = known[key] = kernel_workspace(op, shadows)
        return replace(op, time_ns=_roofline_ns(op, tensors, device, hardware.name, place), workspace_bytes=workspace)

    return replace(with_each_call(counted, priced), costs=Costs(model="roofline", device=hardware.name))


def kernel_workspace(op: Op | Implementation, shadows: Mapping[str, torch.Tensor]) -> int | None:
    """Most bytes that a kernel of treadle makes beyond its results; None where only a measurement gives it."""
    if op.target == "treadle.dropout_backward_rng":  # draws numbers, which takes a real generator
        grad, state = (shadows[key] for key in op.inputs)
        return grad.numel() + max(0, state.nbytes - grad.nbytes)  # the state put aside is gone when the result is made
    if op.target == "treadle.rng_state":
        return 0
    values = {key: shadows[key] for key in op.inputs}
    try:
        with torch.no_grad(), Meter(list(values.values())) as meter:
            results = call(op, values)
            live = meter.live_bytes
            del results
    except (RuntimeError, NotImplementedError, ValueError, TypeError):
        return None
    return meter.peak_bytes - live


def _roofline_ns(op: Op | Implementation, tensors: Mapping[str, Tensor], device: Device, name: str, place: int) -> int:
    if device.memory_bandwidth is None:
        raise InputError(
            "found nothing, expected bytes per second, which modelled times need; measure the device or use --measure",
            where=name,
            path=f"$.devices[{place}].memory_bandwidth",
        )
    convolution = convolution_of(op, tensors)
    kind: Any = "direct" if op.target.startswith("aten.convolution_backward.") else "elementwise"
    work = phases(convolution) if convolution else [Phase(kind, op.flops or 0, op.bytes_moved or 0)]
    kinds = (tensors[key].dtype for key in (*op.outputs, *op.inputs) if key)
    dtype = next((kind for kind in kinds if kind in _FLOATS), None)
    peak = None
    if op.flops and dtype is not None:  # profiles have no rates of integer arithmetic
        peak = _peak(device, dtype)
        if peak is None:
            raise InputError(
                f"found rates for {', '.join(sorted(device.peak_flops)) or 'no dtype'}, expected one for {dtype} "
                f"({op.target})",
                where=name,
                path=f"$.devices[{place}].peak_flops",
            )
    seconds, launches = 0.0, 0
    for phase in work:
        moving = phase.bytes / device.memory_bandwidth
        seconds += max(moving, phase.flops / (peak * _share(phase, device))) if peak else moving
        launches += phase.launches
    return math.ceil(seconds * 1e9 + launches * device.launch_us * 1e3)


def _peak(device: Device, dtype: str) -> float | None:
    """FLOP/s of the profile, else derived: vector units do half as many operations on numbers twice as wide, and a
    product of complex numbers takes four of their parts. None where the profile says too little."""
    if dtype in device.peak_flops:
        return device.peak_flops[dtype]
    base, share = _DERIVED.get(dtype, (None, 1))
    rate = _peak(device, base) if base is not None else None
    return rate / share if rate is not None else None


def _share(phase: Phase, device: Device) -> float:
    if device.kind != "gpu":
        return 1.0
    return GPU_SHARES[phase.kind] * (min(1.0, phase.outputs / GPU_FILL) if phase.outputs else 1.0)


_FLOATS = {"float64", "float32", "bfloat16", "float16", "complex64", "complex128"}
_DERIVED = {"float64": ("float32", 2), "complex64": ("float32", 4), "complex128": ("float64", 4)}
