"""Summary of a trace: what takes the time, what takes the memory, and where it peaks."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from treadle.planner.documents.trace import Trace
from treadle.planner.graph.liveness import RESIDENT, sweep


def summarize(trace: Trace, top: int) -> dict[str, Any]:
    """Plain values under `trace`, `operators`, `tensors` and `peak`; lists hold at most `top` entries.

    Values that the trace lacks are None. Bytes are storages, counted once. The step is the one of the ops' own calls:
    optional ops and other implementations are only counted.
    """
    choices = {
        "implementations": sum(len(op.implementations) for op in trace.ops),
        "optional_ops": sum(op.intermediate_of is not None for op in trace.ops),
    }
    trace = own_calls(trace)
    return {
        "trace": _overview(trace) | choices,
        "operators": [] if trace.source == "memory-snapshot" else _operators(trace)[:top],
        "tensors": _tensors(trace)[:top],
        "peak": _peak(trace, top),
    }


def own_calls(trace: Trace) -> Trace:
    """`trace` without optional ops and what they make."""
    optional = {key for op in trace.ops if op.intermediate_of is not None for key in op.outputs}
    return replace(
        trace,
        ops=tuple(op for op in trace.ops if op.intermediate_of is None),
        tensors=tuple(tensor for tensor in trace.tensors if tensor.id not in optional),
    )


def _overview(trace: Trace) -> dict[str, Any]:
    live = sweep(trace)
    by_role: Counter[str] = Counter()
    for tensor in trace.tensors:
        by_role[tensor.role] += live.sizes.get(tensor.id, 0)
    parameters = [tensor for tensor in trace.tensors if tensor.role == "parameter"]
    known = all(tensor.shape is not None for tensor in parameters)
    return {
        "name": trace.name,
        "mode": trace.mode,
        "source": trace.source,
        "costs": trace.costs.model,
        "device": trace.costs.device,
        "ops": dict(sorted(Counter(op.phase for op in trace.ops).items())),
        "tensors": len(trace.tensors),
        "parameters": sum(math.prod(tensor.shape or ()) for tensor in parameters) if parameters and known else None,
        "gradients": len(trace.gradient_order),
        "bytes": {role: size for role, size in sorted(by_role.items()) if size},
        "flops": _sum(op.flops for op in trace.ops),
        "bytes_moved": _sum(op.bytes_moved for op in trace.ops),
        "time_ns": _sum(op.time_ns for op in trace.ops),
        "collectives": _collectives(trace),
    }


def _collectives(trace: Trace) -> list[dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for op in trace.ops:
        if op.comm:
            name = str(op.comm.get("collective"))
            row = rows.setdefault(name, {"collective": name, "calls": 0, "bytes": 0, "time_ns": 0})
            row["calls"] += 1
            row["bytes"] += op.comm.get("bytes") or 0
            row["time_ns"] += op.time_ns or 0
    return [rows[name] for name in sorted(rows)]


def _operators(trace: Trace) -> list[dict[str, Any]]:
    """One row for each operator, by time where times are known, else by FLOPs and bytes moved."""
    groups: defaultdict[str, list[Any]] = defaultdict(list)
    for op in trace.ops:
        groups[op.target].append(op)
    rows = [
        {
            "operator": target,
            "calls": len(ops),
            "time_ns": _sum(op.time_ns for op in ops),
            "flops": _sum(op.flops for op in ops),
            "bytes_moved": _sum(op.bytes_moved for op in ops),
        }
        for target, ops in groups.items()
    ]
    return sorted(rows, key=lambda r: (*(-(r[key] or 0) for key in ("time_ns", "flops", "bytes_moved")), r["operator"]))


def _tensors(trace: Trace) -> list[dict[str, Any]]:
    """One row for each storage, largest first."""
    sizes = sweep(trace).sizes
    maker = {tensor: op.target for op in trace.ops for tensor in op.outputs}
    rows = [
        {
            "tensor": tensor.id,
            "role": tensor.role,
            "bytes": sizes[tensor.id],
            "shape": tensor.shape,
            "dtype": tensor.dtype,
            "origin": tensor.name or maker.get(tensor.id),
        }
        for tensor in trace.tensors
        if tensor.id in sizes
    ]
    return sorted(rows, key=lambda row: (-row["bytes"], row["tensor"]))


def _peak(trace: Trace, top: int) -> dict[str, Any] | None:
    """None where no size is known."""
    live = sweep(trace)
    if live.peak_op is None or not live.sizes:
        return None
    op = trace.ops[live.peak_op]
    tensors = {tensor.id: tensor for tensor in trace.tensors}
    alive = live.live_at(live.peak_op)
    resident: Counter[str] = Counter()
    for key, size in live.sizes.items():
        if tensors[key].role in RESIDENT:
            resident[tensors[key].role] += size
    for key in alive:
        resident[tensors[key].role] += live.sizes.get(key, 0)
    return {
        "bytes": live.peak,
        "op": op.id,
        "operator": op.target,
        "phase": op.phase,
        "place": live.peak_op,
        "by_role": {role: size for role, size in sorted(resident.items()) if size},
        "largest": [{"tensor": key, "bytes": live.sizes.get(key), "shape": tensors[key].shape} for key in alive[:top]],
        "unknown_sizes": live.unknown,
        "curve": list(live.during),
        **({"lines": _lines(trace, alive, live.sizes)[:top]} if trace.source == "memory-snapshot" else {}),
    }


def _lines(trace: Trace, alive: list[str], sizes: Mapping[str, int]) -> list[dict[str, Any]]:
    """The lines that allocated what is `alive`, with the blocks and bytes of each, the most bytes first."""
    maker = {tensor: op.target for op in trace.ops for tensor in op.outputs}
    rows: dict[str, dict[str, Any]] = {}
    for key in alive:
        row = rows.setdefault(maker[key], {"line": maker[key], "blocks": 0, "bytes": 0})
        row["blocks"] += 1
        row["bytes"] += sizes[key]
    return sorted(rows.values(), key=lambda row: (-row["bytes"], row["line"]))


def _sum(values: Any) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
