"""Whether decisions have a priced scheme for every gradient, and their totals are those of the chosen ones."""

from __future__ import annotations

from treadle.planner.passes.sparse.decisions import SparseDecisions


def check(decisions: SparseDecisions) -> list[str]:
    """Findings; none for decisions that are sound."""
    names = [gradient.name for gradient in decisions.problem.gradients]
    if [plan.name for plan in decisions.gradients] != names:
        return ["$.decisions.gradients: other names than in the problem"]
    total = 0
    for place, plan in enumerate(decisions.gradients):
        times = {cost.scheme: cost.time_ns for cost in plan.costs}
        if plan.scheme not in times:
            return [f"$.decisions.gradients[{place}].scheme: {plan.scheme!r} has no price"]
        total += times[plan.scheme]
    if total != decisions.time_ns:
        return [f"$.decisions.time_ns: {decisions.time_ns}, the schemes take {total}"]
    return []
