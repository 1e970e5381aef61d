"""The timeline of an index plan: windows of the trace subset on one core, as they were measured.

Keys are loaded before time 0: a plan's time is that of the operations.
"""

from __future__ import annotations

from treadle.planner.passes.index.configurations import name_of_leaves
from treadle.planner.passes.index.decisions import IndexDecisions
from treadle.planner.timeline.simulator import Resource, Task

CORE = "core"


def trace_of(decisions: IndexDecisions) -> tuple[tuple[Task, ...], tuple[Resource, ...]]:
    """A task for each window, one after the other; they end when the plan does. One task where nothing was measured."""
    windows, count = _windows_ns(decisions), decisions.problem.operations
    ends = [count * number // len(windows) for number in range(len(windows) + 1)]
    leaves = name_of_leaves(decisions.chosen)
    tasks = tuple(
        Task(
            f"operations {ends[number] + 1:,} to {ends[number + 1]:,}, {leaves}",
            time,
            (CORE,),
            (number - 1,) if number else (),
        )
        for number, time in enumerate(windows)
    )
    return tasks, (Resource(CORE),)


def _windows_ns(decisions: IndexDecisions) -> tuple[int, ...]:
    measured = decisions.candidate.measured
    return (decisions.time_ns,) if measured is None else measured.windows_ns
