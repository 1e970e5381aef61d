"""How a compiled schedule is run, and what is known afterwards; the same for all back-ends."""

from __future__ import annotations

from dataclasses import dataclass

from treadle.runtime.fusion.session import Counted

TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True)
class Runs:
    """`repeats` runs, each with the step of dropout of the one before plus 1. Where the tensors have rows for several
    runs, the runs take them in turns.

    `order` plus the number of a run chooses which fiber goes on when; on processes, above 0, random pauses. A wait of
    more than `timeout` seconds is taken for a deadlock; fibers need no clock for that.
    """

    repeats: int = 1
    seed: int = 0
    step: int = 0
    order: int = 0
    timeout: float = TIMEOUT_SECONDS


@dataclass(frozen=True)
class RunReport:
    """Seconds of each run, of the rank that took longest; and what each rank counted in all runs, which is 0 in a
    library that does not count."""

    seconds: tuple[float, ...]
    counted: tuple[Counted, ...]
