"""Ctrl-C during a solve: remembered as a request to stop, so that the best solution so far is kept."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class RequestStop:
    """The handler of Ctrl-C while solving. Inside another one it hands the press on, so that the pass around a solve
    handles it even when the solve had just finished."""

    def __init__(self, previous: Any, stop: threading.Event | None = None) -> None:
        self.previous = previous
        self.stop = stop or threading.Event()

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        signal.signal(signum, self.previous)
        self.stop.set()
        if isinstance(self.previous, RequestStop):
            self.previous(signum, frame)


@contextmanager
def stop_on_sigint(stop: threading.Event | None = None) -> Iterator[threading.Event]:
    """An event, `stop` where it is given, that Ctrl-C sets. A second Ctrl-C does what it did before (normally
    KeyboardInterrupt).

    The previous handler is back at exit. Outside the main thread, where Python allows no handler, and when SIGINT is
    ignored or handled by foreign code, nothing is installed and the event stays as it is.
    """
    previous = signal.getsignal(signal.SIGINT)
    handler = RequestStop(previous, stop)
    if threading.current_thread() is not threading.main_thread() or previous in (signal.SIG_IGN, None):
        yield handler.stop
        return
    signal.signal(signal.SIGINT, handler)
    try:
        yield handler.stop
    finally:
        signal.signal(signal.SIGINT, previous)


@contextmanager
def stop_on_signals(stop: threading.Event | None = None) -> Iterator[threading.Event]:
    """The same, and SIGTERM, the usual request to end a process, sets the event too."""
    with stop_on_sigint(stop) as stop:
        previous = signal.getsignal(signal.SIGTERM)
        if threading.current_thread() is not threading.main_thread() or previous in (signal.SIG_IGN, None):
            yield stop
            return
        signal.signal(signal.SIGTERM, RequestStop(previous, stop))
        try:
            yield stop
        finally:
            signal.signal(signal.SIGTERM, previous)
