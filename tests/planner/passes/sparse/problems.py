"""Small problems of one gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from treadle.planner.documents.gradient_link import GradientLink
from treadle.planner.documents.sparse_costs import SparseWork
from treadle.planner.passes.sparse.counts import GradientCounts
from treadle.planner.passes.sparse.problem import SparseGradient, SparseProblem
from treadle.planner.passes.sparse.schemes import BY_NAME
from treadle.planner.passes.sparse.volumes import volume

INTER, INTRA = GradientLink(alpha_us=30, beta_us_per_MB=839), GradientLink(alpha_us=1, beta_us_per_MB=42)


def gradient(unions: Sequence[int], units: int, **fields: Any) -> SparseGradient:
    """A gradient of elements, with equal parts where `fields` say nothing else."""
    even = tuple(-(-union // len(unions)) for union in unions)
    given = {
        "name": "table", "form": "coo", "unit": "element", "units": units, "width": 1, "occurrences": unions[0],
        "unions": tuple(unions), "even": even, "hashed": even, "densest": unions[0],
    }  # fmt: skip
    return SparseGradient(**{**given, **fields})


def problem_with(*gradients: SparseGradient, devices: int = 1, work: SparseWork | None = None) -> SparseProblem:
    """A problem of gradients with the same number of participants."""
    return SparseProblem(
        version=1,
        name="small",
        machines=len(gradients[0].unions),
        devices=devices,
        gradients=gradients,
        intra=INTRA if devices > 1 else None,
        inter=INTER,
        work=work or SparseWork(),
    )


def bytes_of(name: str, one: SparseGradient) -> int:
    """What the busiest participant sends or receives by the scheme `name`."""
    return volume(BY_NAME[name], GradientCounts(problem_with(one), one)).bytes
