"""The one door to MILP and CP solvers: a pass writes a `Model` once and `solve` runs it on any backend.

    backend   models                                        enforced rows          deterministic limit
    cp_sat    integers only, integer coefficients           native                 deterministic_limit
    highs     mixed integer; the default for 0-1 programs   big-M from the bounds  node_limit
    scip      mixed integer                                 indicator constraints  node_limit
    gurobi    mixed integer; optional, needs gurobipy       indicator constraints  deterministic_limit, node_limit

`auto` takes cp_sat for integer models with enforced rows (routing, scheduling) and highs for all others (memory).
Importing this package loads no solver; a backend is loaded when a solve asks for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext

from treadle.planner.documents.nearest import meant
from treadle.planner.errors import InputError, LimitError
from treadle.planner.solver.interface import (
    INF,
    Backend,
    Limit,
    Model,
    Options,
    Progress,
    Reporter,
    Solution,
    Status,
    Var,
    relative_gap,
)
from treadle.planner.solver.interrupt import stop_on_signals
from treadle.planner.solver.max_flow import max_flow
from treadle.planner.solver.verdict import judge

__all__ = [
    "INF",
    "Backend",
    "Limit",
    "Model",
    "Progress",
    "Solution",
    "Status",
    "Var",
    "max_flow",
    "relative_gap",
    "solve",
]

log = logging.getLogger("treadle")


def solve(
    model: Model,
    *,
    backend: Backend | str = Backend.AUTO,
    gap: float = 0.0,
    deterministic_limit: float | None = None,
    node_limit: int | None = None,
    time_limit_s: float | None = None,
    seed: int = 0,
    workers: int = 1,
    on_progress: Callable[[Progress], None] | None = None,
    stop: threading.Event | None = None,
) -> Solution:
    """Solves a model; infeasible, unbounded and unknown are statuses of the result, not errors.

    gap: stop once relative_gap(objective, bound) is at most this. The status is OPTIMAL only if the bound meets the
    objective within 1e-6 of it, else FEASIBLE with the gap that was reached.
    deterministic_limit: work of cp_sat and gurobi in their deterministic seconds, about a second each on one core.
    node_limit: branch-and-bound nodes of highs, scip and gurobi, which leaves the work at the root unbounded. A backend
    ignores the limit it does not have, so a pass gives both.
    time_limit_s: wall clock, a safety net; `limit_fired` says when it ended the solve.
    seed, workers: equal inputs give equal values for a fixed number of workers, which is why it does not follow the
    machine. One worker is the fastest deterministic setting of cp_sat on small and middle-sized models.
    on_progress: called in the calling thread at each new incumbent or bound, and about once a second.

    stop: ends the solve as Ctrl-C does, which is then the caller's business.

    Ctrl-C and SIGTERM end the solve with the best solution so far, marked `interrupted`; without one it raises
    LimitError. Raises InputError for a model the backend cannot express, MissingBackendError when the backend is not
    installed or not licensed for the model, CheckFailed if a solution breaks a row by more than the tolerance.
    """
    started = time.perf_counter()
    chosen = choose(model, backend)
    options = Options(
        gap, deterministic_limit, node_limit, time_limit_s, seed, workers, Reporter(on_progress, model.offset)
    )
    form = model.matrix_form()
    log.info("%s begins the model %s", chosen, model.name)
    with stop_on_signals() if stop is None else nullcontext(stop) as stop:
        if chosen is Backend.CP_SAT:
            from treadle.planner.solver import cp_sat

            raw = cp_sat.run(model, options, stop)
        elif chosen is Backend.GUROBI:
            from treadle.planner.solver import gurobi

            raw = gurobi.run(model, form, options, stop)
        else:
            from treadle.planner.solver import mathopt

            raw = mathopt.run(model, form, chosen, options, stop)
    solution = judge(model, form, raw, chosen, time.perf_counter() - started, stop.is_set())
    log.info("%s ends the model %s after %.2f s: %s", chosen, model.name, solution.wall_s, solution.status)
    if solution.interrupted and solution.status is Status.UNKNOWN:
        raise LimitError(f"{model.name}: interrupted after {solution.wall_s:.1f} s, before {chosen} found a solution")
    return solution


def choose(model: Model, backend: Backend | str) -> Backend:
    """The backend that `auto` means for this model. Raises InputError for an unknown name."""
    try:
        asked = Backend(backend)
    except ValueError:
        raise InputError(f"solver backend {backend!r}, {meant(backend, Backend)}") from None
    if asked is not Backend.AUTO:
        return asked
    return Backend.CP_SAT if model.enforced and model.is_integral else Backend.HIGHS
