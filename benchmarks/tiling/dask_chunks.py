"""Programs as a user of Dask writes them, in chunks of its own choice, next to the plan's chunks on the same cluster.

Dask cuts an array into chunks of 128 MiB. Arrays here are smaller, and so are its chunks: a quarter of an array each,
so that all workers have one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any, NamedTuple

import dask
import dask.array as da
import numpy as np
from distributed import Client, LocalCluster
from msgspec.structs import replace

import treadle.array as ta
from benchmarks.common import Row, Table, machine, progress
from benchmarks.tiling.moves import SECONDS, WORKERS
from examples.tiling import conjugate_gradient, jacobi, kmeans, linear_regression
from treadle.codegen.tiling.dask_program import FILE_NAME, dask_program
from treadle.planner.passes.tiling.planning import plan_tiling
from treadle.planner.passes.tiling.problem import MeshAxis
from treadle.planner.search.clock import Clock
from treadle.runtime.tiling.dask_cluster import cluster, received_by, run_on

TURNS = 3
EXACT = 1e-9


class DaskCase(NamedTuple):
    """A function of arrays and plain values; the first array is the largest."""

    function: Callable[..., Any]
    arrays: tuple[np.ndarray[Any, Any], ...]
    more: tuple[Any, ...]


def cases() -> dict[str, DaskCase]:
    """Programs of examples/tiling on larger arrays."""
    drawn = np.random.default_rng(0)
    square, samples = drawn.normal(size=(1600, 1600)), drawn.normal(size=(160_000, 16))
    right, targets = drawn.normal(size=1600), drawn.normal(size=160_000)
    steep = square + 2.0 * 1600 * np.eye(1600)
    return {
        "k-means": DaskCase(kmeans.centred, (samples, samples[:8].copy()), (5,)),
        "linear regression": DaskCase(linear_regression.fitted, (samples, targets), (5, 0.5)),
        "Jacobi": DaskCase(jacobi.solved, (steep, right), (10,)),
        "conjugate gradient": DaskCase(conjugate_gradient.solved, (steep + steep.T, right), (8,)),
    }


def tables() -> Iterator[Table]:
    """Bytes between workers of Dask and time, in chunks of Dask's own choice and of the plan."""
    rows = []
    for name, case in cases().items():
        progress(f"chunks of Dask, {name}")
        rows.append(compared(name, case))
    notes = (
        "received: by the workers' own records of transfers, of one run; time: from the call to the result, with the "
        f"arrays sent to workers; medians of {TURNS} runs on one cluster each",
        f"Dask: the function as it is on arrays with chunks='auto', Dask's default settings; {machine()}",
    )
    yield Table(f"{WORKERS} workers of Dask: its own chunks, and the plan's", rows, notes)


def compared(name: str, case: DaskCase) -> Row:
    wanted = case.function(*case.arrays, *case.more)
    by_dask, by_plan = of_dask(case), of_plan(case)
    scale = EXACT * float(np.abs(wanted).max())
    same = all(np.allclose(found, wanted, rtol=EXACT, atol=scale) for _, _, found in (by_dask, by_plan))
    return {
        "program": name,
        "Dask, MB": by_dask[0] / 1e6,
        "plan, MB": by_plan[0] / 1e6,
        "Dask, x bytes": by_dask[0] / by_plan[0] if by_plan[0] else None,
        "Dask, s": by_dask[1],
        "plan, s": by_plan[1],
        "Dask, x time": by_dask[1] / by_plan[1],
        "same result": "yes" if same else "MISSED",
    }


Found = tuple[float, float, Any]
"""Bytes received and seconds, medians, and the result."""


def of_dask(case: DaskCase) -> Found:
    """The function on arrays of Dask, with its own settings."""
    chunk = case.arrays[0].nbytes // WORKERS
    with (
        dask.config.set({"array.chunk-size": chunk}),
        LocalCluster(n_workers=WORKERS, threads_per_worker=1, host="127.0.0.1", dashboard_address=None) as local,
        Client(local) as client,
    ):

        def run() -> tuple[float, Any]:
            before = sum(received_by(client).values())
            given = [da.from_array(array, chunks="auto") for array in case.arrays]
            made = case.function(*given, *case.more).compute()
            return sum(received_by(client).values()) - before, made

        return _repeated(run)


def of_plan(case: DaskCase) -> Found:
    """The generated program of the plan."""
    graph = ta.capture(
        lambda: case.function(*(ta.normal(x.shape, seed=place) for place, x in enumerate(case.arrays)), *case.more)
    )
    problem = replace(graph, mesh=(MeshAxis(name="x0", size=WORKERS),))
    plan = plan_tiling(problem, clock=Clock.of(SECONDS))
    given = {node.outputs[0]: case.arrays[node.params["seed"]] for node in problem.nodes if node.function == "normal"}
    names: dict[str, Any] = {}
    exec(compile(dask_program(plan, "plan").files[FILE_NAME], FILE_NAME, "exec"), names)
    with cluster(WORKERS) as client:

        def run() -> tuple[float, Any]:
            found = run_on(client, names["program"], given)
            return sum(found.received_bytes.values()), next(iter(found.outputs.values()))

        return _repeated(run)


def _repeated(run: Callable[[], tuple[float, Any]]) -> Found:
    received, seconds, made = [], [], None
    for _ in range(1 + TURNS):
        start = time.perf_counter()
        count, made = run()
        seconds.append(time.perf_counter() - start)
        received.append(count)
    return median(received[1:]), median(seconds[1:]), made
