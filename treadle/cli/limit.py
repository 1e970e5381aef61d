"""When the process began: every time limit counts from there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treadle.planner.search.clock import Clock

_began: ContextVar[float | None] = ContextVar("began", default=None)


@contextmanager
def since(began: float) -> Iterator[None]:
    """The command that runs inside began then, on time.monotonic's clock."""
    token = _began.set(began)
    try:
        yield
    finally:
        _began.reset(token)


def clock_of(limit_s: float | None) -> Clock:
    """The clock of the command that runs."""
    from treadle.planner.search.clock import Clock

    began = _began.get()
    return Clock.of(limit_s, time.monotonic() if began is None else began)
