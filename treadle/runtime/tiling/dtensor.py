"""A program of arrays run under its tiling plan by one process per worker, next to NumPy."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.debug import CommDebugMode

from treadle.codegen.python_form import require_form
from treadle.planner.documents.plan import Plan
from treadle.planner.passes.tiling.decisions import TilingDecisions
from treadle.runtime.launch import launch
from treadle.runtime.tiling.collectives import Mesh, counts_of, unplanned
from treadle.runtime.tiling.filled import filled
from treadle.runtime.tiling.functions import NamedCall, called
from treadle.runtime.tiling.reference import compared

TARGET = "dtensor"
WARM_RUNS, TIMED_RUNS = 5, 9
"""The first runs wait for the allocator to keep memory that it gave back before."""
Arrays = Mapping[str, np.ndarray[Any, Any]]


class ArrayMesh(Mesh):
    """A mesh that also makes tiles and applies functions by name."""

    def filled(
        self, node: dict[str, Any], array: str, shape: Sequence[int], tiling: Sequence[str], values: Arrays
    ) -> Tensor:
        """This worker's tile of a new array, or of the one in `values`."""
        region = self.region(shape, tiling)
        if array in values:
            tile = values[array][tuple(slice(*part) for part in region)].astype(node["dtype"])
        else:
            tile = filled(tuple(shape), node["dtype"], region, node["params"])
        return torch.from_numpy(np.ascontiguousarray(tile).reshape([stop - start for start, stop in region]))

    def called(self, node: dict[str, Any], *tiles: Tensor) -> Tensor:
        """The function of `node` on tiles, as NumPy computes it."""
        call = NamedCall(node["function"], node["params"], node["operator"], tuple(node["axes"]))
        made = called(call, [tile.numpy() for tile in tiles], node["dtype"])
        return torch.from_numpy(np.ascontiguousarray(made).reshape(made.shape))

    def region(self, shape: Sequence[int], tiling: Sequence[str]) -> list[tuple[int, int]]:
        """The part of an array of `shape` that this worker has."""
        region = [(0, size) for size in shape]
        for axis, placement in enumerate(tiling):
            if placement.startswith("S"):
                cut = int(placement[1])
                start, stop = region[cut]
                part = (stop - start) // self.sizes[axis]
                first = start + part * self.coordinate[axis]
                region[cut] = (first, first + part)
        return region


def run_arrays(
    plan: Plan[TilingDecisions], text: str, *, values: Arrays | None = None, timeout: float | None = None
) -> dict[str, Any]:
    """Run the generated `text` on as many processes as the mesh has workers, and NumPy on whole arrays here.

    Returned: `arrays`, each result's largest difference relative to its largest value, `collectives` planned and
    counted on each worker, `time_ns` planned and measured (the slowest worker, median), and `findings`, a sentence for
    each promise that did not hold. Raises what `launch` raises, so also where a worker dies.
    """
    problem = plan.decisions.problem
    world = prod(axis.size for axis in problem.mesh)
    workers = launch(world, _worker, (text, dict(values or {})), timeout)
    arrays, findings = compared(problem, workers[0]["results"], values or {})
    planned = workers[0]["planned"]
    findings += unplanned(planned, workers)
    return {
        "world": world,
        "mesh": workers[0]["mesh"],
        "arrays": arrays,
        "collectives": {"planned": planned, "counted": workers[0]["counted"]},
        "moved_bytes": plan.decisions.moved_bytes,
        "time_ns": {
            "planned": plan.decisions.time_ns,
            "measured": round(max(each["seconds"] for each in workers) * 1e9),
        },
        "findings": findings,
    }


def _worker(rank: int, world: int, text: str, values: dict[str, Any]) -> dict[str, Any]:
    require_form(TARGET, text, "the program")
    names: dict[str, Any] = {}
    exec(compile(text, "<treadle program>", "exec"), names)
    axes, sizes = zip(*names["MESH"], strict=True)
    mesh = ArrayMesh(init_device_mesh("cpu", sizes, mesh_dim_names=axes))
    counting = CommDebugMode()
    with counting:
        tiles = names["run"](mesh, values)
    times = []
    for _ in range(WARM_RUNS + TIMED_RUNS):
        distributed.barrier()
        start = time.perf_counter()
        names["run"](mesh, values)
        times.append(time.perf_counter() - start)
    wholes = {name: mesh.whole(tile, names["OUTPUTS"][name]).numpy() for name, tile in tiles.items()}
    return {
        "results": wholes if rank == 0 else {},
        "planned": names["COLLECTIVES"],
        "mesh": list(sizes),
        "counted": counts_of(counting),
        "seconds": statistics.median(times[WARM_RUNS:]),
    }
