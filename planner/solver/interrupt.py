"""Ctrl-C during a solve: remembered as a request to stop, so that the best solution so far is kept."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_on_sigint() -> Iterator[threading.Event]:
    """An event that Ctrl-C sets. A second Ctrl-C does what it did before (normally KeyboardInterrupt).

    The previous handler is back at exit. Outside the main thread, where Python allows no handler, and when SIGINT is
    ignored or handled by foreign code, nothing is installed and the event stays unset.
    """
    stop = threading.Event()
    previous = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or previous in (signal.SIG_IGN, None):
        yield stop
        return

    def request_stop(signum: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, previous)
        stop.set()

    signal.signal(signal.SIGINT, request_stop)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, previous)
