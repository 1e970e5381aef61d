"""What is said of sparse plans."""

from __future__ import annotations

from typing import Any

import typer

from treadle.cli.output import print_table
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_bytes, format_time, many
from treadle.planner.passes.sparse.decided import cost_of
from treadle.planner.passes.sparse.decisions import SparseDecisions
from treadle.planner.passes.sparse.schemes import DENSE


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
    """Print the schemes, and all that were priced for each gradient."""
    decisions, proof = plan.decisions, plan.certificate
    ranks = f"{many(decisions.problem.machines, 'node')} of {many(decisions.problem.devices, 'rank')}"
    verdict = "proved optimal" if proof.optimal else f"gap {proof.gap:.2%}"
    rows = [
        ("gradients", f"{len(decisions.gradients)}, exchanged by {ranks}"),
        ("exchange", f"{format_time(decisions.time_ns)} predicted, {format_time(decisions.dense_ns)} dense"),
        ("lower bound", f"{format_time(int(proof.lower_bound))}, {verdict}: {proof.argument}"),
    ]
    for name, text in rows:
        typer.echo(f"{name:<13}{text}")
    for each in decisions.gradients:
        best = cost_of(each, each.scheme).time_ns
        print_table(
            f"{each.name}: {each.scheme}, dense {format_time(cost_of(each, DENSE.name).time_ns)}",
            ("scheme", "bytes", "time", "times"),
            [
                (cost.scheme, format_bytes(cost.bytes), format_time(cost.time_ns), f"{cost.time_ns / max(1, best):.2f}")
                for cost in each.costs
            ],
        )
