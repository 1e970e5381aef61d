"""The compression pass in a job: the exchange of gradients after the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from treadle.job.part import (
    JobInputs,
    JobPart,
    JobPlan,
    PartPrediction,
    PartReport,
    RankStep,
    TrainingComparison,
    Unplanned,
    WantedDocument,
)
from treadle.passes.compression.cards import compressed_card
from treadle.passes.compression.inputs import shipped_costs
from treadle.passes.compression.words import compressed, compressors_of, exposed_ns
from treadle.planner.documents.compression_costs import CompressionCosts
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.plan import InputRef, Plan
from treadle.planner.documents.scalars import format_bytes, format_time
from treadle.planner.documents.store import digest
from treadle.planner.documents.trace import Trace
from treadle.planner.passes import require_pass
from treadle.planner.passes.compression.decisions import CompressionDecisions
from treadle.planner.passes.compression.job import CompressionJob
from treadle.planner.passes.interface import Inputs
from treadle.planner.search.clock import Clock
from treadle.report.page import Card

if TYPE_CHECKING:
    from treadle.job.kept import CostCache
    from treadle.planner.passes.compression.problem import CompressionProblem
    from treadle.planner.solver import Progress

NAME = "compression"
FILE = f"{NAME}.plan.json"
COSTS = "costs"


@dataclass(frozen=True)
class CompressionPart(JobPart):
    keeps: ClassVar[bool] = True
    job: CompressionJob
    where: str
    """What errors call the job file."""

    def wants(self, hardware: Hardware) -> Mapping[str, WantedDocument]:
        return {COSTS: WantedDocument(self.job.costs or shipped_costs(hardware), CompressionCosts)}

    def with_measured(
        self, trace: Trace, hardware: Hardware, others: Inputs, say: Callable[[str], None], cache: CostCache
    ) -> tuple[Hardware, Inputs]:
        if self.job.costs is not None or hardware.ranks == 1:
            return hardware, others
        from treadle.passes.compression.job_costs import measured_costs

        self._problem(trace, hardware, others, ())  # what is wrong with it ends the job before minutes of measuring
        return hardware, {**others, COSTS: measured_costs(trace, hardware, self.job.compressors, say, cache)}

    def plans(self, given: JobInputs) -> Sequence[JobPlan]:
        named = " or ".join(self.job.compressors)
        return [JobPlan(NAME, f"the exchange of gradients, compressed by {named} or not", partial(self._plan, given))]

    def unplanned(self, trace: Trace) -> Unplanned:
        return Unplanned(_take_means)

    def training(self, given: JobInputs, out: Path) -> Callable[[RankStep], None]:
        return partial(_exchange_by, str(out / FILE))

    def prediction(self, plans: Mapping[str, Plan]) -> PartPrediction:
        from treadle.runtime.compression.at_once import kept_bytes

        decisions, kept = self._decisions(plans), kept_bytes(self._decisions(plans))
        exposed = exposed_ns(decisions.problem, decisions.time_ns)
        return PartPrediction(exchange_ms=exposed / 1e6, exchange_bytes=kept, kept_bytes=kept)

    def loses(self, plans: Mapping[str, Plan]) -> str:
        found = compressed(self._decisions(plans)).groups
        return compressors_of(found) if found else ""

    def report(self, plans: Mapping[str, Plan], peak: int | None, measured: TrainingComparison | None) -> PartReport:
        plan = require_pass(plans[NAME], CompressionDecisions, FILE)
        decisions = plan.decisions
        planned, plain = (
            exposed_ns(decisions.problem, each) for each in (decisions.time_ns, decisions.uncompressed_ns)
        )
        sent = f"a rank sends {format_bytes(decisions.sent_bytes)}"
        value, known = format_time(planned), "predicted"
        if measured is not None:
            value = f"{format_time(round(measured.planned.step.exchange_s * 1e9))}, measured with taking the means"
            known = f"predicted without them {format_time(planned)}"
        note = f"{known}, with every gradient as it is and alone {format_time(plain)}; {sent}"
        return PartReport(details=(compressed_card(plan), Card("exchange of gradients", value, None, note)))

    def _plan(self, given: JobInputs, clock: Clock | None, on_progress: Callable[[Progress], None]) -> Plan:
        from treadle.planner.passes.compression.planning import CompressionOptions, plan_compression
        from treadle.runtime.compression.trials import compression_measuring

        options = CompressionOptions() if given.limit_s is None else CompressionOptions(time_limit_s=given.limit_s)
        documents = {"trace": given.trace, "hardware": given.hardware, COSTS: given.others[COSTS]}
        problem = self._problem(given.trace, given.hardware, given.others, self.job.compressors)
        top = given.measure_top if problem.ranks > 1 else 0
        clock = clock or Clock.of(options.time_limit_s)
        with compression_measuring(problem, top, given.hardware.name, clock) if top else nullcontext() as measuring:
            return plan_compression(
                problem,
                options=replace(options, measuring=measuring),
                clock=clock,
                inputs={
                    role: InputRef(file=f"{role}.json", digest=digest(document)) for role, document in documents.items()
                },
                on_progress=on_progress,
            )

    def _problem(
        self, trace: Trace, hardware: Hardware, others: Inputs, compressors: Sequence[str]
    ) -> CompressionProblem:
        from treadle.planner.passes.compression.extract import at_once, problem_of

        costs = others[COSTS]
        assert isinstance(costs, CompressionCosts)
        return at_once(
            problem_of(trace, hardware, costs, compressors, where=f"{self.where}: $.compression.compressors")
        )

    def _decisions(self, plans: Mapping[str, Plan]) -> CompressionDecisions:
        return require_pass(plans[NAME], CompressionDecisions, FILE).decisions


def _take_means(step: RankStep) -> None:
    """Divides as an exchange does at its end, which no plan prices."""

    def exchange() -> None:
        for parameter in step.model.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(step.world)

    step.exchanges.append(exchange)


def _exchange_by(plan: str, step: RankStep) -> None:
    """Exchange the gradients under a plan, with the identity in place of compressors where numbers must be exact."""
    from treadle.runtime.compression.at_once import ExchangeAtOnce
    from treadle.runtime.compression.attached import decisions_of
    from treadle.runtime.compression.coders import IdentityCoders, KernelCoders

    decisions = decisions_of(plan)
    known = dict(step.model.named_parameters())
    parameters = {each.name: known[each.name] for each in decisions.problem.gradients if each.name in known}
    coders = (IdentityCoders if step.exact else KernelCoders)(step.rank, step.world)
    exchange = ExchangeAtOnce(parameters, decisions, coders)
    step.exchanges.append(exchange)
    step.kept.append(exchange.kept)
