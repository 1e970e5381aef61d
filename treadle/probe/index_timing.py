"""What one configuration takes for a trace on the real index, undisturbed by other work as far as possible."""

from __future__ import annotations

from treadle.planner.errors import LimitError
from treadle.planner.passes.index.configurations import IndexConfiguration
from treadle.planner.passes.index.operations import Workload
from treadle.runtime.index.measure import one_run, pinned

WINDOWS = 32
REPEATS = 2
LONG_NS = 2_000_000_000
"""A run that takes longer is not repeated."""


def run_index(configuration: IndexConfiguration, workload: Workload, insert_share: float) -> float | None:
    """ns of all operations, each window in its fastest run; None where the index does not fit into memory."""
    best: list[int] = []
    with pinned():
        for _ in range(REPEATS):
            try:
                run = one_run(configuration, workload, insert_share, WINDOWS)
            except LimitError:
                return None
            best = [min(pair) for pair in zip(best or run.windows_ns, run.windows_ns, strict=True)]
            if run.load_ns + run.time_ns > LONG_NS:
                break
    return float(sum(best))
