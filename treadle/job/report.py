"""The report of a job's run: cards, predictions compared with measurements, and the page that shows them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from treadle.check.plan import quality
from treadle.host.cores import cores
from treadle.job.numbers import compare
from treadle.job.part import MeasuredTraining, PartPrediction, PredictedRow, StepTimes, TrainingComparison
from treadle.job.pipeline import Planned
from treadle.job.train import RankResult, RankTraining
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_bytes
from treadle.planner.documents.trace import Trace
from treadle.planner.passes import pass_of
from treadle.report.cards import time_card
from treadle.report.page import Card, Page, Section, Table
from treadle.report.sections import certificate_sections, plan_section
from treadle.report.trust import trust_sections

TOLERATED = 1 / 3
"""How far a measured number may be from its prediction, relative to the prediction."""
FRESH = "costs are those of an earlier run, --fresh-costs measures anew"
NOTABLE = 0.1
"""The share of the time for which other work has the cores and from which on the report says so."""
PEAK = "peak of live tensors"
COMPUTE, EXCHANGE, OPTIMIZER = "forward and backward", "exchange of gradients", "optimizer"
STEP = "step with its exchange"
EXCHANGE_PEAK = "The exchange takes {}: a message next to all gradients; more buckets make messages smaller."
NOT_MEASURED = "predictions: not compared, nothing ran"
MODELLED = "predictions: not compared, times are modelled for another machine than this one"


@dataclass(frozen=True)
class JobSummary:
    """`line` says how near the predictions are; `failures` are promises that the run did not keep; `tables` compare
    predictions with measurements; `unchecked` names what the checkers rely on."""

    line: str
    cards: tuple[Card, ...]
    failures: tuple[str, ...]
    tables: tuple[Table, ...]
    measured_peaks: dict[str, int]
    unchecked: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "predictions": self.line,
            "verdicts": {
                card.label: {"value": card.value, "good": card.good, "note": card.note} for card in self.cards
            },
            "failures": list(self.failures),
            "tables": [{"head": table.head, "rows": table.rows} for table in self.tables],
            "measured_peaks": self.measured_peaks,
        }


def outcome(planned: Planned, results: Sequence[RankResult] | None) -> JobSummary:
    """Read the results of all ranks; without any, only what the plans predict."""
    measured = None
    if results:
        plain, ours = ([getattr(rank, run) for rank in results] for run in ("plain", "planned"))
        measured = TrainingComparison(_measured(plain), _measured(ours))
    predictions = [planned_part.part.prediction(planned_part.plans) for planned_part in planned.parts]
    in_passes, in_exchange = predicted_peaks(planned.given.trace, predictions)
    peak = None if in_passes is None else max(in_passes, in_exchange)
    reports = [planned_part.part.report(planned_part.plans, peak, measured) for planned_part in planned.parts]
    cards, details = ([card for r in reports for card in getattr(r, kind)] for kind in ("cards", "details"))
    failures = [failure for report in reports for failure in report.failures]
    notes = []
    if in_passes is not None and in_exchange > in_passes:
        notes.append(EXCHANGE_PEAK.format(format_bytes(in_exchange)))
        failures += notes if failures else []
    unchecked = tuple(report.unchecked for report in reports if report.unchecked)
    if results is None or measured is None:
        return JobSummary(NOT_MEASURED, (*cards, *details), tuple(failures), (), {}, unchecked)
    unplanned = planned.given.unplanned
    busy = busy_share(measured.planned, cores())
    rows = [] if peak is None else [PredictedRow(PEAK, peak / 2**20, measured.planned.peak_bytes / 2**20, "MiB")]
    rows += times_rows(predictions, unplanned, measured.planned.step)
    numbers = compare(results, planned.losses)
    cards += [_step_time(measured), *numbers.cards, *details]
    failures += numbers.failures
    return JobSummary(
        verdict(rows, busy, reused=planned.reused) if unplanned else MODELLED,
        tuple(cards),
        tuple(failures),
        (
            predictions_table(rows, measured.plain.step.step_s, planned.world, busy, notes),
            _ranks_table(measured),
            numbers.table,
        ),
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
    sections += trust_sections(planned.plans)
    checked = "Every plan was accepted by a checker that shares no code with what made the plan"
    qualities = {name: proved(planned, plan) for name, plan in planned.plans.items()}
    sections += certificate_sections(planned.plans, qualities, f"{'; '.join((checked, *summary.unchecked))}.")
    ranks = f"{planned.world} ranks, {len(planned.given.trace.ops)} operators"
    return Page(
        title=planned.job.name,
        lead=summary.line,
        subtitle=f"{planned.job.model} on {hardware.name}: {ranks}.",
        cards=summary.cards,
        sections=tuple(sections),
        timeline=timeline,
    )


def _step_time(measured: TrainingComparison) -> Card:
    """The time of a step with its exchange of gradients."""
    ours, plain = (run.step.step_s * 1e9 for run in (measured.planned, measured.plain))
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


def _measured(runs: Sequence[RankTraining]) -> MeasuredTraining:
    return MeasuredTraining(tuple(run.measured for run in runs))


def predicted_peaks(trace: Trace, predictions: Sequence[PartPrediction]) -> tuple[int | None, int]:
    """Bytes of live tensors at the peak of the passes, None where no part plans it, and during the exchange, next to
    all gradients."""
    passes = [each.compute_bytes for each in predictions if each.compute_bytes is not None]
    in_exchange = resident_bytes(trace) + sum(each.exchange_bytes for each in predictions)
    return max(passes, default=None), in_exchange


def resident_bytes(trace: Trace) -> int:
    """What lives after the backward pass: parameters, buffers, inputs, outputs and gradients of parameters."""
    ids = {tensor.id: tensor for tensor in trace.tensors}
    held = [tensor for tensor in trace.tensors if tensor.role in ("parameter", "buffer", "input")]
    held += [ids[each] for each in (*trace.gradient_order, *trace.outputs)]
    return sum(tensor.bytes or 0 for tensor in held)


def times_rows(
    predictions: Sequence[PartPrediction], unplanned: StepTimes | None, ours: StepTimes
) -> tuple[PredictedRow, ...]:
    """The parts of a step and the step itself, predicted by the plans and, where they decide nothing, by what was
    measured without plans; without that only what plans predict."""
    compute = [each.compute_ms for each in predictions if each.compute_ms is not None]
    messages = [each.exchange_ms for each in predictions if each.exchange_ms is not None]
    before = None if unplanned is None else StepTimes(*(seconds * 1e3 for seconds in unplanned))
    rows = []
    if compute or before:
        rows.append(
            PredictedRow(COMPUTE, sum(compute) if compute or before is None else before.compute_s, ours[0] * 1e3)
        )
    if messages:
        packing = 0.0 if before is None else before.exchange_s
        rows.append(PredictedRow(EXCHANGE, sum(messages) + packing, ours.exchange_s * 1e3))
    if before:
        rows.append(PredictedRow(OPTIMIZER, before.optimizer_s, ours.optimizer_s * 1e3))
    rows.append(PredictedRow(STEP, sum(row.predicted for row in rows), ours.step_s * 1e3))
    return tuple(rows)


def busy_share(measured: MeasuredTraining, cores: int) -> float:
    """The share of the forward and backward pass for which other work had the cores, from 0 to 1."""
    return max(0.0, 1 - measured.undisturbed_s(cores) / measured.step.compute_s)


def verdict(rows: Sequence[PredictedRow], busy: float, *, reused: bool = False) -> str:
    """One line on all predictions: each that is off by more than `TOLERATED` of itself, or how far off the worst is.
    `busy` is the share of the time for which other work had the cores; `reused` says that an earlier run measured the
    costs."""
    worst = max(rows, key=_off)
    wrong = [row for row in rows if _off(row) > TOLERATED]
    if not wrong:
        return f"predictions: all within {math.ceil(_off(worst) * 100)}% of measured, the farthest is {worst.label}"
    terms = (f"{row.label} (predicted {row.predicted:,.1f} {row.unit}, measured {row.measured:,.1f})" for row in wrong)
    others = [f"; other work had the cores for {busy:.0%} of the time"] if busy > NOTABLE else []
    others += [f"; {FRESH}"] if reused else []
    return f"predictions: off by more than a third: {', '.join(terms)}{''.join(others)}"


def _off(row: PredictedRow) -> float:
    return abs(row.measured - row.predicted) / row.predicted if row.predicted else math.inf if row.measured else 0.0


def predictions_table(
    rows: Sequence[PredictedRow], plain_s: float, world: int, busy: float, notes: Sequence[str] = ()
) -> Table:
    """Predicted and measured numbers. `plain_s`: the measured step of plain DistributedDataParallel."""
    caption = [f"Times are medians over steps of the last rank; {world} processes share this machine."]
    if busy > NOTABLE:
        caption.append(f"Other work had the cores for {busy:.0%} of the time.")
    return Table(
        ("quantity", "predicted", "measured", "measured / predicted"),
        (*map(_cells, rows), (f"plain {STEP}, ms", "", f"{plain_s * 1e3:,.1f}", "")),
        " ".join((*caption, *notes)),
    )


def _ranks_table(measured: TrainingComparison) -> Table:
    return Table(
        ("rank", f"{PEAK}, MiB", *(f"{label}, ms" for label in (COMPUTE, EXCHANGE, OPTIMIZER))),
        tuple(
            (str(number), f"{rank.peak_bytes / 2**20:,.2f}", *(f"{seconds * 1e3:,.1f}" for seconds in rank.times))
            for number, rank in enumerate(measured.planned.ranks)
        ),
        "Measured under the plans, by rank.",
    )


def _cells(row: PredictedRow) -> tuple[str, str, str, str]:
    ratio = f"{row.measured / row.predicted:.2f}" if row.predicted else ""
    return f"{row.label}, {row.unit}", f"{row.predicted:,.1f}", f"{row.measured:,.1f}", ratio
