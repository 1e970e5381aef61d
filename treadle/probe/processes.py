"""Several processes of our own that report to this one: started together, listened to, and ended whatever happens."""

from __future__ import annotations

import multiprocessing
import queue as queues
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from treadle.planner.endings import ending
from treadle.planner.errors import CheckFailed, LimitError

STALL_SECONDS = 120.0


def messages(world: int, entry: Callable[..., None], settings: Any) -> Iterator[tuple[Any, ...]]:
    """Run `entry(rank, settings, queue)` in `world` processes and yield what they put into the queue.

    Ends when all ended well. A message ("error", rank, text) or a dead process raises CheckFailed, silence for
    STALL_SECONDS raises LimitError; in every case, also when the caller stops listening, no process is left behind.
    """
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    with _processes(context, world, entry, settings, queue) as processes:
        heard = time.monotonic()
        while True:
            alive = any(process.is_alive() for process in processes)
            try:
                message = queue.get(timeout=0.2)
            except queues.Empty:
                _require_running(processes)
                if not alive:
                    return
                if time.monotonic() - heard > STALL_SECONDS:
                    raise LimitError(
                        f"no process made progress for {STALL_SECONDS:.0f} s; all {world} were ended"
                    ) from None
                continue
            heard = time.monotonic()
            if message[0] == "error":
                raise CheckFailed(f"measuring process {message[1]} failed: {message[2]}")
            yield message


@contextmanager
def _processes(context: Any, world: int, entry: Any, settings: Any, queue: Any) -> Iterator[list[Any]]:
    processes = [
        context.Process(target=entry, args=(rank, settings, queue), daemon=True, name=f"treadle-measure-{rank}")
        for rank in range(world)
    ]
    try:
        for process in processes:
            process.start()
        yield processes
    finally:
        started = [process for process in processes if process.pid is not None]
        for process in started:
            process.terminate()
        for process in started:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
        queue.close()
        queue.cancel_join_thread()


def _require_running(processes: list[Any]) -> None:
    for rank, process in enumerate(processes):
        if process.exitcode not in (None, 0):
            raise CheckFailed(f"measuring process {rank} {ending(process.exitcode)}; the others were ended too")
