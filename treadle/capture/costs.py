"""What each op of a captured trace costs: work counted from its shapes, time modelled or measured.

FLOPs count multiplications and additions of matrix products, convolutions and attention (the formulas of
`torch.utils.flop_counter`); of every other operator they stay absent. Bytes moved read each input once and write each
output once; a lookup reads as much as it returns, and a view moves nothing.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from msgspec.structs import replace
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from planner.errors import InputError
from planner.hardware import Device, Hardware
from planner.trace import Costs, Op, Tensor, Trace
from treadle.capture.calls import call, decode, operator

MIN_REPEATS, MAX_REPEATS, ENOUGH_SECONDS = 3, 30, 0.05


def with_counts(trace: Trace) -> Trace:
    """`trace` with `flops` and `bytes_moved` of every op. Raises InputError for ops without recorded arguments."""
    tensors = {tensor.id: tensor for tensor in trace.tensors}
    shadows = {
        tensor.id: torch.empty_strided(*_layout(tensor), dtype=_dtype(tensor), device="meta")
        for tensor in trace.tensors
    }
    ops = tuple(
        replace(op, flops=0, bytes_moved=0)
        if is_view(op, tensors)
        else replace(op, flops=_flops(op, shadows), bytes_moved=_bytes_moved(op, tensors))
        for op in trace.ops
    )
    return replace(trace, ops=ops)


def with_roofline(trace: Trace, hardware: Hardware) -> Trace:
    """`trace` with modelled times: the larger of FLOPs / peak and bytes / bandwidth, plus the launch cost.

    Views are free, and integer arithmetic takes the time of its bytes alone. The device is the profile's first GPU,
    else its first device. Raises InputError when the profile lacks the device's bandwidth or its peak for a dtype that
    occurs.
    """
    place, device = next(
        ((index, device) for index, device in enumerate(hardware.devices) if device.kind == "gpu"),
        (0, hardware.devices[0]),
    )
    counted = with_counts(trace)
    tensors = {tensor.id: tensor for tensor in counted.tensors}
    ops = tuple(
        replace(op, time_ns=0 if is_view(op, tensors) else _roofline_ns(op, tensors, device, hardware.name, place))
        for op in counted.ops
    )
    return replace(counted, ops=ops, costs=Costs(model="roofline", device=hardware.name))


def with_measured(
    trace: Trace,
    progress: Callable[[int, int, str], None] = lambda done, of, target: None,
    *,
    device: str = "cpu",
) -> Trace:
    """`trace` with times measured on `device` of this machine: each op by itself on random data of its shapes, median.

    Ops that make the same call on the same shapes are timed once. `progress` is called with (done, total, target).
    Integers are zeros, which is a valid index everywhere. Raises InputError when an op cannot run here.
    """
    counted = with_counts(trace)
    tensors = {tensor.id: tensor for tensor in counted.tensors}
    known: dict[str, int] = {}
    ops = []
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        for done, op in enumerate(counted.ops):
            progress(done, len(counted.ops), op.target)
            signature = _signature(op, tensors)
            if signature not in known:
                known[signature] = _measure_ns(op, tensors, trace.name, device)
            ops.append(replace(op, time_ns=known[signature]))
    return replace(counted, ops=tuple(ops), costs=Costs(model="measured", device=this_device(device)))


def is_view(op: Op, tensors: Mapping[str, Tensor]) -> bool:
    """Whether every result of `op` lies in the storage of an earlier tensor, which it leaves unchanged."""
    results = [tensors[key] for key in op.outputs if key is not None]
    return bool(results) and not op.mutates and all(tensor.alias_of is not None for tensor in results)


def this_device(device: str = "cpu") -> str:
    """What measurements run on: the name of the CUDA device, or the CPU and with how many threads."""
    if device != "cpu":
        return torch.cuda.get_device_name(device)
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as stream:
            names = [line.partition(":")[2].strip() for line in stream if line.startswith("model name")]
    except OSError:
        names = []
    return f"{names[0] if names else 'CPU'}, {torch.get_num_threads()} threads"


def _layout(tensor: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if tensor.shape is None or tensor.stride is None:
        raise InputError(f"tensor {tensor.id!r} has no shape and stride; only captured traces can be counted")
    return tensor.shape, tensor.stride


def _dtype(tensor: Tensor) -> torch.dtype:
    dtype = decode({"dtype": tensor.dtype}, {})
    assert isinstance(dtype, torch.dtype)
    return dtype


_ATTENTION: dict[str, tuple[Callable[..., Any], int]] = {
    "aten._scaled_dot_product_flash_attention_for_cpu.default": (sdpa_flop_count, 3),
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": (sdpa_backward_flop_count, 4),
}
"""Attention that PyTorch's registry lacks: a formula over the shapes of the first so many arguments."""


def _flops(op: Op, shadows: Mapping[str, torch.Tensor]) -> int | None:
    if op.args is None:
        raise InputError(f"op {op.id!r} has no recorded arguments; only captured traces can be counted")
    if op.target in _ATTENTION:
        formula, count = _ATTENTION[op.target]
        return int(formula(*(decode(tree, shadows).shape for tree in op.args[:count])))
    registered = flop_registry.get(operator(op.target).overloadpacket)
    if registered is None:
        return None
    results = [shadows[key] if key is not None else None for key in op.outputs]
    arguments = [decode(tree, shadows) for tree in op.args]
    named = {key: decode(tree, shadows) for key, tree in (op.kwargs or {}).items()}
    return int(registered(*arguments, **named, out_val=results[0] if len(results) == 1 else tuple(results)))


_LOOKUPS = ("aten.embedding.", "aten.index.", "aten.gather.", "aten.index_select.")
_READS_NOTHING = ("aten.zeros_like.", "aten.ones_like.", "aten.full_like.", "aten.empty_like.", "aten.new_")


def _bytes_moved(op: Op, tensors: Mapping[str, Tensor]) -> int:
    written = sum(_touched(tensors[key], tensors) for key in (*op.outputs, *op.mutates) if key is not None)
    if op.target.startswith(_READS_NOTHING):
        return written
    read = [_touched(tensors[key], tensors) for key in op.inputs]
    if op.target.startswith(_LOOKUPS):
        read[0] = min(read[0], written)
    return written + sum(read)


def _touched(tensor: Tensor, tensors: Mapping[str, Tensor]) -> int:
    """Bytes behind the tensor's elements: an expanded one is smaller in memory than it looks."""
    shape, stride = _layout(tensor)
    distinct = math.prod(size for size, step in zip(shape, stride, strict=True) if step or size == 0)
    return distinct * _dtype(tensor).itemsize


def _roofline_ns(op: Op, tensors: Mapping[str, Tensor], device: Device, name: str, place: int) -> int:
    if device.memory_bandwidth is None:
        raise InputError(
            "found nothing, expected bytes per second, which modelled times need; measure the device or use --measure",
            where=name,
            path=f"$.devices[{place}].memory_bandwidth",
        )
    seconds = (op.bytes_moved or 0) / device.memory_bandwidth
    kinds = (tensors[key].dtype for key in (*op.outputs, *op.inputs) if key)
    dtype = next((kind for kind in kinds if kind in _FLOATS), None)
    if op.flops and dtype is not None:  # profiles have no rates of integer arithmetic
        peak = device.peak_flops.get(dtype)
        if peak is None:
            raise InputError(
                f"found rates for {', '.join(sorted(device.peak_flops)) or 'no dtype'}, expected one for {dtype} "
                f"({op.target})",
                where=name,
                path=f"$.devices[{place}].peak_flops",
            )
        seconds = max(seconds, op.flops / peak)
    return math.ceil(seconds * 1e9 + device.launch_us * 1e3)


_FLOATS = {"float64", "float32", "bfloat16", "float16", "complex64", "complex128"}


def _signature(op: Op, tensors: Mapping[str, Tensor]) -> str:
    def shaped(tree: Any) -> Any:
        if isinstance(tree, list | tuple):
            return [shaped(item) for item in tree]
        if isinstance(tree, dict) and "tensor" in tree:
            tensor = tensors[tree["tensor"]]
            return [tensor.dtype, *_layout(tensor)]
        return tree

    return json.dumps(
        [op.target, shaped(op.args), {k: shaped(v) for k, v in (op.kwargs or {}).items()}], sort_keys=True
    )


def _measure_ns(op: Op, tensors: Mapping[str, Tensor], where: str, device: str) -> int:
    generator = torch.Generator(device).manual_seed(0)
    values = {key: _sample(tensors[key], generator) for key in op.inputs}
    finish = torch.cuda.synchronize if device != "cpu" else lambda: None
    times: list[int] = []
    try:
        call(op, values)
        finish()
        while len(times) < MIN_REPEATS or (len(times) < MAX_REPEATS and sum(times) < ENOUGH_SECONDS * 1e9):
            start = time.perf_counter_ns()
            call(op, values)
            finish()
            times.append(time.perf_counter_ns() - start)
    except (RuntimeError, NotImplementedError, IndexError, ValueError) as error:
        text = " ".join(str(error).split())
        raise InputError(f"op {op.id!r} ({op.target}) cannot be measured here: {text[:300]}", where=where) from error
    return round(statistics.median(times))


def _sample(tensor: Tensor, generator: torch.Generator) -> torch.Tensor:
    """Numbers between 0 and 1 in the tensor's own layout, zeros for integers and booleans."""
    shape, stride = _layout(tensor)
    dtype = _dtype(tensor)
    reach = 0 if 0 in shape else 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    if dtype.is_floating_point:
        drawn = dtype if dtype.itemsize >= 4 else torch.float32
        flat = torch.rand(reach, generator=generator, dtype=drawn, device=generator.device).to(dtype)
    else:
        flat = torch.zeros(reach, dtype=dtype, device=generator.device)
    return flat.as_strided(shape, stride)
