"""Whether a committed plan is still as good on the inputs of today as it was on those that it was made from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from msgspec.structs import replace

from treadle.check.plan import with_costs
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import Decisions, format_bytes, format_time
from treadle.planner.errors import InputError
from treadle.planner.passes import pass_of
from treadle.planner.passes.interface import Figures, Inputs


class Today(NamedTuple):
    """Findings, and the figures of the plan's decisions as recorded and on the inputs of today, None without any. The
    gaps are shares of the time, to the lower bound derived from each."""

    findings: list[str]
    recorded: Figures
    now: Figures | None
    gaps: tuple[float, float] | None = None

    @property
    def words(self) -> str:
        """`predicted 1.2 ms today, +3.10% of the plan's`."""
        if self.now is None:
            return ""
        share = _growth(self.recorded.time_ns, self.now.time_ns)
        return f"{format_time(self.now.time_ns)} on the inputs of today, {share:+.2%}"


def judge_today(plan: Plan, found: Inputs, most: float, changed: bool) -> Today:
    """Evaluate the decisions again on `found`. Time and peak must not be worse by more than the share `most`, nor the
    ratio of time and lower bound where an input has `changed`; the decisions must pass their check, budget included."""
    made_by = pass_of(plan)
    recorded = made_by.figures(plan.decisions)
    found = with_costs(plan, found)
    try:
        decisions = made_by.today(plan, found)
    except InputError as error:
        return Today([f"stale: {error}"], recorded, None)
    if decisions is None:
        return Today(["stale: too few of its inputs were found to predict it again; plan again"], recorded, None)
    now = made_by.figures(decisions)
    findings = [f"today: {finding}" for finding in made_by.check(decisions)]
    findings += _worse("time", recorded.time_ns, now.time_ns, most, format_time)
    findings += _worse("peak", recorded.peak_bytes or 0, now.peak_bytes or 0, most, format_bytes)
    bounds = _bounds(plan, decisions, found) if changed else None
    if bounds is None or not recorded.time_ns or not now.time_ns:
        return Today(findings, recorded, now)
    gaps = 1 - bounds[0] / recorded.time_ns, 1 - bounds[1] / now.time_ns
    if now.time_ns / bounds[1] > recorded.time_ns / bounds[0] * (1 + most):
        change = f"gap {gaps[1]:.2%} today, {gaps[0]:.2%} recorded, allowed {most:.2%} of the time more"
        findings.append(f"regression: {change}: a better plan may exist; plan again")
    return Today(findings, recorded, now, gaps)


def _bounds(plan: Plan, decisions: Decisions, found: Inputs) -> tuple[float, float] | None:
    """Lower bounds in ns of the recorded decisions and of those of today, derived alike where decisions suffice."""
    made_by = pass_of(plan)
    before, after = made_by.least_ns(plan.decisions), made_by.least_ns(decisions)
    if before and after:
        return before, after
    again = made_by.rebound(replace(plan, decisions=decisions), found).bound_ns
    return (plan.certificate.lower_bound, again) if again and plan.certificate.lower_bound else None


def _worse(what: str, before: int, after: int, most: float, words: Callable[[int], str]) -> Iterator[str]:
    if after > before * (1 + most):
        change = f"{words(after)} today, {words(before)} recorded, {_growth(before, after):+.2%}"
        yield f"regression: {what} {change}, allowed {most:+.2%}; plan again"


def _growth(before: float, after: float) -> float:
    return after / before - 1 if before else float(after > 0)
