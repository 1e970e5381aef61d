"""The pass of ranks in a job: its hosts in an order for the library that exchanges the gradients of the plain job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from treadle.job.part import JobInputs, JobPart, JobPlan, PartReport, TrainingComparison, WantedDocument
from treadle.passes.ranks.cards import CHECKED, random_card
from treadle.planner.documents.cost_matrix import CostMatrix
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.plan import InputRef, Plan
from treadle.planner.documents.scalars import many
from treadle.planner.documents.store import digest
from treadle.planner.errors import InputError
from treadle.planner.graph.gradients import buckets_of
from treadle.planner.passes import require_pass
from treadle.planner.passes.ranks.decisions import RanksDecisions
from treadle.planner.passes.ranks.extract import problem_of
from treadle.planner.passes.ranks.job import RanksJob
from treadle.planner.search.clock import Clock
from treadle.report.cards import time_card
from treadle.report.page import Card

if TYPE_CHECKING:
    from treadle.planner.solver import Progress

NAME = "ranks"
COSTS = "host-costs"
LIMIT_S = 20.0
"""Seconds of the search, where the job has no limit."""


@dataclass(frozen=True)
class RanksPart(JobPart):
    """It changes nothing of the training: a list of hosts is for the launcher of the job."""

    job: RanksJob
    where: str

    def wants(self, hardware: Hardware) -> Mapping[str, WantedDocument]:
        return {COSTS: WantedDocument(self.job.costs, CostMatrix)}

    def plans(self, given: JobInputs) -> Sequence[JobPlan]:
        costs = given.others[COSTS]
        assert isinstance(costs, CostMatrix)
        nodes, slots = given.hardware.nodes, given.hardware.devices_per_node
        found = {(len(costs.hosts), host.slots) for host in costs.hosts}
        if found != {(nodes, slots)}:
            count, own = min(found)
            raise InputError(
                f"found {many(count, 'host')} of {many(own, 'rank')} in {self.job.costs}, expected {nodes} of {slots}, "
                "the nodes of the job",
                where=self.where,
                path="$.ranks.costs",
            )
        title = f"the order of {many(nodes, 'host')} for {self.job.collective}"
        return [JobPlan(NAME, title, partial(_plan, self.job, costs, given))]

    def report(self, plans: Mapping[str, Plan], peak: int | None, measured: TrainingComparison | None) -> PartReport:
        decisions = require_pass(plans[NAME], RanksDecisions, f"{NAME}.plan.json").decisions
        label = f"{decisions.problem.algorithm} over the hosts in order"
        cost = time_card(label, decisions.cost_ns, decisions.original_ns, "as handed out", "predicted")
        order = Card("order of hosts", "checked, not run", None, CHECKED)
        return PartReport(details=(cost, random_card(decisions), order))


def _plan(
    job: RanksJob,
    costs: CostMatrix,
    given: JobInputs,
    clock: Clock | None,
    on_progress: Callable[[Progress], None],
) -> Plan:
    from treadle.planner.passes.ranks.planning import plan_ranks

    (gradients,) = buckets_of(given.trace, 1)
    return plan_ranks(
        problem_of(costs, job.collective, size_bytes=gradients.bytes, where=job.costs),
        clock=clock or Clock.of(LIMIT_S),
        inputs={"costs": InputRef(file=f"{COSTS}.json", digest=digest(costs))},
        on_progress=on_progress,
    )
