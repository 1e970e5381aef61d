"""The figures of an order of hosts in words."""

from __future__ import annotations

from typing import Any

from treadle.planner.documents.plan import Certificate, Plan
from treadle.planner.documents.scalars import format_bytes, format_time, many
from treadle.planner.passes.ranks.decisions import RanksDecisions

LISTED = 16
"""The most hosts that are listed."""


def described(decisions: RanksDecisions, proof: Certificate) -> list[tuple[str, str]]:
    """Lines for people, each with its name: what was ordered, costs next to those of other orders, proof, order."""
    problem, cost = decisions.problem, decisions.cost_ns
    slots = problem.hosts[0].slots
    verdict = "proved optimal" if proof.optimal else f"gap {proof.gap:.2%}"
    return [
        ("hosts", f"{len(problem.hosts)}, {many(slots, 'rank')} each"),
        ("collective", collective(decisions)),
        ("cost", f"{format_time(cost)}, {OBJECTIVES[problem.objective]}"),
        *zip(("against", "", ""), compared(decisions), strict=True),
        ("prediction", f"{format_time(decisions.time_ns)} for {predicted(decisions)}"),
        ("lower bound", f"{format_time(proof.lower_bound)}, {verdict}: {proof.argument}"),
        ("order", _listed(ordered(decisions))),
    ]


def compared(decisions: RanksDecisions) -> tuple[str, str, str]:
    """Lines on what other orders cost."""
    cost = decisions.cost_ns
    return (
        f"{_times(decisions.original_ns, cost)} as handed out",
        f"{_times(decisions.median_ns, cost)} in the median of random orders",
        f"{_times(decisions.worst_ns, cost)} in the worst order found",
    )


OBJECTIVES = {
    "sum": "by the model of the algorithm",
    "bottleneck": "its dearest hop",
    "bytes": "latencies times bytes, relative to the smallest message",
}
"""What a cost is, by the objective."""


def collective(decisions: RanksDecisions) -> str:
    """The algorithm with its size, if that counts."""
    problem = decisions.problem
    if problem.algorithm == "plan":
        return f"plan of {format_bytes(problem.size_bytes)} in {many(len(problem.hops), 'message')}"
    groups = f" in groups of {', '.join(map(str, problem.factors))}" if problem.factors else ""
    known = ", latencies only" if problem.ns_per_MiB is None else f" of {format_bytes(problem.size_bytes)}"
    return f"{problem.algorithm}{groups}{known}"


def ordered(decisions: RanksDecisions) -> list[str]:
    """Names of hosts by place."""
    return [decisions.problem.hosts[host].name for host in decisions.order]


def summary(plan: Plan[RanksDecisions]) -> dict[str, Any]:
    """The figures for programs."""
    decisions, proof = plan.decisions, plan.certificate
    problem = decisions.problem
    return {
        "hosts": len(problem.hosts),
        "slots": problem.hosts[0].slots,
        "algorithm": problem.algorithm,
        "objective": problem.objective,
        "size_bytes": problem.size_bytes,
        "order": ordered(decisions),
        "cost_ns": decisions.cost_ns,
        "original_ns": decisions.original_ns,
        "median_ns": decisions.median_ns,
        "worst_ns": decisions.worst_ns,
        "time_ns": decisions.time_ns,
        "lower_bound_ns": proof.lower_bound,
        "bound_argument": proof.argument,
        "gap": proof.gap,
        "optimal": proof.optimal,
        "method": plan.provenance.method,
        "limit_fired": plan.provenance.limit_fired,
        "interrupted": plan.provenance.interrupted,
    }


def _times(other: int, cost: int) -> str:
    return f"{format_time(other)} ({other / cost:.2f}x)" if cost else format_time(other)


def predicted(decisions: RanksDecisions) -> str:
    """What the prediction is of."""
    return "the plan" if decisions.problem.algorithm == "plan" else "an allreduce"


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return f"{' '.join(names[:LISTED])}{more}"
