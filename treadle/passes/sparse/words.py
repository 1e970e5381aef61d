"""A sparse plan in words: the scheme of each gradient, and what all gradients would take by others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from treadle.cli.output import print_table
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_bytes, format_time, many
from treadle.planner.passes.sparse.decided import allowed, cost_of, described
from treadle.planner.passes.sparse.decisions import GradientPlan, SparseDecisions
from treadle.planner.passes.sparse.problem import SparseGradient, SparseProblem
from treadle.planner.passes.sparse.schemes import BY_NAME, DENSE


def summary(plan: Plan[SparseDecisions]) -> dict[str, Any]:
    """The figures that people ask for first."""
    decisions, proof = plan.decisions, plan.certificate
    return {
        "machines": decisions.problem.machines,
        "devices": decisions.problem.devices,
        "schemes": {each.name: each.scheme for each in decisions.gradients},
        "time_ns": decisions.time_ns,
        "dense_ns": decisions.dense_ns,
        "lower_bound_ns": int(proof.lower_bound),
        "gap": proof.gap,
        "optimal": proof.optimal,
        "bound_argument": proof.argument,
    }


def describe(plan: Plan[SparseDecisions]) -> None:
    """Print the scheme of every gradient, and what all of them take together by each scheme."""
    decisions, proof = plan.decisions, plan.certificate
    ranks = f"{many(decisions.problem.machines, 'node')} of {many(decisions.problem.devices, 'rank')}"
    verdict = "proved optimal" if proof.optimal else f"gap {proof.gap:.2%}"
    times = decisions.dense_ns / max(1, decisions.time_ns)
    sent, dense = sent_bytes(decisions), sent_bytes(decisions, DENSE.name)
    rows = [
        ("gradients", f"{described(decisions)}, exchanged by {ranks}"),
        (
            "exchange",
            f"{format_time(decisions.time_ns)} predicted, {format_time(decisions.dense_ns)} dense ({times:.2f}x)",
        ),
        ("sent", f"{format_bytes(sent)} between nodes by the busiest rank, {format_bytes(dense)} dense"),
        ("lower bound", f"{format_time(int(proof.lower_bound))}, {verdict}: {proof.argument}"),
    ]
    for name, text in rows:
        typer.echo(f"{name:<13}{text}")
    print_table("gradients", HEAD, [_row(decisions.problem, *each) for each in planned(decisions)])
    print_table("every gradient by", ("scheme", "bytes", "time", "times"), [*_together(decisions)])


HEAD = ("gradient", "density", "of the sum", "fewer entries", "scheme", "time", "dense")


def _row(problem: SparseProblem, gradient: SparseGradient, plan: GradientPlan) -> tuple[str, ...]:
    shard = problem.shard(gradient)
    return (
        gradient.name,
        f"{gradient.unions[0] / shard:.2%}",
        f"{gradient.unions[-1] / shard:.2%}",
        plan.favours,
        plan.scheme,
        format_time(cost_of(plan, plan.scheme).time_ns),
        format_time(cost_of(plan, DENSE.name).time_ns),
    )


def _together(decisions: SparseDecisions) -> Iterator[tuple[str, ...]]:
    """A row for each scheme that has a price for every gradient, the fastest first, those that plans may not have
    marked."""
    priced = [{cost.scheme: cost for cost in plan.costs} for plan in decisions.gradients]
    sums = {
        name: (sum(costs[name].time_ns for costs in priced), sum(costs[name].bytes for costs in priced))
        for name in priced[0]
        if all(name in costs for costs in priced)
    }
    for name, (time, sent) in sorted(sums.items(), key=lambda item: item[1][0]):
        mark = "" if allowed(BY_NAME[name], decisions.problem.machines, decisions.sums) else " (another order)"
        yield name + mark, format_bytes(sent), format_time(time), f"{time / max(1, decisions.time_ns):.2f}"


def planned(decisions: SparseDecisions) -> list[tuple[SparseGradient, GradientPlan]]:
    """Every gradient with its plan."""
    return [*zip(decisions.problem.gradients, decisions.gradients, strict=True)]


def sent_bytes(decisions: SparseDecisions, scheme: str | None = None) -> int:
    """Bytes between nodes of the busiest rank, over all gradients: by their schemes, or all by `scheme`."""
    return sum(cost_of(plan, scheme or plan.scheme).bytes for plan in decisions.gradients)
