"""Checkpoints in memory in a job: planned into what its own passes and messages leave of the links."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from treadle.job.part import JobInputs, JobPart, JobPlan, PartReport, TrainingComparison
from treadle.passes.checkpoint.words import often
from treadle.planner.documents.plan import InputRef, Plan
from treadle.planner.documents.scalars import format_bytes, format_time, many
from treadle.planner.documents.store import digest
from treadle.planner.graph.ready_times import ready_times
from treadle.planner.passes import require_pass
from treadle.planner.passes.checkpoint.decisions import CheckpointDecisions
from treadle.planner.passes.checkpoint.job import CheckpointJob
from treadle.planner.passes.checkpoint.spans import Iteration, Sending
from treadle.planner.search.clock import Clock
from treadle.report.page import Card

if TYPE_CHECKING:
    from treadle.planner.solver import Progress

NAME = "checkpoint"
EXCHANGE = "exchange"


@dataclass(frozen=True)
class CheckpointPart(JobPart):
    job: CheckpointJob

    def plans(self, given: JobInputs) -> Sequence[JobPlan]:
        title = f"checkpoints of {many(given.hardware.nodes, 'machine')} in the memory of others"
        return [JobPlan(NAME, title, partial(_plan, self.job, given))]

    def report(self, plans: Mapping[str, Plan], peak: int | None, measured: TrainingComparison | None) -> PartReport:
        decisions = require_pass(plans[NAME], CheckpointDecisions, f"{NAME}.plan.json").decisions
        longer = f"{format_time(decisions.overflow_ns)} longer" if decisions.overflow_ns else "no longer"
        card = Card(
            "checkpoints in memory",
            often(decisions),
            None,
            f"predicted: an iteration with one is {longer}, a machine takes {format_bytes(decisions.host_bytes)}; "
            f"{_survives(decisions)}",
        )
        unchecked = "checkpoints are planned, and the training of the job makes none"
        return PartReport(details=(card,), unchecked=unchecked if measured is not None else "")


def iteration_of(given: JobInputs) -> Iteration:
    """The job's iteration as its plans predict it: passes, then the exchange of gradients, then the optimizer.

    What no plan decides is as measured without plans, or as the trace states it."""
    compute = [each.compute_ms for each in given.predictions if each.compute_ms is not None]
    exchange_ms = sum(each.exchange_ms or 0.0 for each in given.predictions)
    if given.unplanned is None:
        times = ready_times(given.trace)
        compute_ns, optimizer_ns = times.compute_ns, times.optimizer_ns
    else:
        compute_ns, exchange_ms = round(given.unplanned.compute_s * 1e9), exchange_ms + given.unplanned.exchange_s * 1e3
        optimizer_ns = round(given.unplanned.optimizer_s * 1e9)
    ready = round(sum(compute) * 1e6) if compute else compute_ns
    update = ready + round(exchange_ms * 1e6)
    return Iteration((Sending(EXCHANGE, ready, update),), update, update + optimizer_ns)


def _plan(job: CheckpointJob, given: JobInputs, clock: Clock | None, on_progress: Callable[[Progress], None]) -> Plan:
    from treadle.planner.passes.checkpoint.extract import CheckpointSetup, link_of, problem_of, state_bytes_of
    from treadle.planner.passes.checkpoint.planning import plan_checkpoint
    from treadle.planner.passes.checkpoint.spans import timeline_of

    hardware = given.hardware
    timeline = timeline_of([[iteration_of(given)]], link_of(hardware)[0], given.trace.name)
    setup = CheckpointSetup(copies=job.copies, failures_per_day=job.failures_per_day)
    size = job.state_bytes or state_bytes_of(given.trace)
    documents = {"trace": given.trace, "hardware": hardware}
    return plan_checkpoint(
        problem_of(given.trace.name, hardware, size, timeline, setup),
        clock=clock,
        inputs={role: InputRef(file=f"{role}.json", digest=digest(each)) for role, each in documents.items()},
        on_progress=on_progress,
    )


def _survives(decisions: CheckpointDecisions) -> str:
    from treadle.passes.checkpoint.words import certain, chance

    machines = [each for each in decisions.survival if each.of == "machines"]
    sure = sum(certain(each, decisions) for each in machines)
    partly = next((each for each in machines if each.probability and not certain(each, decisions)), None)
    rest = "" if partly is None else f", {partly.lost} with a probability of {chance(partly, decisions)}"
    return f"{many(sure, 'machine')} may be lost at once{rest}"
