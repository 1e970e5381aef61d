"""Which workers of a job are here, lost or done, and what follows from each loss. It knows no sockets."""

from __future__ import annotations

import threading

from treadle.planner.errors import CheckFailed
from treadle.runtime.server.messages import Notice


class Attendance:
    """The workers of one server. `waits`: a lost worker may come back, and the step waits for it; otherwise the job
    has failed with the first loss. Calls may come from any thread."""

    def __init__(self, workers: range, waits: bool) -> None:
        self.workers, self.waits = workers, waits
        self.failed: str | None = None
        self._here: set[int] = set()
        self._lost: set[int] = set()
        self._left: set[int] = set()
        self._lock = threading.Lock()

    def join(self, worker: int, step: int) -> Notice | None:
        """A worker is here, and goes on at `step`; the notice for the others if it was lost. Raises CheckFailed with
        the reason to refuse it."""
        with self._lock:
            if worker not in self.workers:
                first, last = self.workers[0], self.workers[-1]
                raise CheckFailed(f"it is not among the workers {first} to {last} of this server's plan")
            if worker in self._here:
                raise CheckFailed(f"worker {worker} is connected already")
            if self.failed:
                raise CheckFailed(self.failed)
            self._here.add(worker)
            self._left.discard(worker)
            if worker not in self._lost:
                return None
            self._lost.discard(worker)
            return Notice(what="rejoined", worker=worker, step=step, text=f"worker {worker} is back in step {step}")

    def lose(self, worker: int, step: int, why: str) -> Notice | None:
        """A worker is gone without a goodbye; the notice for all; None where it is known already."""
        with self._lock:
            if worker not in self._here:
                return None
            self._here.discard(worker)
            self._lost.add(worker)
            text = f"worker {worker} is lost in step {step} ({why})"
            if self.waits:
                text += "; the step waits until it is back"
            else:
                self.failed = self.failed or text
            return Notice(what="lost", worker=worker, step=step, waits=self.waits, text=text)

    def late(self, worker: int, step: int) -> Notice | None:
        """A step waits for a worker; None where that is known to be lost. One that has left makes the job
        fail, since its gradient never comes."""
        with self._lock:
            if worker in self._lost:
                return None
            if worker in self._left:
                self.failed = self.failed or f"step {step} waits for worker {worker}, which has left the job"
                return Notice(what="lost", worker=worker, step=step, text=self.failed)
            where = "is slow" if worker in self._here else "has not connected"
            text = f"step {step} waits for worker {worker}, which {where}"
            return Notice(what="late", worker=worker, step=step, text=text)

    def leave(self, worker: int, trained: bool = True) -> None:
        """A worker has said goodbye; one that has not trained is as if it had never connected."""
        with self._lock:
            self._here.discard(worker)
            if trained:
                self._left.add(worker)

    def fail(self, why: str) -> bool:
        """The job cannot go on; whether that is new."""
        with self._lock:
            new = self.failed is None
            self.failed = self.failed or why
            return new

    @property
    def all_left(self) -> bool:
        with self._lock:
            return self._left.issuperset(self.workers)

    def is_here(self, worker: int) -> bool:
        with self._lock:
            return worker in self._here
