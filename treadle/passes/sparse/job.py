"""The sparse pass in a job: the exchange of all gradients after the backward pass, those of embeddings as planned."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
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
from treadle.passes.sparse.inputs import shipped_costs
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.plan import InputRef, Plan
from treadle.planner.documents.scalars import format_time, many
from treadle.planner.documents.sparse_costs import SparseCosts
from treadle.planner.documents.sparsity import Sparsity
from treadle.planner.documents.store import digest
from treadle.planner.documents.trace import Trace
from treadle.planner.passes import require_pass
from treadle.planner.passes.interface import Inputs
from treadle.planner.passes.sparse.decisions import SparseDecisions
from treadle.planner.passes.sparse.job import OTHERS, SparseJob
from treadle.planner.passes.sparse.schemes import DENSE
from treadle.planner.search.clock import Clock
from treadle.report.page import Card

if TYPE_CHECKING:
    from treadle.job.train import TrainingTask
    from treadle.planner.solver import Progress

NAME = "sparse"
FILE = f"{NAME}.plan.json"
SPARSITY, COSTS = "sparsity", "costs"


@dataclass(frozen=True)
class SparsePart(JobPart):
    keeps: ClassVar[bool] = True
    job: SparseJob

    def wants(self, hardware: Hardware) -> Mapping[str, WantedDocument]:
        costs = self.job.costs or shipped_costs(hardware)
        priced = {} if costs is None else {COSTS: WantedDocument(costs, SparseCosts)}
        return {SPARSITY: WantedDocument(None, Sparsity), **priced}

    def recorded(self, task: TrainingTask, hardware: Hardware, say: Callable[[str], None]) -> Inputs:
        from treadle.passes.sparse.job_recording import recorded_sparsity

        return {SPARSITY: recorded_sparsity(task, hardware.ranks, say)}

    def plans(self, given: JobInputs) -> Sequence[JobPlan]:
        return [JobPlan(NAME, "the exchange of gradients, those of embeddings sparse or not", partial(_plan, given))]

    def unplanned(self, trace: Trace) -> Unplanned:
        return Unplanned(_take_means)

    def training(self, given: JobInputs, out: Path) -> Callable[[RankStep], None]:
        return partial(_exchange_by, str(out / FILE))

    def prediction(self, plans: Mapping[str, Plan]) -> PartPrediction:
        from treadle.runtime.sparse.memory import exchange_bytes, kept_bytes

        decisions = _decisions(plans)
        kept = kept_bytes(decisions)
        return PartPrediction(
            exchange_ms=decisions.time_ns / 1e6, exchange_bytes=kept + exchange_bytes(decisions), kept_bytes=kept
        )

    def report(self, plans: Mapping[str, Plan], peak: int | None, measured: TrainingComparison | None) -> PartReport:
        decisions = _decisions(plans)
        planned, dense = format_time(decisions.time_ns), format_time(decisions.dense_ns)
        value, known = planned, "predicted"
        if measured is not None:
            value = f"{format_time(round(measured.planned.step.exchange_s * 1e9))}, measured with taking the means"
            known = f"predicted without them {planned}"
        note = f"{known}, with every gradient dense {dense}"
        if measured is not None:
            note += "; both by the links of the hardware profile, as messages between these processes were not measured"
        return PartReport(details=(_schemes_card(decisions), Card("exchange of gradients", value, None, note)))


def _schemes_card(decisions: SparseDecisions) -> Card:
    """Which embeddings are exchanged sparse, or that none is."""
    embeddings = [each for each in decisions.gradients if each.name != OTHERS]
    sparse = [each for each in embeddings if each.scheme != DENSE.name]
    if not sparse:
        known = "measured" if decisions.measured else "predicted"
        return Card("sparse gradients", "none", None, f"every gradient is {known} to take least time dense")
    schemes = ", ".join(dict.fromkeys(each.scheme for each in sparse))
    value = f"{len(sparse)} of {many(len(embeddings), 'embedding')}"
    return Card("sparse gradients", value, None, f"by {schemes}; all others are sent dense")


def _plan(given: JobInputs, clock: Clock | None, on_progress: Callable[[Progress], None]) -> Plan:
    from treadle.planner.passes.sparse.extract import problem_of
    from treadle.planner.passes.sparse.planning import SparseOptions, plan_sparse
    from treadle.runtime.sparse.trials import sparse_measuring

    sparsity, costs = given.others[SPARSITY], given.others.get(COSTS)
    assert isinstance(sparsity, Sparsity)
    documents = {SPARSITY: sparsity, "hardware": given.hardware, **({COSTS: costs} if costs is not None else {})}
    problem = problem_of(sparsity, given.hardware, costs if isinstance(costs, SparseCosts) else None)
    top = given.measure_top if problem.machines > 1 else 0
    clock = clock or Clock()
    with sparse_measuring(problem, top, given.hardware.name, clock) if top else nullcontext() as measuring:
        return plan_sparse(
            problem,
            options=SparseOptions(measuring=measuring),
            clock=clock,
            inputs={
                role: InputRef(file=f"{role}.json", digest=digest(document)) for role, document in documents.items()
            },
            on_progress=on_progress,
        )


def _decisions(plans: Mapping[str, Plan]) -> SparseDecisions:
    return require_pass(plans[NAME], SparseDecisions, FILE).decisions


def _take_means(step: RankStep) -> None:
    """Packs and divides as an exchange does, which no plan prices."""
    from treadle.runtime.sparse.after_backward import packed, ready, unpack
    from treadle.runtime.sparse.attached import table_names

    names = table_names(step.model)
    held = {name: each for name, each in step.model.named_parameters() if each.requires_grad}
    tables = [each for name, each in held.items() if name in names]
    others = [each for name, each in held.items() if name not in names]

    def exchange() -> None:
        for table in tables:
            table.grad = ready(table).div_(step.world)
        if others:
            unpack(packed(others).div_(step.world), others)

    step.exchanges.append(exchange)


def _exchange_by(plan: str, step: RankStep) -> None:
    """Exchange the gradients under a plan."""
    from treadle.runtime.sparse.after_backward import AfterBackward
    from treadle.runtime.sparse.attached import decisions_of

    exchange = AfterBackward(step.model, decisions_of(plan))
    step.exchanges.append(exchange)
    step.kept.append(exchange.kept)
