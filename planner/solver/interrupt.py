"""Ctrl-C or SIGTERM during a solve: remembered as a request to stop, so that the best solution so far is kept."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class RequestStop:
    """A signal handler that sets `stop`. Inside another one it calls that too, so that the pass around a solve stops
    even when the solve had just finished."""

    def __init__(self, previous: Any, stop: threading.Event) -> None:
        self.previous = previous
        self.stop = stop

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        signal.signal(signum, self.previous)
        self.stop.set()
        if isinstance(self.previous, RequestStop):
            self.previous(signum, frame)


class RaiseStop:
    """The same as `asked`, which it then raises as KeyboardInterrupt."""

    def __init__(self, asked: RequestStop) -> None:
        self.asked = asked

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        self.asked(signum, frame)
        raise KeyboardInterrupt


@contextmanager
def raised_at_once() -> Iterator[None]:
    """Inside `stop_on_signals`, for work that does not look at its event: the first signal also raises
    KeyboardInterrupt."""
    main = threading.current_thread() is threading.main_thread()
    asked = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM) if main}
    raising = {number: RaiseStop(handler) for number, handler in asked.items() if isinstance(handler, RequestStop)}
    for number, handler in raising.items():
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, handler in raising.items():
            if signal.getsignal(number) is handler:  # else it has been called, and the handler before it is back
                signal.signal(number, asked[number])


@contextmanager
def stop_on_signals(stop: threading.Event | None = None) -> Iterator[threading.Event]:
    """An event, `stop` if given, that Ctrl-C and SIGTERM set. A second one has its previous effect (normally
    KeyboardInterrupt, or the end).

    Previous handlers are back at exit. None is replaced outside the main thread, where Python allows no handler, and
    for a signal that is ignored or handled by foreign code.
    """
    stop = stop or threading.Event()
    main = threading.current_thread() is threading.main_thread()
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM) if main}
    replaced = {number: handler for number, handler in previous.items() if handler not in (signal.SIG_IGN, None)}
    for number, handler in replaced.items():
        signal.signal(number, RequestStop(handler, stop))
    try:
        yield stop
    finally:
        for number, handler in replaced.items():
            signal.signal(number, handler)
