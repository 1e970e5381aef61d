"""From what a backend claims to what we say: integers rounded, rows recomputed, the objective exact, the gap honest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from treadle.planner.errors import CheckFailed
from treadle.planner.solver.interface import (
    TOLERANCE,
    Backend,
    MatrixForm,
    Model,
    Number,
    RawResult,
    Solution,
    Status,
    relative_gap,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

INTEGRALITY = 1e-5  # solvers call 1e-6 integral; rows are recomputed after rounding, so a little slack does no harm


def judge(
    model: Model, form: MatrixForm, raw: RawResult, backend: Backend, wall_s: float, interrupted: bool
) -> Solution:
    """The verified solution. Raises CheckFailed if the backend has candidates and none of them holds."""
    values: Sequence[Number] = ()
    objective: Number | None = None
    complaint = ""
    for candidate in () if raw.unbounded else raw.candidates:
        rounded = rounded_values(form, candidate)
        broken = broken_row(form, rounded)
        if broken is None:
            values, objective = rounded, objective_of(model, rounded)
            break
        complaint = complaint or f"the solution of {backend} breaks row {broken[0]} by {broken[1]:.6g}"
    if complaint and objective is None:
        raise CheckFailed(f"{model.name}: {complaint}; scale the row to smaller coefficients or take another backend")
    if objective is None and len(model.hints) == len(model.lower) and not (raw.infeasible or raw.unbounded):
        # A backend that runs out of time in presolve has not even looked at the plan it was given.
        hinted = rounded_values(form, [model.hints[var] for var in range(len(model.lower))])
        if broken_row(form, hinted) is None:
            values, objective = hinted, objective_of(model, hinted)

    bound = None if raw.bound is None or math.isinf(raw.bound) else raw.bound + model.offset
    if objective is not None and not model.cost:
        bound = objective
    if bound is not None and has_integer_objective(model):
        bound = math.ceil(bound - TOLERANCE * max(1.0, abs(bound)))
    gap = relative_gap(objective, bound)
    if objective is not None and bound is not None and gap is not None:
        if gap <= TOLERANCE:
            bound, gap = objective, 0.0
        elif bound > objective:
            raise CheckFailed(
                f"{model.name}: {backend} claims a bound of {bound:g} above its solution of {objective:g}"
            )

    if objective is not None:
        status = Status.OPTIMAL if gap == 0.0 else Status.FEASIBLE
    elif raw.infeasible:
        status = Status.INFEASIBLE
    else:
        status = Status.UNBOUNDED if raw.unbounded else Status.UNKNOWN
    proved = status in (Status.OPTIMAL, Status.INFEASIBLE, Status.UNBOUNDED)
    return Solution(
        status=status,
        objective=objective,
        bound=None if status in (Status.INFEASIBLE, Status.UNBOUNDED) else bound,
        gap=gap,
        values=values,
        wall_s=wall_s,
        limit_fired=None if proved else raw.limit_fired,
        interrupted=interrupted and not proved,
        backend=backend,
    )


def objective_of(model: Model, values: Sequence[Number]) -> Number:
    return sum((c * values[v] for v, c in sorted(model.cost.items())), start=model.offset)


def rounded_values(form: MatrixForm, candidate: Sequence[float]) -> list[Number]:
    """Integer variables as ints, continuous ones clipped to their bounds."""
    return [
        round(v) if integer and abs(v - round(v)) <= INTEGRALITY else min(max(v, lower), upper)
        for v, integer, lower, upper in zip(
            candidate, form.integer.tolist(), form.lower.tolist(), form.upper.tolist(), strict=True
        )
    ]


def broken_row(form: MatrixForm, values: Sequence[Number]) -> tuple[int, float] | None:
    """The row that is broken worst beyond the tolerance, and by how much; row -1 stands for bounds and integrality.

    Rows of integers only are held to 1e-6 absolute, rows with a continuous variable to 1e-6 of their largest term sum.
    """
    import numpy as np

    x = np.asarray(values, dtype=np.float64)
    off = np.maximum(form.lower - x, x - form.upper)
    off = np.maximum(off, np.where(form.integer & (x != np.round(x)), 1.0, 0.0))
    if off.size and off.max() > TOLERANCE:
        return -1, float(off.max())
    if form.matrix.shape[0] == 0:
        return None
    activity = form.matrix @ x
    size = abs(form.matrix) @ np.abs(x)
    continuous = (abs(form.matrix) @ (~form.integer).astype(np.float64)) > 0
    tolerance: NDArray[np.float64] = TOLERANCE + size * np.where(continuous, TOLERANCE, 1e-12)
    violation = np.maximum(form.row_lower - activity, activity - form.row_upper)
    for row, literal in form.enforced.items():
        if (values[literal] if literal >= 0 else 1 - values[~literal]) < 0.5:
            violation[row] = 0.0
    worst = int(np.argmax(violation - tolerance))
    return (worst, float(violation[worst])) if violation[worst] > tolerance[worst] else None


def has_integer_objective(model: Model) -> bool:
    """Every feasible point has an integer objective."""
    coefs = [*model.cost.values(), model.offset]
    return all(float(c).is_integer() for c in coefs) and all(model.integer[v] for v, c in model.cost.items() if c)
