"""`--time-limit`, the same for every pass: it counts from the start of the process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from treadle.planner.search.clock import Clock

BEGAN = "treadle.began"
"""Where a context keeps when its process began, on time.monotonic's clock."""


def time_limit_option(default: float | None, help: str) -> Callable[[Any], Any]:
    """The option; `help` says of what it is the limit."""
    return click.option(
        "--time-limit",
        type=click.FloatRange(min=0, min_open=True),
        default=default,
        show_default=default is not None,
        help=help if default is not None else f"{help} [default: none]",
    )


def clock_of(limit_s: float | None) -> Clock:
    """The clock of the command that runs."""
    from treadle.planner.search.clock import Clock

    context = click.get_current_context(silent=True)
    began = None if context is None else context.meta.get(BEGAN)
    return Clock.of(limit_s, time.monotonic() if began is None else began)
