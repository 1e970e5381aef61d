"""Whether a sparse plan may run, from its decisions alone: costs of all schemes, choices, hash memory, totals.

It shares no code with what prices schemes for the planner.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from treadle.planner.passes.sparse.check_bytes import exchange_size
from treadle.planner.passes.sparse.check_costs import (
    counted_cost,
    counted_least,
    counted_slots,
    favoured,
    priced_schemes,
)
from treadle.planner.passes.sparse.decisions import GradientPlan, SchemeCost, SparseDecisions
from treadle.planner.passes.sparse.problem import SparseGradient
from treadle.planner.passes.sparse.schemes import BY_NAME

Findings = Iterator[tuple[str, object, str]]
"""Path, what was found there, and what was expected."""


def check(decisions: SparseDecisions) -> list[str]:
    """Findings, each with its path; none for a plan that may run, whose costs are those of its problem, and that has
    the cheapest schemes, or measured ones."""
    return sound(decisions) or beaten(decisions)


def sound(decisions: SparseDecisions) -> list[str]:
    """Findings; none for a plan that may run and whose costs are those of its problem, be there cheaper schemes."""
    found: list[tuple[str, object, str]] = [*decisions.problems()]
    found = found or [*_names(decisions)] or [*_gradients(decisions)]
    return [f"{path}: found {seen}, expected {expected}" for path, seen, expected in found]


def beaten(decisions: SparseDecisions) -> list[str]:
    """Gradients for which another scheme is cheaper, by the costs of a sound plan; none where times chose."""
    if decisions.measured:
        return []
    found = []
    for place, plan in enumerate(decisions.gradients):
        best = cheapest(decisions, plan.costs)
        if plan.scheme != best.scheme:
            why = f"{best.scheme}, the cheapest with sums={decisions.sums!r}: {best.time_ns} ns"
            found.append(f"$.decisions.gradients[{place}].scheme: found {plan.scheme}, expected {why}")
    return found


def _names(decisions: SparseDecisions) -> Findings:
    """The gradients of the problem, all and in order, and seeds that differ: two hash functions of one seed would place
    all indices of a part in the same few slots."""
    wanted = [gradient.name for gradient in decisions.problem.gradients]
    found = [plan.name for plan in decisions.gradients]
    if len(found) != len(wanted):
        expected = f"one for each of the problem's {len(wanted)} gradients"
        yield "$.decisions.gradients", f"plans of {len(found)}", expected
        return
    for place, (mine, right) in enumerate(zip(found, wanted, strict=True)):
        if mine != right:
            yield f"$.decisions.gradients[{place}].name", repr(mine), f"{right!r}, as in the problem"
    for place, seed in enumerate(decisions.seeds):
        if seed in decisions.seeds[:place]:
            yield f"$.decisions.seeds[{place}]", f"{seed} again", "seeds that occur once"


def _gradients(decisions: SparseDecisions) -> Findings:
    """Costs, choices among what is allowed, the figures of each gradient, and their sums."""
    total = dense = 0
    for place, (gradient, plan) in enumerate(zip(decisions.problem.gradients, decisions.gradients, strict=True)):
        costs = [counted_cost(decisions.problem, gradient, scheme) for scheme in priced_schemes(gradient)]
        times = {cost.scheme: cost.time_ns for cost in costs}
        path = f"$.decisions.gradients[{place}]"
        if plan.scheme not in times:
            yield f"{path}.scheme", plan.scheme, f"a scheme with a price: {', '.join(times)}"
            return
        if not _is_allowed(decisions, plan.scheme):
            order = BY_NAME[plan.scheme].order(decisions.problem.machines)
            yield f"{path}.scheme", f"{plan.scheme}, order of sums {order!r}", f"one for sums={decisions.sums!r}"
        yield from _costs(plan, costs, path)
        yield from _figures(decisions, gradient, plan, costs, path)
        total += times[plan.scheme]
        dense += times["dense"]
    for name, right in (("time_ns", total), ("dense_ns", dense)):
        if (mine := getattr(decisions, name)) != right:
            yield f"$.decisions.{name}", mine, f"{right}, the sum over gradients"


def _is_allowed(decisions: SparseDecisions, scheme: str) -> bool:
    allowed = {"worker"} if decisions.sums == "worker" else {"worker", "tree", "ring"}
    return BY_NAME[scheme].order(decisions.problem.machines) in allowed


def cheapest(decisions: SparseDecisions, costs: Sequence[SchemeCost]) -> SchemeCost:
    """The cheapest scheme that adds up in an allowed order; ties prefer dense, the first of all."""
    return min((each for each in costs if _is_allowed(decisions, each.scheme)), key=lambda cost: cost.time_ns)


def _costs(plan: GradientPlan, right: list[SchemeCost], path: str) -> Findings:
    """Every scheme once, in the order of the list, with its bytes and times."""
    mine, wanted = [cost.scheme for cost in plan.costs], [cost.scheme for cost in right]
    if mine != wanted:
        at = next((at for at, pair in enumerate(zip(mine, wanted, strict=False)) if pair[0] != pair[1]), None)
        if at is None:
            yield f"{path}.costs", f"{len(mine)} schemes", f"{len(wanted)} that can be priced: {', '.join(wanted)}"
        else:
            yield f"{path}.costs[{at}].scheme", repr(mine[at]), f"{wanted[at]!r}, in the order of schemes"
        return
    for at, (cost, truth) in enumerate(zip(plan.costs, right, strict=True)):
        for name in ("bytes", "link_ns", "time_ns"):
            if (seen := getattr(cost, name)) != (expected := getattr(truth, name)):
                yield f"{path}.costs[{at}].{name}", seen, f"{expected} of {cost.scheme}"


def _figures(
    decisions: SparseDecisions, gradient: SparseGradient, plan: GradientPlan, costs: list[SchemeCost], path: str
) -> Findings:
    """The least time, the case of the theorem, and hash memory."""
    problem, scheme = decisions.problem, BY_NAME[plan.scheme]
    least = counted_least(problem, gradient, min(cost.time_ns for cost in costs))
    if plan.least_ns != least:
        yield f"{path}.least_ns", plan.least_ns, f"{least}, which no scheme is below"
    if plan.favours != (case := favoured(gradient, problem.machines)):
        yield f"{path}.favours", repr(plan.favours), f"{case!r}, as the unions say"
    if scheme.balance != "balanced":
        if plan.memory is not None:
            yield f"{path}.memory", "hash memory", f"none, since {scheme.name} hashes nothing"
        return
    right = counted_slots(gradient, exchange_size(problem, gradient, scheme).parts)
    if plan.memory is None:
        yield f"{path}.memory", "none", f"{right.slots} slots and {right.serial} serial ones for {scheme.name}"
        return
    for name in ("slots", "serial"):
        if (seen := getattr(plan.memory, name)) != (expected := getattr(right, name)):
            yield f"{path}.memory.{name}", seen, f"{expected} for the densest participant"
