"""A sparse plan in words and figures: schemes, densities, and what another order of sums would save."""

from __future__ import annotations

from typing import Any

from treadle.planner.documents.plan import Plan
from treadle.planner.passes.sparse.decided import cheapest, cost_of
from treadle.planner.passes.sparse.decisions import GradientPlan, SparseDecisions
from treadle.planner.passes.sparse.problem import SparseGradient, SparseProblem
from treadle.planner.passes.sparse.schemes import DENSE, Scheme


def summary(plan: Plan[SparseDecisions]) -> dict[str, Any]:
    """The figures that people ask for first."""
    decisions, proof = plan.decisions, plan.certificate
    problem = decisions.problem
    return {
        "machines": problem.machines,
        "devices": problem.devices,
        "gradients": [
            {
                "name": each.name,
                "scheme": each.scheme,
                "time_ns": cost_of(each, each.scheme).time_ns,
                "dense_ns": cost_of(each, DENSE.name).time_ns,
                "least_ns": each.least_ns,
                "density": density(problem, gradient),
                "sum_density": density(problem, gradient, problem.machines),
                "favours": each.favours,
                "extrapolated": gradient.extrapolated,
            }
            for gradient, each in planned(decisions)
        ],
        "sums": decisions.sums,
        "sent_bytes": sent_bytes(decisions),
        "time_ns": decisions.time_ns,
        "dense_ns": decisions.dense_ns,
        "any_order_ns": any_order_ns(decisions),
        "lower_bound_ns": int(proof.lower_bound),
        "gap": proof.gap,
        "optimal": proof.optimal,
        "bound_argument": proof.argument,
    }


def planned(decisions: SparseDecisions) -> list[tuple[SparseGradient, GradientPlan]]:
    """Every gradient with its plan."""
    return [*zip(decisions.problem.gradients, decisions.gradients, strict=True)]


def sent_bytes(decisions: SparseDecisions, scheme: str | None = None) -> int:
    """Bytes between nodes of the busiest rank, over all gradients: by their schemes, or all by `scheme`."""
    return sum(cost_of(plan, scheme or plan.scheme).bytes for plan in decisions.gradients)


def faster_in_any_order(decisions: SparseDecisions) -> dict[str, str]:
    """The scheme of every gradient, by its name, that takes less time than all that the plan may have, and whose sums
    add the participants in another order that is the same on all of them."""
    found = {each.name: cheapest(each.costs, decisions.problem.machines, "same") for each in decisions.gradients}
    return {
        each.name: found[each.name].scheme
        for each in decisions.gradients
        if found[each.name].time_ns < cheapest(each.costs, decisions.problem.machines, decisions.sums).time_ns
    }


def any_order_ns(decisions: SparseDecisions) -> int:
    """What the exchange would take with these schemes."""
    faster = faster_in_any_order(decisions)
    return sum(cost_of(each, faster.get(each.name, each.scheme)).time_ns for each in decisions.gradients)


def density(problem: SparseProblem, gradient: SparseGradient, participants: int = 1) -> float:
    """The share of a shard's units that are not zero, in the sum of `participants` nodes."""
    return gradient.unions[participants - 1] / problem.shard(gradient)


def title_of(scheme: Scheme) -> str:
    """The place of a scheme in the four dimensions, and its formats if they are not those of all combinations."""
    formats = dict.fromkeys(form for form in (scheme.push, scheme.pull) if form not in (None, "coo"))
    return ", ".join((*scheme.dimensions, *map(str, formats)))
