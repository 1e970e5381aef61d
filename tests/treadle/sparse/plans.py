"""Plans for sparse gradients whose schemes are given, not computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from treadle.planner.documents.gradient_link import GradientLink
from treadle.planner.documents.plan import Certificate, Plan, Prediction, Provenance
from treadle.planner.documents.sparsity import Form, Unit
from treadle.planner.passes.sparse.decisions import GradientPlan, HashSlots, SparseDecisions
from treadle.planner.passes.sparse.hashing import DEFAULT_SEEDS
from treadle.planner.passes.sparse.problem import BlockCounts, SparseGradient, SparseProblem
from treadle.planner.passes.sparse.schemes import BY_NAME

LINK = GradientLink(alpha_us=1.0, beta_us_per_MB=100.0)


class Given(NamedTuple):
    """A gradient of a plan and its scheme."""

    name: str
    form: Form
    units: int
    width: int
    scheme: str
    unit: Unit = "row"


def decisions_of(gradients: Sequence[Given], machines: int = 2, devices: int = 1, densest: int = 4) -> SparseDecisions:
    """Hash memory is made for `densest` units."""
    problem = SparseProblem(
        version=1,
        name="test",
        machines=machines,
        devices=devices,
        gradients=tuple(_gradient(each, machines, densest) for each in gradients),
        intra=LINK if devices > 1 else None,
        inter=LINK if machines > 1 else None,
    )
    slots = HashSlots(slots=max(1, 2 * densest // machines), serial=1)
    plans = tuple(
        GradientPlan(
            name=each.name,
            scheme=each.scheme,
            costs=(),
            least_ns=0,
            favours="tie",
            memory=slots if BY_NAME[each.scheme].balance == "balanced" else None,
        )
        for each in gradients
    )
    return SparseDecisions(problem=problem, gradients=plans, seeds=DEFAULT_SEEDS, sums="worker", time_ns=0, dense_ns=0)


def _gradient(given: Given, machines: int, densest: int) -> SparseGradient:
    counts = (densest,) * machines
    return SparseGradient(
        name=given.name,
        form=given.form,
        unit=given.unit,
        units=given.units,
        width=given.width,
        occurrences=densest,
        unions=counts,
        even=counts,
        hashed=counts,
        densest=densest,
        blocks=BlockCounts(size=2, push=densest, pull=densest),
    )


def plan_of(decisions: SparseDecisions) -> Plan[SparseDecisions]:
    certificate = Certificate(
        verdict="accepted", checker="test", objective=1, lower_bound=1, unit="ns", argument="test", gap=0, optimal=False
    )
    return Plan(
        version=1,
        inputs={},
        decisions=decisions,
        prediction=Prediction(time_us=1.0),
        certificate=certificate,
        provenance=Provenance(tool="test", method="test", options={}),
    )
