"""A cluster of Dask for programs of the target `dask`: processes of this machine, or one that runs already.

What workers receive from each other is read from their own records of transfers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from treadle.planner.errors import CheckFailed, InputError, LimitError, MissingBackendError
from treadle.runtime.tiling.tasks import Array

SETTINGS = {
    "optimization.fuse.active": False,  # fused tasks lose the worker that they prefer
    "array.rechunk.method": "tasks",
    "distributed.scheduler.work-stealing": False,  # as would those of a thief
    "distributed.worker.memory.terminate": False,
    "distributed.scheduler.no-workers-timeout": "30s",  # once all workers have died, tasks wait for their old names
}
CONNECT_SECONDS = 30


@dataclass(frozen=True)
class ClusterRun:
    """Results by name; what each worker received from others, bytes, by the names of workers."""

    outputs: dict[str, Array]
    received_bytes: dict[str, int]


@contextmanager
def cluster(workers: int, memory_bytes: int | None = None) -> Iterator[Any]:
    """A client of a cluster with one single-threaded process for each worker, or of that at DASK_SCHEDULER.

    Raises MissingBackendError without Dask, InputError for a scheduler that does not answer or has too few workers.
    """
    try:
        import dask
        from distributed import Client, LocalCluster
    except ImportError as error:
        raise MissingBackendError("Dask is not installed; run: pip install 'treadle[dask]'") from error
    with dask.config.set(SETTINGS):
        if address := os.environ.get("DASK_SCHEDULER"):
            try:
                client = Client(address, timeout=CONNECT_SECONDS)
            except (OSError, ValueError) as error:
                raise InputError(
                    f"no scheduler of Dask answers at {address}: {error}", where="DASK_SCHEDULER"
                ) from None
            with client:
                if (found := len(client.scheduler_info(n_workers=-1)["workers"])) < workers:
                    raise InputError(f"found {found} workers, expected {workers}", where="DASK_SCHEDULER")
                yield client
            return
        limit = memory_bytes if memory_bytes is not None else "auto"
        with (
            LocalCluster(
                n_workers=workers, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=None,
                memory_limit=limit, silence_logs=50,
            ) as local,
            Client(local) as client,
        ):  # fmt: skip
            yield client


DaskProgram = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def run_on(client: Any, program: DaskProgram, values: Mapping[str, Any], timeout: float | None = None) -> ClusterRun:
    """Run a generated program on a cluster, and fetch its results.

    Raises CheckFailed where a task failed or killed its workers, LimitError after `timeout` seconds.
    """
    from distributed import KilledWorker, wait
    from distributed.client import futures_of
    from distributed.scheduler import NoValidWorkerError

    from treadle.runtime.tiling.dask_tiles import names_of_workers

    info = client.scheduler_info(n_workers=-1)["workers"]
    with names_of_workers([worker["name"] for worker in sorted(info.values(), key=lambda each: str(each["name"]))]):
        tiled = program(values)
    before = received_by(client)
    parts = [part for array in tiled.values() for each in _with_rows(array) for part in each.parts if part is not None]
    kept = client.persist(parts)
    futures = futures_of(kept)
    try:
        wait(futures, timeout)
    except TimeoutError:
        raise LimitError(f"the workers of Dask did not finish within {timeout:g} s") from None
    try:
        blocks = dict(zip([future.key for future in futures], client.gather(futures), strict=True))
    except (KilledWorker, NoValidWorkerError):
        raise CheckFailed("the workers of Dask died each time they ran a task of the program") from None
    except Exception as error:
        text = " ".join(str(error).split())
        raise CheckFailed(f"the program failed on Dask: {type(error).__name__}: {text}") from None
    received = {name: count - before.get(name, 0) for name, count in received_by(client).items()}
    return ClusterRun({name: _whole(array, blocks) for name, array in tiled.items()}, received)


def _with_rows(array: Any) -> list[Any]:
    """An array, and the rows that count of it."""
    return [array] if array.valid is None else [array, array.valid]


def _whole(array: Any, blocks: Mapping[Any, Array]) -> Array:
    """The array from its chunks."""
    made = np.empty(array.shape, array.dtype)
    for region, part in zip(array.regions, array.parts, strict=True):
        if region is None:
            continue
        bounds: tuple[Any, ...] = (*(slice(*each) for each in region), ...)
        tile = made[bounds]
        for place in np.ndindex(part.numblocks):
            where = tuple(
                slice(sum(sizes[:at]), sum(sizes[: at + 1])) for sizes, at in zip(part.chunks, place, strict=True)
            )
            tile[where] = blocks[(part.name, *place)]
    return made if array.valid is None else made[_whole(array.valid, blocks)]


def received_by(client: Any) -> dict[str, int]:
    """Bytes that each worker has received from others so far."""
    found = client.run(_incoming)
    return {str(name): count for name, count in found.values()}


def _incoming(dask_worker: Any) -> tuple[str, int]:
    return dask_worker.name, sum(each["total"] for each in dask_worker.transfer_incoming_log)
