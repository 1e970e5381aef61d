"""The order of calls on the CPU: one after the other, as they were made."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class CallLane:
    """Runs calls here and now, or on one background thread; `stop` ends the one that this thread may be in."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self.stop = stop
        self.worker = ThreadPoolExecutor(1, "treadle-comm")
        self.pending = 0
        self.lock = threading.Lock()

    def run(self, work: Callable[[], Any]) -> Any:
        """`work` here and now, or after what `later` still has to do."""
        with self.lock:
            idle = not self.pending
        return work() if idle else self.wait(self.later(work))

    def later(self, work: Callable[[], Any]) -> Future[Any]:
        """`work` on the background thread, after everything before it."""
        with self.lock:
            self.pending += 1
        future = self.worker.submit(work)
        future.add_done_callback(self._done)
        return future

    def wait(self, future: Future[Any], seconds: float | None = None) -> Any:
        """The result of what `later` gave; TimeoutError after `seconds`."""
        try:
            return future.result(seconds)
        except TimeoutError:
            if future.done():
                raise
            raise TimeoutError(f"a planned collective did not end within {seconds:g} s") from None
        except (KeyboardInterrupt, SystemExit):
            self.stop()  # the exit of Python would wait for the call on the other thread
            raise

    def close(self) -> None:
        """Wait for what is pending, and end the thread."""
        try:
            self.worker.shutdown(wait=True)
        except (KeyboardInterrupt, SystemExit):
            self.stop()
            raise

    def _done(self, _: Future[Any]) -> None:
        with self.lock:
            self.pending -= 1
