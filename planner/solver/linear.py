"""Linear relaxations: a model without its integrality, solved approximately, with a bound that holds exactly.

    minimise c.x + offset  subject to  l <= A x <= u,  lower <= x <= upper

Any dual vector y gives the bound  sum_i min(y_i l_i, y_i u_i) + sum_j min_{x_j in [lower_j, upper_j]} (c - A'y)_j x_j
(weak duality; entries of y that point at an infinite side count as 0), so a solver may stop early.
HiGHS runs its dual simplex, PDLP a first-order method that takes large models ("Practical Large-Scale Linear
Programming using Primal-Dual Hybrid Gradient").
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from treadle.planner.errors import LimitError
from treadle.planner.solver.interface import Backend, MatrixForm, Model, Options, Reporter
from treadle.planner.solver.interrupt import stop_on_signals
from treadle.planner.solver.mathopt import converse, model_proto


@dataclass(frozen=True)
class Relaxed:
    """`values` of all variables, within their bounds; rows hold to the tolerance only. `bound` holds for every point.

    `infeasible`: proved that not even the relaxation has a point. values is empty and bound None if the solver has
    no result.
    """

    values: list[float]
    bound: float | None
    infeasible: bool = False
    limit_fired: bool = False
    interrupted: bool = False


def relax(
    model: Model,
    *,
    solver: Literal["highs", "pdlp"] = "highs",
    tolerance: float = 1e-4,
    iterations: int = 20_000,
    time_limit_s: float | None = None,
) -> Relaxed:
    """Solve the relaxation of `model`, which has no enforced rows and only finite bounds on its variables.

    tolerance, iterations: where PDLP stops; HiGHS goes to the optimum. time_limit_s: wall clock, a safety net. Ctrl-C
    and SIGTERM end the solve. Raises LimitError when the solver fails.
    """
    from ortools.math_opt import model_parameters_pb2, parameters_pb2, result_pb2

    options = Options(0.0, None, None, time_limit_s, 0, 1, Reporter(None, 0))
    form = model.matrix_form()
    form = replace(form, integer=form.integer & False)
    kind = parameters_pb2.SOLVER_TYPE_PDLP if solver == "pdlp" else parameters_pb2.SOLVER_TYPE_HIGHS
    scaled, rows, columns = _scaled(form)
    messages = [
        model_proto(scaled),
        parameters_pb2.SolverInitializerProto(),
        _parameters(solver, tolerance, iterations, options.left_s),
        model_parameters_pb2.ModelSolveParametersProto(),
    ]
    with stop_on_signals() as stop:
        state = converse(kind, [m.SerializeToString() for m in messages], Backend.HIGHS, options, stop)
    if state.killed:
        return Relaxed([], None, limit_fired=state.overdue, interrupted=not state.overdue)
    if state.result is None:
        raise LimitError(f"{model.name}: {solver} ended without a result: {state.error}")
    result = result_pb2.SolveResultProto.FromString(state.result)
    if result.termination.reason == result_pb2.TERMINATION_REASON_INFEASIBLE:
        return Relaxed([], None, infeasible=True)
    values, duals = _solution(result, form)
    return Relaxed(
        values=(values * columns).clip(form.lower, form.upper).tolist(),
        bound=None if duals is None else dual_bound(form, duals * rows) + model.offset,
        limit_fired=result.termination.limit == result_pb2.LIMIT_TIME,
    )


def _parameters(solver: str, tolerance: float, iterations: int, time_limit_s: float | None) -> Any:
    from ortools.math_opt import parameters_pb2

    parameters = parameters_pb2.SolveParametersProto()
    if time_limit_s is not None:
        parameters.time_limit.FromNanoseconds(int(time_limit_s * 1e9))
    if solver == "highs":
        parameters.highs.int_options["threads"] = 1
        return parameters
    parameters.threads = 1
    parameters.iteration_limit = iterations
    criteria = parameters.pdlp.termination_criteria.simple_optimality_criteria
    criteria.eps_optimal_absolute = tolerance
    criteria.eps_optimal_relative = tolerance
    return parameters


def _scaled(form: MatrixForm) -> tuple[MatrixForm, Any, Any]:
    """The form with variables between -1 and 1 and rows whose largest coefficient is 1, which is what the tolerances of
    a first-order method are about; then the factors of rows and variables that led there."""
    import numpy as np
    from scipy.sparse import diags_array

    columns = np.maximum(np.abs(form.lower), np.abs(form.upper))
    columns[(columns == 0) | np.isinf(columns)] = 1.0
    matrix = form.matrix @ diags_array(columns)
    largest = abs(matrix).max(axis=1).toarray().ravel()
    rows = 1.0 / np.where(largest == 0, 1.0, largest)
    matrix = (diags_array(rows) @ matrix).tocsr()
    matrix.sort_indices()
    return (
        replace(
            form,
            lower=form.lower / columns,
            upper=form.upper / columns,
            cost=form.cost * columns,
            matrix=matrix,
            row_lower=form.row_lower * rows,
            row_upper=form.row_upper * rows,
        ),
        rows,
        columns,
    )


def _solution(result: Any, form: MatrixForm) -> tuple[Any, Any]:
    """The values, and the dual vector if any."""
    import numpy as np

    rows, n = form.matrix.shape
    for solution in result.solutions:
        values = np.zeros(n)
        values[list(solution.primal_solution.variable_values.ids)] = solution.primal_solution.variable_values.values
        duals = None
        if solution.HasField("dual_solution"):
            duals = np.zeros(rows)
            duals[list(solution.dual_solution.dual_values.ids)] = solution.dual_solution.dual_values.values
        return values, duals
    return np.zeros(n), None


def dual_bound(form: MatrixForm, duals: Any) -> float:
    """The bound of the docstring above, without the objective's constant."""
    import numpy as np

    y = np.where(np.isinf(form.row_lower), np.minimum(duals, 0.0), duals)
    y = np.where(np.isinf(form.row_upper), np.maximum(y, 0.0), y)
    side = np.where(y > 0, form.row_lower, form.row_upper)
    reduced = form.cost - form.matrix.T @ y
    at = np.where(reduced > 0, form.lower, form.upper)
    return float((y * np.where(y == 0, 0.0, side)).sum() + (reduced * np.where(reduced == 0, 0.0, at)).sum())
