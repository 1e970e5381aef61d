"""Evaluation of individuals in this process, in others, or on a Dask cluster, with the same results."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from importlib import import_module
from multiprocessing import connection, reduction
from multiprocessing.connection import Connection
from tempfile import TemporaryFile
from typing import Any

from treadle.planner.errors import InputError, MissingBackendError
from treadle.planner.passes.swap.search.individual import Scored, SearchSpace
from treadle.planner.passes.swap.search.tasks import EvaluationTask, all_evaluated, evaluated

Evaluate = Callable[[Sequence[EvaluationTask]], list[list[Scored] | None]]
"""Evaluates tasks; None for those that were not begun when the search was stopped."""
Stop = Callable[[], bool]

SMALL = 300
"""Operators up to which individuals are evaluated here, since sending them elsewhere takes longer."""
SHARES = 4
"""Parts in which each worker's share of the tasks is sent, so that the wait for the last one is short."""
GLANCE_S = 0.1


@contextmanager
def executor(space: SearchSpace, workers: int, where: str | None, stop: Stop) -> Iterator[Evaluate]:
    """A function that evaluates tasks: on `workers` processes, or on the Dask cluster of `where` (dask://HOST:PORT,
    dask://local). Raises InputError for another address and MissingBackendError without Dask."""
    if where is not None:
        with _dask(space, where, workers, stop) as evaluate:
            yield evaluate
    elif workers == 1 or len(space.start.order) <= SMALL:
        yield lambda tasks: _here(space, tasks, stop)
    else:
        with _processes(space, workers, stop) as evaluate:
            yield evaluate


def _here(space: SearchSpace, tasks: Sequence[EvaluationTask], stop: Stop) -> list[list[Scored] | None]:
    return [None if stop() else evaluated(space, task) for task in tasks]


@contextmanager
def _processes(space: SearchSpace, workers: int, stop: Stop) -> Iterator[Evaluate]:
    """Spawned processes rather than forks, since this one may have threads.

    They take seconds to start on a busy machine. Until the first of them answers, tasks are evaluated here; at the end
    they are killed.
    """
    _warm(space)
    context = multiprocessing.get_context("spawn")
    listening, over = context.Pipe(duplex=False)
    others = set(multiprocessing.active_children())
    sent: Any = _InFile(space)
    pool = ProcessPoolExecutor(workers, context, initializer=_begin, initargs=(sent, listening))
    ready = pool.submit(int)

    def evaluate(tasks: Sequence[EvaluationTask]) -> list[list[Scored] | None]:
        here: list[list[Scored] | None] = []
        while len(here) < len(tasks) and not ready.done():
            here += _here(space, tasks[len(here) : len(here) + 1], stop)
        return here + spread(tasks[len(here) :])

    def spread(tasks: Sequence[EvaluationTask]) -> list[list[Scored] | None]:
        parts = _parts(tasks, workers)
        results: list[list[list[Scored]] | None] = [None] * len(parts)
        try:
            futures = {pool.submit(_evaluate_all, part): at for at, part in enumerate(parts)}
            waiting = set(futures)
            while waiting and not stop():
                done, waiting = wait(waiting, GLANCE_S, FIRST_COMPLETED)
                for future in done:
                    results[futures[future]] = future.result()
            for future in waiting:
                future.cancel()
        except BrokenProcessPool:  # a worker was killed or cannot start: the rest is evaluated here
            for at, part in enumerate(parts):
                if results[at] is None and not stop():
                    results[at] = all_evaluated(space, part)
        return _joined(parts, results)

    try:
        yield evaluate
    finally:
        over.close()
        for worker in set(multiprocessing.active_children()) - others:
            worker.kill()
        pool.shutdown(cancel_futures=True)


class _InFile:
    """A space that is sent to a starting process in a file; in the pipe of that process it would not fit, and this one
    would block until the other reads it."""

    def __init__(self, space: SearchSpace) -> None:
        self.file = TemporaryFile()  # noqa: SIM115 (for as long as the pool may start processes)
        pickle.dump(space, self.file)
        self.file.flush()

    def __reduce__(self) -> tuple[Callable[[Any], SearchSpace], tuple[Any]]:
        return _from_file, (reduction.DupFd(self.file.fileno()),)


def _from_file(sent: Any) -> SearchSpace:
    number: int = sent.detach()
    space: SearchSpace = pickle.loads(
        os.pread(number, os.fstat(number).st_size, 0)
    )  # the file position is shared, so it is not used
    os.close(number)
    return space


def _warm(space: SearchSpace) -> None:
    """Compile loops that are not cached yet once, not in every worker."""
    evaluated(space, EvaluationTask((space.start, space.start), (0,)))


_space: SearchSpace | None = None
_over: Connection | None = None


def _begin(space: SearchSpace, over: Connection) -> None:
    """Start a worker, which ignores Ctrl-C, ends with its parent, and begins no task once the other end of `over` is
    closed."""
    global _space, _over
    _space, _over = space, over
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(1)


def _evaluate_all(tasks: list[EvaluationTask]) -> list[list[Scored]]:
    assert _space is not None
    assert _over is not None
    return [evaluated(_space, task) for task in tasks if not _over.poll()]


def dask_address(where: str) -> str:
    """HOST:PORT or local. Raises InputError for what does not begin with dask://."""
    address = where.removeprefix("dask://")
    if address == where or not address:
        raise InputError(f"found {where!r}, expected dask://HOST:PORT or dask://local", where="--executor")
    return address


@contextmanager
def _dask(space: SearchSpace, where: str, workers: int, stop: Stop) -> Iterator[Evaluate]:
    address = dask_address(where)
    try:
        distributed: Any = import_module("distributed")
    except ImportError:
        install = "pip install 'treadle[dask]'"
        raise MissingBackendError(f"--executor needs Dask, which is not installed: {install}") from None
    try:
        if address == "local":
            own = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": None}
            client = distributed.Client(host="127.0.0.1", **own)
        else:
            client = distributed.Client(f"tcp://{address}", timeout=10)
    except (OSError, ValueError) as error:
        raise InputError(f"found no Dask cluster ({error})", where=where) from None
    _warm(space)
    with client:
        held = client.scatter(space, broadcast=True, hash=False)

        def evaluate(tasks: Sequence[EvaluationTask]) -> list[list[Scored] | None]:
            cores = sum(client.nthreads().values()) or 1
            parts = _parts(tasks, cores)
            futures: list[Any] = [client.submit(all_evaluated, held, part, pure=False) for part in parts]
            while not stop() and not all(future.done() for future in futures):
                with suppress(TimeoutError):
                    distributed.wait(futures, timeout=GLANCE_S)
            results = [future.result() if future.done() else None for future in futures]
            client.cancel([future for future in futures if not future.done()])
            return _joined(parts, results)

        yield evaluate


def _parts(tasks: Sequence[EvaluationTask], workers: int) -> list[list[EvaluationTask]]:
    size = max(1, -(-len(tasks) // (workers * SHARES)))
    return [list(tasks[at : at + size]) for at in range(0, len(tasks), size)]


def _joined(
    parts: list[list[EvaluationTask]], results: Sequence[list[list[Scored]] | None]
) -> list[list[Scored] | None]:
    joined: list[list[Scored] | None] = []
    for part, result in zip(parts, results, strict=True):
        joined += [None] * len(part) if result is None else result
    return joined
