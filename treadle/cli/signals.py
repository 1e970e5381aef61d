"""Ctrl-C and SIGTERM as a wish to end, which a command sees between two things that it does."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def end_signals() -> Iterator[Callable[[], str | None]]:
    """Yield what says by which signal this process was to end, if any; a second one ends it at once."""
    seen: list[int] = []

    def end(number: int, frame: object) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: f"ended by {signal.Signals(seen[0]).name}" if seen else None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
