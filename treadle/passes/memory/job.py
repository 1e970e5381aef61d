"""What the memory pass plans in a job: the training step under the budget."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.passes.interface import Given, JobPart, Step
from treadle.planner.documents.job import Job
from treadle.planner.documents.plan import Plan
from treadle.planner.search.clock import Clock


def job_part(job: Job, where: str) -> JobPart:
    """Raises InputError for a budget that is none."""
    from treadle.planner.passes.memory.planning import MemoryOptions, parse_budget, plan_memory

    budget = parse_budget(job.memory.budget, where=f"{where}: $.memory.budget")

    def steps(given: Given) -> Sequence[Step]:
        options = MemoryOptions() if given.limit_s is None else MemoryOptions(time_limit_s=given.limit_s)

        def plan(clock: Clock | None) -> Plan:
            return plan_memory(given.trace, budget=budget, options=options, clock=clock, trace_file="trace.json")

        return [Step("memory", f"memory under {job.memory.budget}", plan)]

    return JobPart(steps)
