"""What an asynchronous call returns: a Work of torch.distributed, for those who wait in Python and in C++."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import Work

CALLBACK_THREADS = 32
_callbacks = ThreadPoolExecutor(CALLBACK_THREADS, "treadle-comm-callback")


class OwnWork(Work):
    """A call that was started. `wait` raises its error."""

    def __init__(self, outputs: Sequence[Tensor]) -> None:
        super().__init__()
        self._outputs = list(outputs)

    @abstractmethod
    def wait(self, timeout: timedelta = timedelta(0)) -> bool: ...

    @abstractmethod
    def get_future(self) -> torch.futures.Future[Any]:
        """The output tensors, or the error."""

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> list[Tensor]:
        return self._outputs

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None


class StreamWork(OwnWork):
    """A call on a GPU: `future` has its value once the kernels are queued, and the current stream of whoever waits
    waits for them."""

    def __init__(self, outputs: Sequence[Tensor], future: torch.futures.Future[Any]) -> None:
        super().__init__(outputs)
        self._future = future

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        self._future.wait()
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        return self._future

    def is_completed(self) -> bool:
        return self._future.done()

    def exception(self) -> BaseException | None:
        return None


class ThreadWork(OwnWork):
    """A call on another thread, as whose result `done` ends; `wait_for` waits for it, at most the given seconds."""

    def __init__(
        self, outputs: Sequence[Tensor], done: Future[Any], wait_for: Callable[[Future[Any], float | None], Any]
    ) -> None:
        super().__init__(outputs)
        self._done, self._wait_for = done, wait_for
        self._future: torch.futures.Future[Any] | None = None

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """TimeoutError after `timeout` (0: no limit)."""
        self._wait_for(self._done, timeout.total_seconds() or None)
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        """Its callbacks may wait for other calls, so they get a thread of their own."""
        if self._future is None:
            ended = torch.futures.Future[Any]()
            self._future = ended.then(self._value)
            self._done.add_done_callback(lambda _: _callbacks.submit(ended.set_result, None))
        return self._future

    def is_completed(self) -> bool:
        return self._done.done()

    def exception(self) -> BaseException | None:
        return self._done.exception()

    def _value(self, _: Any) -> list[Tensor]:
        # C++ sees the error of a callback, but not that of Future.set_exception.
        self._done.result()
        return self._outputs


class SeveralWorks(OwnWork):
    """Several calls as one."""

    def __init__(self, outputs: Sequence[Tensor], works: Sequence[Work]) -> None:
        super().__init__(outputs)
        self._works = works

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        for work in self._works:
            work.wait(timeout)
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        ended = torch.futures.collect_all([work.get_future() for work in self._works])
        return ended.then(lambda done: [each.value() for each in done.value()] and self._outputs)

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def exception(self) -> BaseException | None:
        return next((error for work in self._works if (error := work.exception()) is not None), None)


def finished(outputs: Sequence[Tensor]) -> OwnWork:
    """A call that has ended."""
    done = Future[Any]()
    done.set_result(None)
    return ThreadWork(outputs, done, Future.result)


def then(work: Work, after: Callable[[], None], outputs: Sequence[Tensor]) -> OwnWork:
    """A call of the framework on the CPU, and what follows it."""

    def both() -> None:
        work.wait()
        after()

    return ThreadWork(outputs, _callbacks.submit(both), Future.result)
