"""The pass of aggregation in a job: all gradients in one allreduce, with masters for the hosts of a cost matrix."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
    WantedDocument,
)
from treadle.passes.aggregation.words import why
from treadle.planner.documents.cost_matrix import CostMatrix
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.plan import InputRef, Plan
from treadle.planner.documents.scalars import format_bytes, format_time, many
from treadle.planner.documents.store import digest
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import InputError
from treadle.planner.graph.gradients import buckets_of
from treadle.planner.passes import require_pass
from treadle.planner.passes.aggregation.decisions import AggregationDecisions
from treadle.planner.passes.aggregation.job import AggregationJob
from treadle.planner.search.clock import Clock
from treadle.report.page import Card
from treadle.runtime.collective.average import average

if TYPE_CHECKING:
    from treadle.planner.solver import Progress

NAME = "aggregation"
COSTS = "host-costs"


@dataclass(frozen=True)
class AggregationPart(JobPart):
    job: AggregationJob
    where: str

    def wants(self, hardware: Hardware) -> Mapping[str, WantedDocument]:
        return {COSTS: WantedDocument(self.job.costs, CostMatrix)}

    def plans(self, given: JobInputs) -> Sequence[JobPlan]:
        costs, (gradients,) = given.others[COSTS], buckets_of(given.trace, 1)
        assert isinstance(costs, CostMatrix)
        hardware = given.hardware
        found = (len(costs.hosts), {host.slots for host in costs.hosts})
        if found != (hardware.nodes, {hardware.devices_per_node}) or hardware.other_nodes:
            expected = f"{hardware.nodes} of {many(hardware.devices_per_node, 'rank')}, the nodes of the job"
            raise InputError(
                f"found {many(found[0], 'host')} of {' or '.join(map(str, sorted(found[1])))} in {self.job.costs}, "
                f"expected {expected}",
                where=self.where,
                path="$.aggregation.costs",
            )
        title = f"masters of {format_bytes(gradients.bytes)} of gradients on {many(found[0], 'host')}"
        return [JobPlan(NAME, title, partial(_plan, gradients.bytes, costs))]

    def unplanned(self, trace: Trace) -> Unplanned:
        (gradients,) = buckets_of(trace, 1)
        return Unplanned(partial(average, [gradients.parameters], None))

    def training(self, given: JobInputs, out: Path) -> Callable[[RankStep], None]:
        (gradients,) = buckets_of(given.trace, 1)
        return partial(average, [gradients.parameters], [str(out / NAME)])

    def prediction(self, plans: Mapping[str, Plan]) -> PartPrediction:
        decisions = _decisions(plans)
        return PartPrediction(exchange_ms=decisions.time_ns / 1e6, exchange_bytes=decisions.problem.size_bytes)

    def report(self, plans: Mapping[str, Plan], peak: int | None, measured: TrainingComparison | None) -> PartReport:
        decisions = _decisions(plans)
        value, known = format_time(decisions.time_ns), "predicted between the hosts of the cost matrix"
        if measured is not None:
            value = f"{format_time(round(measured.planned.step.exchange_s * 1e9))}, measured between processes here"
            known = f"predicted between the hosts of the cost matrix {format_time(decisions.time_ns)}"
        return PartReport(details=(Card("exchange of gradients", value, None, f"{known}; {why(decisions)}"),))


def _plan(size: int, costs: CostMatrix, clock: Clock | None, on_progress: Callable[[Progress], None]) -> Plan:
    from treadle.planner.passes.aggregation.extract import problem_of
    from treadle.planner.passes.aggregation.planning import plan_aggregation

    return plan_aggregation(
        problem_of(costs, size_bytes=size, where=f"{COSTS}.json"),
        clock=clock,
        inputs={"costs": InputRef(file=f"{COSTS}.json", digest=digest(costs))},
        on_progress=on_progress,
    )


def _decisions(plans: Mapping[str, Plan]) -> AggregationDecisions:
    return require_pass(plans[NAME], AggregationDecisions, f"{NAME}.plan.json").decisions
