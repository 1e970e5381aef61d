"""The memory pass in a job: the training step under the budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from treadle.job.part import (
    JobInputs,
    JobPart,
    JobPlan,
    PartPrediction,
    PartReport,
    RankStep,
    TrainingComparison,
    Unplanned,
)
from treadle.passes.memory.cards import measured_cards, memory_cards
from treadle.planner.documents.plan import InputRef, Plan
from treadle.planner.documents.store import digest
from treadle.planner.documents.trace import Trace
from treadle.planner.passes import require_pass
from treadle.planner.passes.memory.decisions import MemoryDecisions
from treadle.planner.search.clock import Clock

if TYPE_CHECKING:
    from treadle.planner.passes.memory.planning import Budget
    from treadle.planner.solver import Progress
    from treadle.runtime.planned_module import PlannedModule

NAME = "memory"
UNLIMITED = 2**62
"""Bytes of a budget under which everything is kept."""


@dataclass(frozen=True)
class MemoryPart(JobPart):
    budget: Budget
    spelled: str
    """The budget as the job file has it."""

    def plans(self, given: JobInputs) -> Sequence[JobPlan]:
        from treadle.planner.passes.memory.extract.problem import problem_from_trace
        from treadle.planner.passes.memory.planning import MemoryOptions, plan_memory, with_budget

        options = MemoryOptions(reserve_bytes=given.kept_bytes)
        if given.limit_s is not None:
            options = replace(options, time_limit_s=given.limit_s)

        def plan(clock: Clock | None, on_progress: Callable[[Progress], None]) -> Plan:
            problem = with_budget(problem_from_trace(given.trace), self.budget)
            inputs = {"trace": InputRef(file="trace.json", digest=digest(given.trace))}
            return plan_memory(problem, options=options, clock=clock, inputs=inputs, on_progress=on_progress)

        return [JobPlan(NAME, f"memory under {self.spelled}", plan)]

    def unplanned(self, trace: Trace) -> Unplanned:
        from treadle.codegen.memory.torch_module import FILE_NAME, generate
        from treadle.planner.passes.memory.extract.problem import problem_from_trace
        from treadle.planner.passes.memory.planning import plan_memory, with_budget

        plan = plan_memory(with_budget(problem_from_trace(trace), UNLIMITED))
        text = generate(plan, trace)[FILE_NAME]
        return Unplanned(partial(_train_by, text, trace.name), plan.decisions.objective_ns)

    def training(self, given: JobInputs, out: Path) -> Callable[[RankStep], None]:
        return partial(_train_under, str(out / f"{NAME}.plan.json"), str(out / "trace.json"))

    def prediction(self, plans: Mapping[str, Plan]) -> PartPrediction:
        plan = self._plan(plans)
        return PartPrediction(compute_ms=plan.prediction.time_us / 1e3, compute_bytes=plan.decisions.exact_peak_bytes)

    def report(self, plans: Mapping[str, Plan], peak: int | None, measured: TrainingComparison | None) -> PartReport:
        decisions = self._plan(plans).decisions
        budget = decisions.problem.budget_bytes
        unchecked = (
            "the memory problem itself was extracted from the trace by the planner's own code, which only the measured "
            "peak of a run tests"
        )
        if measured is None:
            known, found = "predicted", decisions.exact_peak_bytes if peak is None else peak
            cards = memory_cards(decisions, found)
        else:
            known, found = "measured", measured.planned.peak_bytes
            cards = measured_cards(found, budget, measured.plain.peak_bytes)
        over = f"{known} peak {found} bytes exceeds the budget of {budget} bytes"
        return PartReport(cards, (over,) if found > budget else (), unchecked)

    def _plan(self, plans: Mapping[str, Plan]) -> Plan[MemoryDecisions]:
        return require_pass(plans[NAME], MemoryDecisions, f"{NAME}.plan.json")


def _train_under(plan: str, trace: str, step: RankStep) -> None:
    from treadle.runtime.memory.apply import apply

    _train(apply(step.model, plan, trace), step)


def _train_by(text: str, name: str, step: RankStep) -> None:
    from treadle.runtime.planned_module import PlannedModule
    from treadle.runtime.planned_step import load_step

    _train(PlannedModule(step.model, load_step(text, name)), step)


def _train(planned: PlannedModule, step: RankStep) -> None:
    from treadle.runtime.training import loss_of

    step.loss_of = lambda batch: loss_of(planned(*batch.args, **batch.kwargs))
