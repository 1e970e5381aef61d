"""What a job's run says about its plans: verdicts, predictions beside measurements, and the page that shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from treadle.check.plan import quality
from treadle.job.pipeline import Planned
from treadle.job.train import RankResult, Run
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_bytes
from treadle.planner.passes import pass_of, require_pass
from treadle.planner.passes.memory.decisions import MemoryDecisions
from treadle.report.page import Page, Section, Table
from treadle.report.sections import certificates, inputs_table, plan_section

# Relative. Sums in another order differ in the last bits of float32; over a few steps they stay far below this.
TOLERANCE = 1e-4

Verdict = tuple[str, str, bool | None]


@dataclass(frozen=True)
class Outcome:
    """`failures` are promises that the run did not keep; `tables` lay predictions beside measurements."""

    verdicts: tuple[Verdict, ...]
    failures: tuple[str, ...]
    tables: tuple[Table, ...]
    measured_peaks: dict[str, int]

    def as_json(self) -> dict[str, Any]:
        return {
            "verdicts": {label: value for label, value, _ in self.verdicts},
            "failures": list(self.failures),
            "tables": [{"head": table.head, "rows": table.rows} for table in self.tables],
            "measured_peaks": self.measured_peaks,
        }


def outcome(planned: Planned, results: Sequence[RankResult] | None) -> Outcome:
    """Read the results of all ranks; without any, only what the plans predict."""
    decisions = _memory_decisions(planned)
    budget = decisions.problem.budget_bytes
    if results is None:
        predicted = f"{format_bytes(decisions.exact_peak_bytes)} predicted under {format_bytes(budget)}"
        return Outcome((("peak of live tensors", predicted, None),), (), (), {})
    plain, ours = [rank.plain for rank in results], [rank.planned for rank in results]
    peak, plain_peak = _highest(ours), _highest(plain)
    difference = max(abs(a - b) for a, b in zip(_losses(plain), _losses(ours), strict=True))
    same = difference <= TOLERANCE * max(map(abs, _losses(plain)))
    drift = max(rank.parameter_difference for rank in results)
    close = drift <= TOLERANCE * max(rank.parameter_scale for rank in results)
    verdicts: tuple[Verdict, ...] = (
        ("measured peak under the plan, any rank", format_bytes(peak), peak <= budget),
        ("budget", format_bytes(budget), None),
        ("measured peak of plain PyTorch", format_bytes(plain_peak), None),
        ("peak, ratio to plain PyTorch", f"{peak / plain_peak:.2f}x", peak < plain_peak),
        ("largest difference of a mean loss", f"{difference:.2g}", same),
        ("largest difference of a parameter", f"{drift:.2g}", close),
    )
    failures = []
    if peak > budget:
        failures.append(f"measured peak {peak} bytes is over the budget of {budget} bytes")
    if not same:
        failures.append(f"losses differ by {difference:.3g} from plain DistributedDataParallel")
    if not close:
        failures.append(f"parameters differ by {drift:.3g} from plain DistributedDataParallel after the last step")
    return Outcome(
        verdicts,
        tuple(failures),
        (_losses_table(plain, ours), _predictions(planned, decisions, plain, ours)),
        {"measured peak": peak, "plain PyTorch": plain_peak},
    )


def job_page(planned: Planned, summary: Outcome) -> Page:
    """The page of one job: verdicts, comparison, then every plan."""
    sections = []
    if summary.tables:
        steps = planned.job.run.steps
        text = f"The same {steps} steps on {planned.world} processes, from the same seed on the same batches."
        sections.append(Section("Run beside plain DistributedDataParallel", text, summary.tables))
    sections += [
        plan_section(name, plan, planned.hardware, summary.measured_peaks) for name, plan in planned.plans.items()
    ]
    checked = (
        "Every plan was accepted by a checker that shares no code with what made the plan; the memory problem itself "
        "was extracted from the trace by the planner's own code, which only the measured peak of a run tests."
    )
    qualities = {name: proved(planned, plan) for name, plan in planned.plans.items()}
    sections.append(Section("Certificates", checked, (certificates(planned.plans, qualities),)))
    sections.append(Section("Provenance", "What each plan was made from.", (inputs_table(planned.plans),)))
    ranks = f"{planned.world} ranks, {len(planned.trace.ops)} operators"
    return Page(
        title=planned.job.name,
        subtitle=f"{planned.job.model} on {planned.hardware.name}: {ranks}.",
        verdicts=summary.verdicts,
        sections=tuple(sections),
    )


def proved(planned: Planned, plan: Plan) -> str:
    """The quality of a plan of this job: bounds derived again where its inputs suffice, else as this process proved
    them."""
    proof, made_by = plan.certificate, pass_of(plan)
    again = made_by.rebound(plan, planned.inputs).bound_ns
    bound = made_by.least_ns(plan.decisions) if again is None else again
    if proof.lower_bound <= bound:
        return quality(plan, bound)
    return f"{quality(plan, proof.lower_bound)}, bound proved by the solver"


def _memory_decisions(planned: Planned) -> MemoryDecisions:
    return require_pass(planned.plans["memory"], MemoryDecisions, "memory.plan.json").decisions


def _losses(runs: Sequence[Run]) -> list[float]:
    """Mean loss over the ranks, step by step."""
    return [sum(losses) / len(losses) for losses in zip(*(run.losses for run in runs), strict=True)]


def _highest(runs: Sequence[Run]) -> int:
    return max(peak for run in runs for peak in run.peaks)


def _losses_table(plain: Sequence[Run], ours: Sequence[Run]) -> Table:
    rows = zip(_losses(plain), _losses(ours), strict=True)
    return Table(
        ("step", "loss, plain", "loss, planned", "difference"),
        tuple((str(step + 1), f"{a:.6f}", f"{b:.6f}", f"{b - a:+.1e}") for step, (a, b) in enumerate(rows)),
        "Mean loss over the ranks.",
    )


def _predictions(planned: Planned, decisions: MemoryDecisions, plain: Sequence[Run], ours: Sequence[Run]) -> Table:
    compute = median(seconds for run in ours for seconds in run.compute_seconds) * 1e3
    exchange = median(seconds for run in ours for seconds in run.exchange_seconds) * 1e3
    plain_step = median(
        sum(pair) for run in plain for pair in zip(run.compute_seconds, run.exchange_seconds, strict=True)
    )
    predicted_exchange = sum(_milliseconds(planned.plans[name]) for name in planned.collectives)
    memory = _milliseconds(planned.plans["memory"])
    rows = (
        _row("peak of live tensors, MiB", decisions.exact_peak_bytes / 2**20, _highest(ours) / 2**20),
        _row("forward and backward, ms", memory, compute),
        _row("exchange of gradients, ms", predicted_exchange, exchange),
        _row("planned step with its exchange, ms", memory + predicted_exchange, compute + exchange),
        ("plain step with its exchange, ms", "", f"{plain_step * 1e3:,.1f}", ""),
    )
    caption = (
        f"Times are medians over steps and ranks; {planned.world} processes share this machine. The exchange is "
        "followed message by message in Python, which takes longer than the links of the profile."
    )
    return Table(("quantity", "predicted", "measured", "measured / predicted"), rows, caption)


def _milliseconds(plan: Plan) -> float:
    return plan.prediction.time_us / 1e3


def _row(label: str, predicted: float, measured: float) -> tuple[str, str, str, str]:
    ratio = f"{measured / predicted:.2f}" if predicted else ""
    return label, f"{predicted:,.1f}", f"{measured:,.1f}", ratio
