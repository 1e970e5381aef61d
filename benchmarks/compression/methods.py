"""Times of an iteration by what decides: other systems, crippled searches, both papers and treadle, on one timeline."""

from __future__ import annotations

from typing import cast

from treadle.planner.passes.compression.baselines import baselines, grouped_baselines
from treadle.planner.passes.compression.decided import plain_groups
from treadle.planner.passes.compression.evaluator import Evaluator
from treadle.planner.passes.compression.planning import CompressionOptions, plan_compression
from treadle.planner.passes.compression.problem import CompressionProblem

SECONDS = 60.0
"""Limit of a joint plan."""


def times(problem: CompressionProblem) -> dict[str, int]:
    """ns by name, for a problem with one compressor: those of `baselines`, and Espresso, Cupcake and joint."""
    evaluator, (name,) = Evaluator(problem), problem.names
    plan = plan_compression(problem, options=CompressionOptions(time_limit_s=SECONDS))
    found = dict(cast("dict[str, int]", plan.provenance.options["candidates_ns"]))
    if plan.provenance.limit_fired:
        found |= {title: evaluator.time(groups) for title, groups in baselines(evaluator, name).items()}
    grouped = {title: evaluator.time(groups) for title, groups in grouped_baselines(evaluator, name).items()}
    return {
        **found,
        **grouped,
        "FP32": evaluator.time(plain_groups(problem)),
        "Espresso": found["espresso, published"],
        "Espresso, completed": found["espresso"],
        "Cupcake": found[f"groups, {name}"],
        "joint": plan.decisions.time_ns,
    }
