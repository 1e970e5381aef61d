"""What one configuration takes for a trace on the real index, undisturbed by other work as far as possible."""

from __future__ import annotations

from treadle.planner.errors import LimitError
from treadle.planner.passes.index.configurations import IndexConfiguration
from treadle.planner.passes.index.operations import Workload
from treadle.runtime.index.measure import one_run, pinned

REPEATS = 2
LONG_NS = 1_000_000_000
"""A run that takes longer is not repeated."""


def run_index(configuration: IndexConfiguration, workload: Workload, insert_share: float) -> float | None:
    """ns of all operations in the fastest run; None where the index does not fit into memory.

    It is processor time, which other work on the core adds little to.
    """
    times: list[int] = []
    with pinned():
        while len(times) < REPEATS and max(times, default=0) < LONG_NS:
            try:
                times.append(one_run(configuration, workload, insert_share).time_ns)
            except LimitError:
                return None
    return float(min(times))
