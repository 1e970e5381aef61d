"""A plan checked on its own, against its inputs, and its bound derived again."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from treadle.passes import room_of
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import many
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import CheckFailed
from treadle.planner.passes import pass_of
from treadle.planner.passes.interface import Inputs
from treadle.planner.search.check_tuned import check_tuned


def check_plan(plan: Plan) -> list[str]:
    """What is wrong with a plan on its own: its decisions, the numbers that follow from them, what was measured."""
    made_by = pass_of(plan)
    findings = [*made_by.findings(plan.decisions), *made_by.check_certificate(plan), *_certificate(plan)]
    return [*findings, *check_tuned(plan.provenance)]


def require_accepted(plan: Plan, where: str) -> None:
    """Raises CheckFailed for a plan that `check_plan` finds anything wrong with; errors call it `where`."""
    findings = check_plan(plan)
    if findings:
        raise CheckFailed(f"{where}: rejected: {many(len(findings), 'finding')}", tuple(findings))


def check_against(plan: Plan, found: Inputs) -> list[str]:
    """Recheck a plan against those of its inputs that were found."""
    found = with_costs(plan, found)
    return [*pass_of(plan).check_inputs(plan, found), *room_of(plan).check_prediction(plan, found)]


def with_costs(plan: Plan, found: Inputs) -> Inputs:
    """The inputs, with times in the trace where the pass needs some and the machine is known."""
    trace, hardware = found.get("trace"), found.get("hardware")
    if (
        pass_of(plan).needs_costs
        and isinstance(trace, Trace)
        and trace.costs.model == "absent"
        and isinstance(hardware, Hardware)
    ):
        from treadle.capture.costs import with_roofline

        return {**found, "trace": with_roofline(trace, hardware)}
    return found


def quality(plan: Plan, bound: float | None = None) -> str:
    """In the words of the pass, or the gap; as a claim where the certificate's bound is above `bound`, the one derived
    again.

    By default that is what the plan alone proves.
    """
    proof, made_by = plan.certificate, pass_of(plan)
    if bound is None:
        bound = made_by.least_ns(plan.decisions)
    if proof.lower_bound <= bound:
        return made_by.optimal(plan) if proof.optimal else f"gap {proof.gap:.2%}"
    return f"it claims to be {made_by.optimal(plan)}" if proof.optimal else f"it claims a gap of {proof.gap:.2%}"


def _certificate(plan: Plan) -> Iterator[str]:
    """The numbers of a certificate must follow from the plan and from each other."""
    proof, figures = plan.certificate, pass_of(plan).figures(plan.decisions)
    if proof.unit != "ns":
        yield f"certificate: unit {proof.unit!r}, expected 'ns'"
    if proof.objective != figures.time_ns:
        yield f"certificate: objective {proof.objective:g} {proof.unit}, the plan takes {figures.time_ns} ns"
    predicted, times = plan.prediction.time_us, pass_of(plan).times_us(plan)
    if not any(math.isclose(predicted, time, rel_tol=1e-9) for time in times):
        yield f"prediction: time {predicted:g} us, the plan takes {times[0]:g} us"
    if figures.peak_bytes is not None and plan.prediction.peak_bytes != figures.peak_bytes:
        yield f"prediction: peak of {plan.prediction.peak_bytes} bytes, the plan's is {figures.peak_bytes} bytes"
    if proof.lower_bound > proof.objective:
        yield f"certificate: lower bound {proof.lower_bound:g} above the objective {proof.objective:g}"
    gap = (proof.objective - proof.lower_bound) / proof.objective if proof.objective else 0.0
    if not math.isclose(proof.gap, gap, rel_tol=1e-6, abs_tol=1e-9):
        yield f"certificate: gap {proof.gap:g}, objective and lower bound make it {gap:g}"
    if proof.terms_ns and (total := sum(proof.terms_ns.values())) != proof.lower_bound:
        yield f"certificate: lower bound {proof.lower_bound:g} ns, the terms of its argument add up to {total} ns"
    stated = sorted(map(int, re.findall(r"\b(\d+) ns\b", proof.argument)))
    if proof.terms_ns and stated != sorted(proof.terms_ns.values()):
        yield f"certificate: the sentence of its argument states {stated} ns, its terms {dict(proof.terms_ns)}"
    if proof.optimal and proof.lower_bound != proof.objective:
        yield "certificate: says optimal, but the lower bound is not the objective"
    if not proof.optimal and proof.lower_bound == proof.objective:
        yield "certificate: says not optimal, but the lower bound is the objective"
