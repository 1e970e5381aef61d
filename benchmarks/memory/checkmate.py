"""Checkmate's 0-1 program over the same problem: what is stored and recomputed, with one implementation of each op.

"Checkmate: Breaking the Memory Wall with Optimal Tensor Rematerialization", section 4, in its frontier-advancing form.
Stage t ends with backward node t; backward nodes run once. The program has no workspace and one implementation of each
op. Gradients take the bytes that the problem states (|Lhat_t| throughout a stage, |y_t| at its backward node).

    S_ti      x_i is resident when stage t begins        R_ti   forward i runs again in stage t
    FREE_tik  x_i is freed after forward k has run       U_ti   bytes in use while forward i may run

    min   sum tau_i R_ti
    s.t.  R_tj <= R_ti + S_ti            for every input i of j
          1 <= R_ti + S_ti               for what backward t reads
          S_(t+1)i <= S_ti + R_ti
          U_t0 = B + Lhat_t + sum b_i S_ti,   U_t(k+1) = U_tk - sum_i b_i FREE_tik + b_(k+1) R_t(k+1),   U <= M
          FREE_tik = R_tk (1 - S_(t+1)i) prod_{j reads i, j > k} (1 - R_tj), and 0 for what backward t reads,
          linearised by counting hazards h = (1 - R_tk) + S_(t+1)i + sum R_tj:   1 - FREE <= h <= h_max (1 - FREE)
"""

from __future__ import annotations

from dataclasses import dataclass

from treadle.planner.passes.memory.lower import RecomputeSchedule, prune
from treadle.planner.passes.memory.problem import MemoryProblem
from treadle.planner.passes.memory.program import RunForward
from treadle.planner.solver import Model, Solution, Status, Var, solve


@dataclass(frozen=True)
class Checkmate:
    """`schedule` is None if none was found; `bound_ns` is the solver's, None if it has none."""

    schedule: RecomputeSchedule | None
    status: Status
    bound_ns: float | None
    variables: int
    rows: int


def checkmate(problem: MemoryProblem, time_limit_s: float, workers: int = 2) -> Checkmate:
    """The plan of least time within the budget; `problem` has no intermediates.

    Each op runs its first implementation. The plan's own peak can exceed the budget by its workspace.
    """
    model = Model("checkmate")
    n, stages = len(problem.fwd), len(problem.bwd)
    size = [node.out_bytes for node in problem.fwd]
    unit = max(1, sum(size) >> 16)
    room = (problem.budget_bytes - problem.base_bytes) / unit
    readers: list[list[int]] = [[] for _ in range(n)]
    for j, node in enumerate(problem.fwd):
        for i in sorted(set(node.inputs)):
            readers[i].append(j)
    s = [[model.bool_var() for _ in range(n)] for _ in range(stages)]
    r = [[model.bool_var() if node.recomputable else None for node in problem.fwd] for _ in range(stages)]
    for t, back in enumerate(problem.bwd):
        needs = set(back.impls[0].needs)
        for j, node in enumerate(problem.fwd):
            run = r[t][j]
            for i in sorted(set(node.inputs)):
                if run is not None:
                    _at_least(model, 0, [(s[t][i], 1), (r[t][i], 1), (run, -1)])
            if j in needs:
                _at_least(model, 1, [(s[t][j], 1), (run, 1)])
            if t + 1 < stages:
                _at_least(model, 0, [(s[t][j], 1), (run, 1), (s[t + 1][j], -1)])
        after = s[t + 1] if t + 1 < stages else [None] * n
        resident = back.live_grad_bytes / unit
        last = _memory(model, readers, [size[i] / unit for i in range(n)], r[t], s[t], after, needs, room - resident)
        model.add_linear([(last, 1)], ub=room - resident - back.out_grad_bytes / unit)
    first = [model.int_var(1, 1) for _ in range(n)]
    _memory(model, readers, [size[i] / unit for i in range(n)], first, [None] * n, s[0], set(), room)
    times = [node.impls[0].time_ns for node in problem.fwd]
    scale = max(1.0, sum(times) / 1e6)
    model.minimize([(run, times[i] / scale) for row in r for i, run in enumerate(row) if run is not None])
    solution = solve(model, gap=1e-4, time_limit_s=time_limit_s, workers=workers)
    once = sum(times) + sum(back.impls[0].time_ns for back in problem.bwd)
    return Checkmate(
        schedule=_schedule(problem, r, s, solution) if solution.found else None,
        status=solution.status,
        bound_ns=None if solution.bound is None else once + solution.bound * scale,
        variables=len(model.lower),
        rows=len(model.row_lower),
    )


Maybe = Var | None


def _at_least(model: Model, least: int, terms: list[tuple[Maybe, int]]) -> None:
    model.add_linear([(var, coef) for var, coef in terms if var is not None], lb=least)


def _memory(
    model: Model,
    readers: list[list[int]],
    size: list[float],
    run: list[Maybe],
    entered: list[Maybe],
    after: list[Maybe],
    needs: set[int],
    room: float,
) -> Var:
    """U of one stage; returns the bytes in use after its last forward node."""
    now = model.continuous(0.0, room)
    model.add_linear([(now, 1), *((var, -size[i]) for i, var in enumerate(entered) if var is not None)], 0.0, 0.0)
    freed: list[tuple[Var, float]] = []
    for k in range(len(size)):
        grown = model.continuous(0.0, room)
        made = run[k]
        step = [(grown, 1.0), (now, -1.0), *freed]
        model.add_linear(step if made is None else [*step, (made, -size[k])], 0.0, 0.0)
        now, freed = grown, []
        for i in [i for i in range(k + 1) if (i == k or k in readers[i]) and i not in needs and size[i]]:
            if made is None:
                continue
            free = model.bool_var()
            hazards = [var for var in (after[i], *(run[j] for j in readers[i] if j > k)) if var is not None]
            count: list[tuple[Var, float]] = [(made, -1.0), *((var, 1.0) for var in hazards)]
            model.add_linear([*count, (free, 1.0)], lb=0.0)
            model.add_linear([*count, (free, 1.0 + len(hazards))], ub=float(len(hazards)))
            freed.append((free, size[i]))
    end = model.continuous(0.0, room)
    model.add_linear([(end, 1.0), (now, -1.0), *freed], 0.0, 0.0)
    return end


def _schedule(
    problem: MemoryProblem, r: list[list[Maybe]], s: list[list[Var]], solution: Solution
) -> RecomputeSchedule:
    def on(var: Maybe) -> bool:
        return var is not None and solution.values[var] > 0.5

    runs = [tuple(RunForward(i) for i in range(len(problem.fwd)))]
    runs += [tuple(RunForward(i) for i, var in enumerate(row) if on(var)) for row in r]
    kept = [frozenset(i for i, var in enumerate(row) if on(var)) for row in s] + [frozenset()]
    return prune(problem, RecomputeSchedule(tuple(runs), tuple(kept), (0,) * len(problem.bwd)))
