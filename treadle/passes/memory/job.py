"""The memory pass in a job: the training step under the budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from treadle.job.part import JobInputs, JobPart, JobPlan, PartReport, PredictedRow, RankStep, TrainingComparison
from treadle.passes.memory.cards import measured_cards, memory_cards
from treadle.planner.documents.plan import InputRef, Plan
from treadle.planner.documents.store import digest
from treadle.planner.passes import require_pass
from treadle.planner.passes.memory.decisions import MemoryDecisions
from treadle.planner.search.clock import Clock

if TYPE_CHECKING:
    from treadle.planner.passes.memory.planning import Budget
    from treadle.planner.solver import Progress

NAME = "memory"


@dataclass(frozen=True)
class MemoryPart(JobPart):
    budget: Budget
    spelled: str
    """The budget as the job file has it."""

    def plans(self, given: JobInputs) -> Sequence[JobPlan]:
        from treadle.planner.passes.memory.extract.problem import problem_from_trace
        from treadle.planner.passes.memory.planning import MemoryOptions, plan_memory, with_budget

        options = MemoryOptions() if given.limit_s is None else MemoryOptions(time_limit_s=given.limit_s)

        def plan(clock: Clock | None, on_progress: Callable[[Progress], None]) -> Plan:
            problem = with_budget(problem_from_trace(given.trace), self.budget)
            inputs = {"trace": InputRef(file="trace.json", digest=digest(given.trace))}
            return plan_memory(problem, options=options, clock=clock, inputs=inputs, on_progress=on_progress)

        return [JobPlan(NAME, f"memory under {self.spelled}", plan)]

    def training(self, given: JobInputs, out: Path) -> Callable[[RankStep], None]:
        return partial(_train_under, str(out / f"{NAME}.plan.json"), str(out / "trace.json"))

    def report(self, plans: Mapping[str, Plan], measured: TrainingComparison | None) -> PartReport:
        plan = require_pass(plans[NAME], MemoryDecisions, f"{NAME}.plan.json")
        predicted, budget = plan.decisions.exact_peak_bytes, plan.decisions.problem.budget_bytes
        unchecked = (
            "the memory problem itself was extracted from the trace by the planner's own code, which only the measured "
            "peak of a run tests"
        )
        if measured is None:
            return PartReport(memory_cards(plan.decisions), unchecked=unchecked)
        peak, plain = measured.planned.peak_bytes, measured.plain.peak_bytes
        over = f"measured peak {peak} bytes exceeds the budget of {budget} bytes"
        step_ms = plan.prediction.time_us / 1e3
        return PartReport(
            measured_cards(peak, budget, plain),
            (over,) if peak > budget else (),
            (
                PredictedRow("peak of live tensors, MiB", predicted / 2**20, peak / 2**20),
                PredictedRow("forward and backward, ms", step_ms, measured.planned.compute_s * 1e3),
            ),
            step_ms,
            unchecked=unchecked,
        )


def _train_under(plan: str, trace: str, step: RankStep) -> None:
    from treadle.runtime.memory.apply import apply
    from treadle.runtime.training import loss_of

    planned = apply(step.model, plan, trace)
    step.loss_of = lambda batch: loss_of(planned(*batch.args, **batch.kwargs))
