"""When the process began: every time limit counts from there; and what a command says of a search that ended early."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treadle.planner.documents.plan import Provenance
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


def note_ending(made: Provenance, limit_s: float | None) -> None:
    """Say that Ctrl-C or the limit ended the search of a plan, if one did."""
    from treadle.cli.output import note

    if made.interrupted:
        note("interrupted: this is the best plan found so far")
    elif made.limit_fired:
        if limit_s is None:
            note("the time limit ended the search: this is the best plan found so far")
        else:
            note(f"the time limit of {limit_s:g} s ended the search: this is the best plan found so far")
