"""Gurobi, the optional backend: `pip install 'treadle[gurobi]'`.

The licence that comes with gurobipy takes models of up to 2000 variables and 2000 rows; a larger one needs a licence
of the user's own. Enforced rows become indicator constraints.
"""

from __future__ import annotations

import math
import threading
from typing import Any

from treadle.planner.errors import LimitError, MissingBackendError
from treadle.planner.solver.interface import Limit, MatrixForm, Model, Options, RawResult

TOO_LARGE = 10010  # GRB.Error.SIZE_LIMIT_EXCEEDED
NO_LICENSE = 10009  # GRB.Error.NO_LICENSE


def run(model: Model, form: MatrixForm, options: Options, stop: threading.Event) -> RawResult:
    try:
        import gurobipy
    except ImportError:
        raise MissingBackendError(
            f"{model.name}: backend gurobi needs gurobipy, install it with: pip install 'treadle[gurobi]'; "
            "the open backends highs, scip and cp_sat are always there"
        ) from None
    try:
        with gurobipy.Env(params={"OutputFlag": 0}) as environment, gurobipy.Model(env=environment) as problem:
            write(gurobipy, problem, model, form)
            return search(gurobipy, problem, options, stop)
    except gurobipy.GurobiError as error:
        variables, rows, nonzeros = model.size
        if error.errno == TOO_LARGE:
            raise MissingBackendError(
                f"{model.name}: the size-limited Gurobi licence takes 2000 variables and 2000 rows, this model has "
                f"{variables} variables, {rows} rows and {nonzeros} nonzeros; install a full licence or take an open "
                "backend: highs, scip or cp_sat"
            ) from None
        if error.errno == NO_LICENSE:
            raise MissingBackendError(f"{model.name}: no Gurobi licence: {error.message}") from None
        raise LimitError(f"{model.name}: gurobi failed: {error.message}") from None


def write(gurobipy: Any, problem: Any, model: Model, form: MatrixForm) -> None:
    """The model, with two-sided rows as two one-sided ones."""
    import numpy as np

    grb = gurobipy.GRB
    kinds = np.where(form.integer, grb.INTEGER, grb.CONTINUOUS)
    x = problem.addMVar(form.matrix.shape[1], lb=form.lower, ub=form.upper, obj=form.cost, vtype=kinds)
    plain = np.ones(form.matrix.shape[0], dtype=np.bool_)
    plain[list(form.enforced)] = False
    for bound, sense in ((form.row_lower, grb.GREATER_EQUAL), (form.row_upper, grb.LESS_EQUAL)):
        chosen = plain & np.isfinite(bound)
        if chosen.any():
            problem.addMConstr(form.matrix[chosen], x, sense, bound[chosen])
    variables = x.tolist()
    for row, literal in form.enforced.items():
        span = slice(form.matrix.indptr[row], form.matrix.indptr[row + 1])
        left = gurobipy.LinExpr(form.matrix.data[span].tolist(), [variables[v] for v in form.matrix.indices[span]])
        switch, active = (variables[literal], True) if literal >= 0 else (variables[~literal], False)
        for limit, sense in ((form.row_lower[row], grb.GREATER_EQUAL), (form.row_upper[row], grb.LESS_EQUAL)):
            if math.isfinite(limit):
                problem.addGenConstrIndicator(switch, active, left, sense, float(limit))
    for var, value in model.hints.items():
        variables[var].Start = value


def search(gurobipy: Any, problem: Any, options: Options, stop: threading.Event) -> RawResult:
    grb = gurobipy.GRB
    problem.Params.Seed = options.seed
    problem.Params.Threads = options.workers
    problem.Params.MIPGap = options.gap
    problem.Params.MIPGapAbs = 0.0
    problem.Params.DualReductions = 0  # distinguishes infeasible from unbounded
    if options.deterministic_limit is not None:
        problem.Params.WorkLimit = options.deterministic_limit
    if options.node_limit is not None:
        problem.Params.NodeLimit = options.node_limit
    if options.left_s is not None:
        problem.Params.TimeLimit = options.left_s
    failures: list[BaseException] = []

    def watch(running: Any, where: int) -> None:
        if stop.is_set():
            running.terminate()
        elif where == grb.Callback.MIP:
            incumbent, bound = running.cbGet(grb.Callback.MIP_OBJBST), running.cbGet(grb.Callback.MIP_OBJBND)
            try:
                options.report(None if abs(incumbent) >= grb.INFINITY else incumbent, finite(bound))
            except BaseException as failure:
                # gurobipy prints what a callback raises and goes on; it is ours to raise.
                failures.append(failure)
                running.terminate()

    problem.optimize(watch)
    if failures:
        raise failures[0]
    if problem.Status == grb.INTERRUPTED:
        stop.set()  # gurobipy handles Ctrl-C first
    limits = {
        grb.WORK_LIMIT: Limit.DETERMINISTIC,
        grb.NODE_LIMIT: Limit.NODES,
        grb.TIME_LIMIT: Limit.TIME,
    }
    found = problem.SolCount > 0 and problem.Status != grb.UNBOUNDED
    known = problem.IsMIP or problem.Status == grb.OPTIMAL
    return RawResult(
        candidates=[list(problem.getAttr(grb.Attr.X, problem.getVars()))] if found else [],
        bound=finite(problem.ObjBound) if known and problem.Status != grb.INFEASIBLE else None,
        infeasible=problem.Status == grb.INFEASIBLE,
        unbounded=problem.Status == grb.UNBOUNDED,
        limit_fired=limits.get(problem.Status),
    )


def finite(bound: float) -> float | None:
    return bound if abs(bound) < 1e100 else None
