"""What one configuration takes for a trace on the real index, undisturbed by other work as far as possible."""

from __future__ import annotations

from time import thread_time_ns

from treadle.planner.errors import LimitError
from treadle.planner.passes.index.configurations import IndexConfiguration
from treadle.planner.passes.index.operations import Workload
from treadle.runtime.index.learned_index import LearnedIndex
from treadle.runtime.index.measure import pinned

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
                with LearnedIndex(configuration, insert_share=insert_share) as index:
                    index.load(workload.keys, workload.payloads)
                    began = thread_time_ns()
                    index.run(workload.operations, 1)
                    times.append(max(1, thread_time_ns() - began))
            except LimitError:
                return None
    return float(min(times))
