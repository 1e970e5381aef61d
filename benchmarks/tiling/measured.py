"""Programs of arrays by PyTorch's collectives on four processes: the time of a run under each tiling, next to that
predicted from the measured costs of transfers and calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace
from torch import Tensor, distributed
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import treadle.array as ta
from benchmarks.common import Row, Table, machine, progress
from benchmarks.tiling.moves import PROGRAMS, WORKERS, tiled
from benchmarks.tiling.turns import by_first
from treadle.codegen.tiling.dtensor_array import program_text
from treadle.planner.errors import TreadleError
from treadle.planner.passes.tiling.decisions import TilingDecisions
from treadle.planner.passes.tiling.planning import plan_tiling
from treadle.planner.passes.tiling.problem import MeshAxis, TilingProblem
from treadle.planner.passes.tiling.redistribution import divides
from treadle.planner.search.clock import Clock
from treadle.runtime.launch import launch
from treadle.runtime.tiling.dtensor import ArrayMesh
from treadle.runtime.tiling.filled import filled
from treadle.runtime.tiling.measured import axes_of, axis_points
from treadle.runtime.tiling.reference import by_numpy

SIZES: Mapping[str, dict[str, int]] = {
    "products": {"size": 768, "width": 64},
    "linear regression": {"samples": 200_000},
    "logistic regression": {"samples": 200_000},
    "ALS": {"users": 2000, "items": 1200},
    "SSVD": {"rows": 8000, "columns": 400, "rank": 8, "extra": 0},
    "Jacobi": {"size": 1600},
    "PageRank": {"pages": 1600},
    "conjugate gradient": {"size": 800},
}
"""k-means is not there: most of its plans take a part of rows that are cut, which DTensor does not."""
LENGTHS = (4 * 1024, 64 * 1024, 512 * 1024, 2 * 1024 * 1024, 8 * 1024 * 1024)
"""Bytes of the transfers that are measured."""
VIEWS = ("slice", "swapaxis")
"""They take no time."""
LEAST = "least bytes"
SETTLE, TURNS, SECONDS = 1, 4, 10.0
WITHIN, EXACT = 0.15, 1e-9
Arrays = dict[str, np.ndarray[Any, Any]]
Made = dict[str, tuple[TilingDecisions, str]]


def tables() -> Iterator[Table]:
    """Time of programs under planned, greedy, all-row, all-column and worst tilings on 4 processes, and predicted."""
    progress("time of programs, four processes")
    found = launch(WORKERS, worker, (tuple(SIZES),))[0]
    notes = (
        "time of the slowest process, medians in turns; arrays are drawn before; - where tilings do not run",
        f"p/m: predicted over measured; others: the tiling for which it is furthest from 1; {machine()}",
        "planned: for least time, and drawn arrays may be whole on each worker; least bytes: by the model exact",
        "arrays that a tiling cuts in blocks or unevenly are left to the planner",
    )
    yield Table(f"A run, {WORKERS} processes, gloo", [row_of(name, each) for name, each in found.items()], notes)


def row_of(name: str, found: dict[str, Any]) -> Row:
    """Measured times over that of the plan, and predicted times over measured ones."""
    seconds, predicted = found["seconds"], found["predicted"]
    row: Row = {"program": name, "planned ms": 1e3 * seconds["planned"]}
    row |= {f"{kind}, x": seconds[kind] / seconds["planned"] if kind in seconds else None for kind in found["kinds"]}
    ratios = {kind: predicted[kind] / seconds[kind] for kind in predicted}
    furthest = max(ratios, key=lambda kind: abs(np.log(ratios[kind])))
    row |= {"predicted ms": 1e3 * predicted["planned"], "p/m": ratios["planned"]}
    row["within 15 %"] = "yes" if abs(ratios["planned"] - 1) <= WITHIN else "MISSED"
    return row | {"others p/m": ratios[furthest], "of": furthest, "same": "yes" if found["same"] else "MISSED"}


def worker(rank: int, world: int, names: tuple[str, ...]) -> dict[str, Any]:
    """For `launch`."""
    torch.set_num_threads(1)
    (axis,) = axes_of((world,), axis_points((world,), LENGTHS))
    return {name: measured(partial(PROGRAMS[name], **SIZES[name]), axis) for name in names}


def measured(program: Callable[[], Any], axis: MeshAxis) -> dict[str, Any]:
    """Seconds of a run of each tiling, those predicted, and whether all had the results of NumPy."""
    graph = replace(ta.capture(program), mesh=(axis,), model="time")
    arrays = {array.id: array for array in graph.arrays}
    given = {
        out: filled(arrays[out].shape, arrays[out].dtype, None, node.params)
        for node in graph.nodes
        for out in node.outputs
        if node.operator in ("newarray", "value")
    }
    world = init_device_mesh("cpu", (axis.size,), mesh_dim_names=("x0",))
    mesh, wanted = TimedMesh(world), by_numpy(graph, given)
    problem = with_work(graph, given, mesh)
    plans = by_first(lambda: made(problems(problem)))
    seconds, results = in_turns(mesh, plans, given)
    return {
        "seconds": seconds,
        "predicted": {kind: plan.time_ns / 1e9 for kind, (plan, _) in plans.items()},
        "kinds": (LEAST, "greedy", "rows", "columns", "worst"),
        "call_us": problem.call_ns / 1e3,
        "same": all(_near(wanted[name], each) for made in results.values() for name, each in made.items()),
    }


class TimedMesh(ArrayMesh):
    """Makes tiles of given arrays once, and notes when each result was there."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__(mesh)
        self.marks: list[float] = []
        self.tiles: dict[Any, Tensor] = {}

    def filled(self, node: Any, array: str, shape: Any, tiling: Any, values: Any) -> Tensor:
        key = (array, *tiling)
        if key not in self.tiles:
            self.tiles[key] = super().filled(node, array, shape, tiling, values)
        return self.tiles[key]

    def made(self, tile: Tensor, shape: list[int]) -> None:
        super().made(tile, shape)
        self.marks.append(time.perf_counter())


def with_work(problem: TilingProblem, given: Arrays, mesh: TimedMesh) -> TilingProblem:
    """The problem with the time of each call on whole arrays, while all processes run it. The shortest call is what
    the runtime takes for any."""
    whole_on_each = fixed(problem, {array.id: ("R",) for array in problem.arrays})
    (_, text), names, turns = made({"uncut": whole_on_each})["uncut"], dict[str, Any](), []
    exec(compile(text, "uncut", "exec"), names)
    for _ in range(SETTLE + TURNS):
        distributed.barrier()
        mesh.marks = [time.perf_counter()]
        names["run"](mesh, given)
        turns.append(np.diff(mesh.marks))
    times = np.median(turns[SETTLE:], axis=0)
    work = iter(np.round(1e9 * (times - times.min())).astype(int).tolist())
    nodes = tuple(node if node.operator in VIEWS else replace(node, work_ns=next(work)) for node in problem.nodes)
    return replace(problem, nodes=nodes, call_ns=round(1e9 * times.min()))


def problems(problem: TilingProblem) -> dict[str, TilingProblem]:
    """The problem, and it with the tilings of each method fixed: then only how operators read them is chosen."""
    plans = tiled(replace(problem, model="exact"))
    tilings = {
        kind: {array.id: tiling for array, tiling in zip(problem.arrays, plan.tilings, strict=True)}
        for kind, plan in plans.items()
        if kind != "blocks"
    }
    least = fixed(problem, tilings.pop("planned"))
    return {"planned": problem, LEAST: least, **{kind: fixed(problem, each) for kind, each in tilings.items()}}


def fixed(problem: TilingProblem, tilings: Mapping[str, tuple[str, ...]]) -> TilingProblem:
    """With these tilings, where tiles are even."""
    sizes = tuple(axis.size for axis in problem.mesh)

    def even(shape: tuple[int, ...], tiling: tuple[str, ...]) -> bool:
        return tiling[0][0] in "SR" and divides(tiling, shape, sizes)

    return replace(
        problem,
        arrays=tuple(
            replace(array, fixed=tilings[array.id] if even(array.shape, tilings[array.id]) else None)
            for array in problem.arrays
        ),
    )


def made(problems: Mapping[str, TilingProblem]) -> Made:
    """The plan of each problem and its generated program, of those that DTensor runs."""
    found: Made = {}
    for kind, problem in problems.items():
        try:
            plan = plan_tiling(problem, clock=Clock.of(SECONDS)).decisions
            found[kind] = plan, program_text(plan)
        except TreadleError as error:
            progress(f"{problem.name}, {kind}: {error}")
    return found


def in_turns(mesh: TimedMesh, plans: Made, given: Arrays) -> tuple[dict[str, float], dict[str, Arrays]]:
    """Median seconds of a run of each program, of the slowest process, and its results."""
    runs: dict[str, Any] = {}
    for kind, (_, text) in plans.items():
        runs[kind] = {}
        exec(compile(text, kind, "exec"), runs[kind])
    times: dict[str, list[float]] = {kind: [] for kind in plans}
    results: dict[str, Arrays] = {}
    for turn in range(SETTLE + TURNS):
        for kind, names in runs.items():
            distributed.barrier()
            start = time.perf_counter()
            tiles: dict[str, Tensor] = names["run"](mesh, given)
            spent = torch.tensor([time.perf_counter() - start])
            distributed.all_reduce(spent, distributed.ReduceOp.MAX)
            if turn >= SETTLE:
                times[kind].append(float(spent))
            if not turn:
                wholes = {name: mesh.whole(tile, names["OUTPUTS"][name]) for name, tile in tiles.items()}
                results[kind] = {name: each.numpy() for name, each in wholes.items()}
    return {kind: median(each) for kind, each in times.items()}, results


def _near(one: Any, other: Any) -> bool:
    return bool(np.allclose(one, other, rtol=EXACT, atol=EXACT * max(1.0, float(np.abs(one).max(initial=0)))))
