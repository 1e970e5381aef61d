"""The interface of all solvers: models, progress reports and solutions.

A model is a linear program over bounded integer and continuous variables,

    minimise    c.x + offset
    subject to  l_i <= a_i.x <= u_i                     for every row i
                l_i <= a_i.x <= u_i  if literal_i is 1  for every enforced row i

Variables are plain ints (their index), rows are appended to flat lists, so that 10^5 variables and several 10^6
nonzeros are written in seconds. A literal is a 0-1 variable `v` or its negation `~v`.
"""

from __future__ import annotations

import enum
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from treadle.planner.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from scipy.sparse import csr_matrix

Var = int
Number = int | float
Terms = Iterable[tuple[Var, Number]]

INF = math.inf
TOLERANCE = 1e-6  # relative; what every MIP solver here calls feasible and integral


class Status(enum.StrEnum):
    """How a solve ended. OPTIMAL is only said when the bound meets the objective, whatever gap was asked for."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNBOUNDED = "unbounded"
    UNKNOWN = "unknown"


class Backend(enum.StrEnum):
    AUTO = "auto"
    CP_SAT = "cp_sat"
    HIGHS = "highs"
    SCIP = "scip"
    GUROBI = "gurobi"


class Limit(enum.StrEnum):
    """Which limit ended a solve. TIME is the safety net: a result it touched may differ on another machine."""

    DETERMINISTIC = "deterministic"
    NODES = "nodes"
    TIME = "time"


@dataclass(frozen=True)
class Progress:
    """The state of a running solve; None is "none yet". method: what is at work, where there is a choice."""

    incumbent: float | None
    bound: float | None
    gap: float | None
    elapsed_s: float
    method: str = ""


@dataclass(frozen=True)
class Solution:
    """The end of a solve.

    objective and values: the best solution found (None and () if there is none); integer variables hold ints.
    bound: proven lower bound of the objective. gap: relative_gap(objective, bound).
    limit_fired: the limit that ended the search, None if it finished. interrupted: ended by Ctrl-C or SIGTERM.
    """

    status: Status
    objective: float | None
    bound: float | None
    gap: float | None
    values: Sequence[Number]
    wall_s: float
    limit_fired: Limit | None
    interrupted: bool
    backend: Backend

    @property
    def found(self) -> bool:
        return self.status in (Status.OPTIMAL, Status.FEASIBLE)


@dataclass(frozen=True)
class Options:
    """Options of a backend, documented at `treadle.planner.solver.solve`."""

    gap: float
    deterministic_limit: float | None
    node_limit: int | None
    time_limit_s: float | None
    seed: int
    workers: int
    report: Reporter
    began: float = field(default_factory=time.monotonic)

    @property
    def left_s(self) -> float | None:
        """What is left of the time limit now, a moment at least: imports and the making of models count."""
        if self.time_limit_s is None:
            return None
        return max(0.01, self.time_limit_s - (time.monotonic() - self.began))


class Reporter:
    """Calls `on_progress` whenever the incumbent or the bound moved, and once a second when nothing does."""

    def __init__(self, on_progress: Callable[[Progress], None] | None, offset: Number) -> None:
        self.on_progress = on_progress
        self.offset = float(offset)
        self.started = time.perf_counter()
        self.reported: tuple[float | None, float | None] | None = None
        self.reported_at = self.started

    def __call__(self, incumbent: float | None, bound: float | None) -> None:
        """incumbent, bound: without the objective's constant, None for none yet."""
        now = time.perf_counter()
        if self.on_progress is None or ((incumbent, bound) == self.reported and now - self.reported_at < 1.0):
            return
        self.reported, self.reported_at = (incumbent, bound), now
        best = None if incumbent is None else incumbent + self.offset
        least = None if bound is None or math.isinf(bound) else bound + self.offset
        self.on_progress(Progress(best, least, relative_gap(best, least), now - self.started))


@dataclass(frozen=True)
class RawResult:
    """What a backend hands back; `solve` rounds, verifies and judges it.

    candidates: variable values, best first. infeasible and unbounded: proved.
    """

    candidates: Sequence[Sequence[float]]
    bound: float | None
    infeasible: bool = False
    unbounded: bool = False
    limit_fired: Limit | None = None


def relative_gap(objective: float | None, bound: float | None) -> float | None:
    """|objective - bound| / max(|objective|, |bound|): 0 when they meet, finite always, None if one is missing."""
    if objective is None or bound is None:
        return None
    if objective == bound:
        return 0.0
    return abs(objective - bound) / max(abs(objective), abs(bound))


@dataclass(frozen=True)
class MatrixForm:
    """A model as arrays: n variables, m rows; `matrix` is m x n with sorted columns, no duplicates and no zeros."""

    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    integer: NDArray[np.bool_]
    matrix: csr_matrix
    row_lower: NDArray[np.float64]
    row_upper: NDArray[np.float64]
    enforced: dict[int, Var]  # row -> literal
    cost: NDArray[np.float64]
    offset: float


class Model:
    """A model under construction. Every method is O(number of terms)."""

    def __init__(self, name: str = "model") -> None:
        self.name = name
        self.lower: list[Number] = []
        self.upper: list[Number] = []
        self.integer: list[bool] = []
        self.names: dict[Var, str] = {}
        self.row_start: list[int] = [0]
        self.row_vars: list[Var] = []
        self.row_coefs: list[Number] = []
        self.row_lower: list[Number] = []
        self.row_upper: list[Number] = []
        self.enforced: dict[int, Var] = {}
        self.cost: dict[Var, Number] = {}
        self.offset: Number = 0
        self.hints: dict[Var, Number] = {}

    def bool_var(self, name: str = "") -> Var:
        return self._variable(0, 1, True, name)

    def int_var(self, lb: int, ub: int, name: str = "") -> Var:
        """An integer variable; both bounds are finite."""
        return self._variable(lb, ub, True, name)

    def continuous(self, lb: float = 0.0, ub: float = INF, name: str = "") -> Var:
        return self._variable(lb, ub, False, name)

    def add_linear(self, terms: Terms, lb: Number = -INF, ub: Number = INF, enforced_by: Var | None = None) -> int:
        """Adds the row lb <= sum(coef * var) <= ub and returns its index; a repeated variable adds up.

        enforced_by: a 0-1 variable `v` (the row holds if v = 1) or `~v` (it holds if v = 0).
        Raises InputError for an unknown variable or a literal that is not 0-1.
        """
        row = len(self.row_lower)
        for var, coef in terms:
            self.row_vars.append(var)
            self.row_coefs.append(coef)
        self.row_start.append(len(self.row_vars))
        self.row_lower.append(lb)
        self.row_upper.append(ub)
        if enforced_by is not None:
            var = enforced_by if enforced_by >= 0 else ~enforced_by
            self._known(var, f"enforcement literal of row {row}")
            if not (self.integer[var] and self.lower[var] >= 0 and self.upper[var] <= 1):
                raise InputError(
                    f"row {row} is enforced by {self.label(var)}, expected a 0-1 variable", where=self.name
                )
            self.enforced[row] = enforced_by
        return row

    def minimize(self, terms: Terms, offset: Number = 0) -> None:
        """Sets the objective; negate the terms to maximise. Without this call any feasible point is optimal."""
        self.cost = {}
        for var, coef in terms:
            self._known(var, "objective")
            self.cost[var] = self.cost.get(var, 0) + coef
        self.offset = offset

    def hint(self, var: Var, value: Number) -> None:
        """A starting value. Solvers take a partial set of hints and may ignore hints that lead nowhere.

        Hints that cover all variables and hold are a solution: a solve that finds nothing within its limits returns it.
        """
        self._known(var, "hint")
        self.hints[var] = value

    def label(self, var: Var) -> str:
        return self.names.get(var, f"x{var}")

    @property
    def size(self) -> tuple[int, int, int]:
        """Variables, rows, nonzeros."""
        return len(self.lower), len(self.row_lower), len(self.row_vars)

    @property
    def is_integral(self) -> bool:
        """Only integer variables, and every coefficient and finite bound of a row is an integer."""
        rows = (self.row_coefs, self.cost.values(), [self.offset])
        bounds = (self.row_lower, self.row_upper)
        return (
            all(self.integer)
            and all(isinstance(c, int) or c.is_integer() for cs in rows for c in cs)
            and all(isinstance(b, int) or b.is_integer() or math.isinf(b) for bs in bounds for b in bs)
        )

    def matrix_form(self) -> MatrixForm:
        """The model as arrays. Raises InputError for a row that names an unknown variable or a value that is NaN."""
        import numpy as np
        from scipy.sparse import csr_matrix

        n, m = len(self.lower), len(self.row_lower)
        columns = np.asarray(self.row_vars, dtype=np.int64)
        coefs = np.asarray(self.row_coefs, dtype=np.float64)
        starts = np.asarray(self.row_start, dtype=np.int64)
        wrong = np.flatnonzero((columns < 0) | (columns >= n) | ~np.isfinite(coefs))
        if wrong.size:
            row = int(np.searchsorted(starts, wrong[0], side="right")) - 1
            found = f"variable {columns[wrong[0]]} with coefficient {coefs[wrong[0]]}"
            raise InputError(f"row {row} has {found}, expected a finite one of {n} variables", where=self.name)
        matrix = csr_matrix((coefs, columns, starts), shape=(m, n))
        matrix.sum_duplicates()
        matrix.eliminate_zeros()
        cost = np.zeros(n)
        for var, coef in self.cost.items():
            cost[var] = coef
        return MatrixForm(
            lower=np.asarray(self.lower, dtype=np.float64),
            upper=np.asarray(self.upper, dtype=np.float64),
            integer=np.asarray(self.integer, dtype=np.bool_),
            matrix=matrix,
            row_lower=np.asarray(self.row_lower, dtype=np.float64),
            row_upper=np.asarray(self.row_upper, dtype=np.float64),
            enforced=dict(self.enforced),
            cost=cost,
            offset=float(self.offset),
        )

    def _variable(self, lb: Number, ub: Number, integer: bool, name: str) -> Var:
        var = len(self.lower)
        if not lb <= ub or (integer and (math.isinf(lb) or math.isinf(ub))):
            expected = "lower <= upper" + (", both finite" if integer else "")
            raise InputError(f"{name or f'x{var}'} has bounds [{lb}, {ub}], expected {expected}", where=self.name)
        self.lower.append(lb)
        self.upper.append(ub)
        self.integer.append(integer)
        if name:
            self.names[var] = name
        return var

    def _known(self, var: Var, where: str) -> None:
        if not 0 <= var < len(self.lower):
            raise InputError(f"{where} names variable {var}, the model has {len(self.lower)}", where=self.name)
