"""A problem as decisions: every scheme priced, and the cheapest of those that are allowed chosen."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from treadle.planner.documents.scalars import many
from treadle.planner.passes.sparse.bound import least_ns
from treadle.planner.passes.sparse.counts import GradientCounts
from treadle.planner.passes.sparse.decisions import GradientPlan, SchemeCost, SparseDecisions, Sums
from treadle.planner.passes.sparse.hashing import DEFAULT_SEEDS
from treadle.planner.passes.sparse.prices import SchemePrices, slots_of
from treadle.planner.passes.sparse.problem import SparseGradient, SparseProblem
from treadle.planner.passes.sparse.schemes import BY_NAME, DENSE, Scheme
from treadle.planner.passes.sparse.theorem import favours


def allowed(scheme: Scheme, participants: int, sums: Sums) -> bool:
    """Whether its sums add the participants in an order that plans may have."""
    order = scheme.order(participants)
    return order == "worker" or (sums == "same" and order != "none")


def cheapest(costs: Sequence[SchemeCost], participants: int, sums: Sums) -> SchemeCost:
    """The cheapest allowed scheme; of several the first in the list, which begins with the dense one."""
    return min(
        (cost for cost in costs if allowed(BY_NAME[cost.scheme], participants, sums)), key=lambda cost: cost.time_ns
    )


def decided(problem: SparseProblem, sums: Sums = "worker", chosen: Sequence[str] = ()) -> SparseDecisions:
    """The decisions for `problem`, or those with the schemes in `chosen`, one for each gradient."""
    prices = SchemePrices(problem)
    plans = tuple(
        _plan(prices, gradient, sums, chosen[place] if chosen else None)
        for place, gradient in enumerate(problem.gradients)
    )
    return SparseDecisions(
        problem=problem,
        gradients=plans,
        seeds=DEFAULT_SEEDS,
        sums=sums,
        time_ns=sum(cost_of(plan, plan.scheme).time_ns for plan in plans),
        dense_ns=sum(cost_of(plan, DENSE.name).time_ns for plan in plans),
    )


def by_schemes(decisions: SparseDecisions, chosen: Sequence[str]) -> SparseDecisions:
    """The same problem with other schemes, one for each gradient, by the costs that it has."""
    problem = decisions.problem
    plans = tuple(
        replace(plan, scheme=scheme, memory=slots_of(BY_NAME[scheme], GradientCounts(problem, gradient)))
        for plan, gradient, scheme in zip(decisions.gradients, problem.gradients, chosen, strict=True)
    )
    return replace(decisions, gradients=plans, time_ns=sum(cost_of(plan, plan.scheme).time_ns for plan in plans))


def cost_of(plan: GradientPlan, scheme: str) -> SchemeCost:
    """What the gradient takes by the scheme of that name. Raises KeyError for one that has no price."""
    for cost in plan.costs:
        if cost.scheme == scheme:
            return cost
    raise KeyError(scheme)


def _plan(prices: SchemePrices, gradient: SparseGradient, sums: Sums, chosen: str | None) -> GradientPlan:
    costs = tuple(price.cost for price in prices.of(gradient))
    scheme = BY_NAME[chosen or cheapest(costs, prices.problem.machines, sums).scheme]
    return GradientPlan(
        name=gradient.name,
        scheme=scheme.name,
        costs=costs,
        least_ns=least_ns(prices, gradient, (cost.time_ns for cost in costs)),
        favours=favours(gradient.unions),
        memory=slots_of(scheme, GradientCounts(prices.problem, gradient)),
    )


def described(decisions: SparseDecisions) -> str:
    """A few words: how many gradients go by which scheme."""
    used: dict[str, int] = {}
    for plan in decisions.gradients:
        used[plan.scheme] = used.get(plan.scheme, 0) + 1
    whole = many(len(decisions.gradients), "gradient")
    if set(used) == {DENSE.name}:
        return f"{whole}, all dense"
    return f"{whole}: " + ", ".join(f"{count} by {name}" for name, count in used.items())
