"""What the transfers of tilings cost between processes of this machine or job, measured by the calls that run them.

Costs of links predict rings of messages; a runtime has costs of its own (gloo copies, reduces on the CPU, and wakes a
thread for each call), which decide where messages are small. Each transfer is timed at several sizes along each axis of
the mesh, all groups along it at once as in a step, and fitted by a line: alpha + bytes / rate.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor, distributed
from torch.distributed.device_mesh import init_device_mesh

from treadle.planner.passes.tiling.problem import AxisTransfer, MeshAxis, TransferCost
from treadle.runtime.launch import launch
from treadle.runtime.tiling.collectives import Mesh

SIZES = (4 * 1024, 64 * 1024, 1024 * 1024, 4 * 1024 * 1024, 16 * 1024 * 1024)
"""Bytes in all of a group."""
WARM_REPEATS, REPEATS, FEWEST_REPEATS = 5, 9, 3
MOST_SECONDS = 6.0
"""For all points together; on a busy machine each is repeated less often."""
TRANSFERS: tuple[AxisTransfer, ...] = ("allgather", "reduce-scatter", "allreduce", "alltoall")
Point = tuple[int, float]
"""Bytes, and seconds."""


def measured_axes(sizes: Sequence[int], *, fraction: float = 1.0, timeout: float | None = None) -> tuple[MeshAxis, ...]:
    """Axes x0, x1, ... of these sizes with the costs that processes over gloo on this machine have. `fraction` of the
    usual sizes are sent. Raises what `launch` raises."""
    lengths = sorted({max(1024, int(size * fraction)) for size in SIZES})
    return axes_of(sizes, launch(prod(sizes), _worker, (tuple(sizes), lengths), timeout)[0])


def axes_of(sizes: Sequence[int], points: Sequence[Mapping[AxisTransfer, Sequence[Point]]]) -> tuple[MeshAxis, ...]:
    """Axes x0, x1, ... with the costs that fit the points of each."""
    return tuple(
        MeshAxis(name=f"x{place}", size=size, costs=fitted(points[place]) if size > 1 else ())
        for place, size in enumerate(sizes)
    )


def fitted(points: Mapping[AxisTransfer, Sequence[Point]]) -> tuple[TransferCost, ...]:
    """The line of each transfer that has the least squares of relative differences; alpha and slope are at least 0."""
    return tuple(_line(transfer, points[transfer]) for transfer in TRANSFERS)


def _line(transfer: AxisTransfer, points: Sequence[Point]) -> TransferCost:
    sizes, times = np.array(points, dtype=float).T
    (alpha, slope), _ = nnls(np.column_stack([1 / times, sizes / times]), np.ones(len(times)))
    return TransferCost(transfer=transfer, alpha_ns=round(alpha * 1e9), rate=max(1, round(1 / max(slope, 1e-15))))


def _worker(rank: int, world: int, sizes: tuple[int, ...], lengths: list[int]) -> list[dict[AxisTransfer, list[Point]]]:
    return axis_points(sizes, lengths)


def axis_points(sizes: Sequence[int], lengths: Sequence[int]) -> list[dict[AxisTransfer, list[Point]]]:
    """What transfers of these bytes take along each axis, on a mesh of all processes of the group, which all call
    this; the same on each of them."""
    mesh = Mesh(init_device_mesh("cpu", tuple(sizes)))
    cut = [axis for axis, size in enumerate(sizes) if size > 1]
    points: list[dict[AxisTransfer, list[Point]]] = [{} for _ in sizes]
    left, end = len(cut) * len(TRANSFERS) * len(lengths), time.monotonic() + MOST_SECONDS
    for axis in cut:
        for transfer in TRANSFERS:
            points[axis][transfer] = []
            for length in lengths:
                until = time.monotonic() + max(0.0, end - time.monotonic()) / left
                points[axis][transfer].append(_point(mesh, axis, transfer, length, until))
                left -= 1
    return points


def _point(mesh: Mesh, axis: int, transfer: AxisTransfer, size: int, until: float) -> Point:
    """The median time of the slowest worker for a transfer of about `size` bytes, from as many as end before `until`
    on the monotonic clock."""
    workers = mesh.sizes[axis]
    edge = max(1, round((size / 4) ** 0.5 / workers)) * workers
    whole = torch.ones(edge, edge)
    call = _calls(mesh, axis, whole)[transfer]
    times: list[float] = []
    while len(times) < WARM_REPEATS + REPEATS and not agreed(len(times) > FEWEST_REPEATS and time.monotonic() > until):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    slowest = torch.tensor(times[min(WARM_REPEATS, len(times) - FEWEST_REPEATS) :])
    distributed.all_reduce(slowest, distributed.ReduceOp.MAX)
    return whole.numel() * whole.element_size(), statistics.median(slowest.tolist())


def agreed(wanted: bool) -> bool:
    """Whether one of the processes wants it; all of them wait for each other here."""
    flag = torch.tensor([float(wanted)])
    distributed.all_reduce(flag, distributed.ReduceOp.MAX)
    distributed.barrier()
    return bool(flag.item())


def _calls(mesh: Mesh, axis: int, whole: Tensor) -> dict[AxisTransfer, Callable[[], Any]]:
    part = mesh.part(whole, axis, 0)
    return {
        "allgather": lambda: mesh.allgather(part, axis, 0),
        "reduce-scatter": lambda: mesh.reduce_scatter(whole, axis, 0),
        "allreduce": lambda: mesh.allreduce(whole, axis),
        "alltoall": lambda: mesh.alltoall(part, axis, 0, 1),
    }
