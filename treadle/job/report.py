"""The report of a job's run: cards, predictions compared with measurements, and the page that shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from treadle.check.plan import quality
from treadle.job.part import MeasuredTraining, PartReport, PredictedRow, TrainingComparison
from treadle.job.pipeline import Planned
from treadle.job.train import RankResult, RankTraining
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import many
from treadle.planner.passes import pass_of
from treadle.report.cards import time_card
from treadle.report.page import Card, Page, Section, Table
from treadle.report.sections import certificate_sections, plan_section

# Relative. Sums in another order differ in the last bits of float32; over a few steps they stay far below this.
TOLERANCE = 1e-4


@dataclass(frozen=True)
class JobSummary:
    """`failures` are promises that the run did not keep; `tables` compare predictions with measurements; `unchecked`
    names what the checkers rely on."""

    cards: tuple[Card, ...]
    failures: tuple[str, ...]
    tables: tuple[Table, ...]
    measured_peaks: dict[str, int]
    unchecked: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "verdicts": {
                card.label: {"value": card.value, "good": card.good, "note": card.note} for card in self.cards
            },
            "failures": list(self.failures),
            "tables": [{"head": table.head, "rows": table.rows} for table in self.tables],
            "measured_peaks": self.measured_peaks,
        }


def outcome(planned: Planned, results: Sequence[RankResult] | None) -> JobSummary:
    """Read the results of all ranks; without any, only what the plans predict."""
    plain, ours = [rank.plain for rank in results or ()], [rank.planned for rank in results or ()]
    measured = TrainingComparison(_measured(plain), _measured(ours)) if results else None
    reports = [planned_part.part.report(planned_part.plans, measured) for planned_part in planned.parts]
    cards = [card for report in reports for card in report.cards]
    failures = [failure for report in reports for failure in report.failures]
    unchecked = tuple(report.unchecked for report in reports if report.unchecked)
    if results is None or measured is None:
        return JobSummary(tuple(cards), tuple(failures), (), {}, unchecked)
    difference = max(abs(a - b) for a, b in zip(_losses(plain), _losses(ours), strict=True))
    same = difference <= TOLERANCE * max(map(abs, _losses(plain)))
    drift = max(rank.parameter_difference for rank in results)
    close = drift <= TOLERANCE * max(rank.parameter_scale for rank in results)
    steps = len(_losses(plain))
    found = f"over {many(steps, 'step')}: largest difference of a mean loss {difference:.2g}, "
    cards += [
        _step_time(measured),
        Card(
            "same numbers",
            "yes, measured" if same and close else "no",
            same and close,
            f"{found}of a parameter {drift:.2g}",
        ),
    ]
    if not same:
        failures.append(f"losses differ by {difference:.3g} from plain DistributedDataParallel")
    if not close:
        failures.append(f"parameters differ by {drift:.3g} from plain DistributedDataParallel after the last step")
    return JobSummary(
        tuple(cards),
        tuple(failures),
        (_losses_table(plain, ours), _predictions(planned.world, reports, measured.planned, plain)),
        {"measured peak": measured.planned.peak_bytes, "plain PyTorch": measured.plain.peak_bytes},
        unchecked,
    )


def job_page(planned: Planned, summary: JobSummary, timeline: str | None = None) -> Page:
    """The page of one job: cards, comparison, then every plan. timeline: the file with the timelines, if any."""
    sections = []
    if summary.tables:
        steps = planned.job.run.steps
        text = f"The same {steps} steps on {planned.world} processes, from the same seed on the same batches."
        sections.append(Section("Run compared with plain DistributedDataParallel", text, summary.tables))
    hardware = planned.given.hardware
    sections += [plan_section(name, plan, hardware, summary.measured_peaks) for name, plan in planned.plans.items()]
    checked = "Every plan was accepted by a checker that shares no code with what made the plan"
    qualities = {name: proved(planned, plan) for name, plan in planned.plans.items()}
    sections += certificate_sections(planned.plans, qualities, f"{'; '.join((checked, *summary.unchecked))}.")
    ranks = f"{planned.world} ranks, {len(planned.given.trace.ops)} operators"
    return Page(
        title=planned.job.name,
        subtitle=f"{planned.job.model} on {hardware.name}: {ranks}.",
        cards=summary.cards,
        sections=tuple(sections),
        timeline=timeline,
    )


def _step_time(measured: TrainingComparison) -> Card:
    """The time of a step with its exchange of gradients."""
    ours, plain = ((run.compute_s + run.exchange_s) * 1e9 for run in (measured.planned, measured.plain))
    return time_card("step time", ours, plain, "plain DistributedDataParallel", "measured")


def proved(planned: Planned, plan: Plan) -> str:
    """The quality of a plan of this job: bounds derived again where its inputs suffice, else as this process proved
    them."""
    proof, made_by = plan.certificate, pass_of(plan)
    again = made_by.rebound(plan, planned.inputs).bound_ns
    bound = made_by.least_ns(plan.decisions) if again is None else again
    if proof.lower_bound <= bound:
        return quality(plan, bound)
    return f"{quality(plan, proof.lower_bound)}, bound proved by the solver"


def _losses(runs: Sequence[RankTraining]) -> list[float]:
    """Mean loss over the ranks, step by step."""
    return [sum(losses) / len(losses) for losses in zip(*(run.losses for run in runs), strict=True)]


def _measured(runs: Sequence[RankTraining]) -> MeasuredTraining:
    return MeasuredTraining(
        max(peak for run in runs for peak in run.peaks),
        median(seconds for run in runs for seconds in run.compute_seconds),
        median(seconds for run in runs for seconds in run.exchange_seconds),
    )


def _losses_table(plain: Sequence[RankTraining], ours: Sequence[RankTraining]) -> Table:
    rows = zip(_losses(plain), _losses(ours), strict=True)
    return Table(
        ("step", "loss, plain", "loss, planned", "difference"),
        tuple(
            (str(step + 1), f"{a:.6f}", f"{b:.6f}", f"{b - a:+.1e}" if b != a else "0")
            for step, (a, b) in enumerate(rows)
        ),
        "Mean loss over the ranks.",
    )


def _predictions(
    world: int, reports: Sequence[PartReport], ours: MeasuredTraining, plain: Sequence[RankTraining]
) -> Table:
    plain_step = median(
        sum(pair) for run in plain for pair in zip(run.compute_seconds, run.exchange_seconds, strict=True)
    )
    step_ms = sum(report.step_ms for report in reports)
    rows = [row for report in reports for row in report.rows]
    rows.append(PredictedRow("planned step with its exchange, ms", step_ms, (ours.compute_s + ours.exchange_s) * 1e3))
    processes = f"Times are medians over steps and ranks; {world} processes share this machine."
    return Table(
        ("quantity", "predicted", "measured", "measured / predicted"),
        (*map(_cells, rows), ("plain step with its exchange, ms", "", f"{plain_step * 1e3:,.1f}", "")),
        " ".join((processes, *(report.note for report in reports if report.note))),
    )


def _cells(row: PredictedRow) -> tuple[str, str, str, str]:
    ratio = f"{row.measured / row.predicted:.2f}" if row.predicted else ""
    return row.label, f"{row.predicted:,.1f}", f"{row.measured:,.1f}", ratio
