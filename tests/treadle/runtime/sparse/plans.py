"""Sparse plans of tests."""

from __future__ import annotations

from treadle.planner.documents.gradient_link import GradientLink
from treadle.planner.documents.sparsity import Form
from treadle.planner.passes.sparse.decisions import GradientPlan, HashSlots, SparseDecisions
from treadle.planner.passes.sparse.hashing import DEFAULT_SEEDS
from treadle.planner.passes.sparse.problem import BlockCounts, SparseGradient, SparseProblem

LINK = GradientLink(alpha_us=1.0, beta_us_per_MB=100.0)


def decisions_of(
    *gradients: tuple[str, str, Form, int, int],
    machines: int,
    devices: int = 1,
    slots: tuple[int, int] = (16, 4),
    block: int = 4,
    seeds: tuple[int, ...] = DEFAULT_SEEDS,
) -> SparseDecisions:
    """Of gradients by name, scheme, form, units and width. Their counts and costs are none that anyone measured."""
    shard = [-(-units // devices) for _, _, _, units, _ in gradients]
    problem = SparseProblem(
        version=1,
        name="test",
        machines=machines,
        devices=devices,
        gradients=tuple(
            SparseGradient(
                name=name,
                form=form,
                unit="element" if width == 1 else "row",
                units=units,
                width=width,
                occurrences=part,
                unions=(part,) * machines,
                even=(part,) * machines,
                hashed=(part,) * machines,
                densest=part,
                blocks=BlockCounts(size=block, push=1, pull=1),
            )
            for (name, _, form, units, width), part in zip(gradients, shard, strict=True)
        ),
        intra=LINK,
        inter=LINK,
    )
    plans = tuple(
        GradientPlan(
            name=name,
            scheme=scheme,
            costs=(),
            least_ns=0,
            favours="tie",
            memory=HashSlots(slots=slots[0], serial=slots[1]),
        )
        for name, scheme, *_ in gradients
    )
    return SparseDecisions(problem=problem, gradients=plans, seeds=seeds, sums="same", time_ns=0, dense_ns=0)
