"""The memory rows of the 0-1 program, and what they come to for a given schedule (MONeT, equations 4.1 to 4.5 and
4.12 to 4.15). The rows are written out in `checkpoint.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from treadle.planner.passes.memory.formulation.holding import waiting
from treadle.planner.passes.memory.formulation.tables import Formulation, MaybeVar, Terms, shortened
from treadle.planner.passes.memory.formulation.useful import feeds, transient_bytes
from treadle.planner.passes.memory.lower import RecomputeSchedule
from treadle.planner.passes.memory.problem import MemoryProblem
from treadle.planner.solver import Model


def add_memory(f: Formulation, k: int) -> None:
    """All memory rows of stage k."""
    problem, scaled, n = f.problem, f.units.scaled, len(f.problem.fwd)
    forward = not f.again(k)
    back = None if forward else problem.bwd[f.stages - k]
    resident = 0 if back is None else back.live_grad_bytes
    entered: list[MaybeVar] = [None] * n if forward else f.s[k]
    every = frozenset(range(n))
    runnable = frozenset(i for i in every if f.r[k][i] is not None) if f.switches.useful_feeds else every
    local = feeds(problem, runnable)
    passed, ahead = _sums(f, k, entered)
    held = _held(f, k)

    def require(terms: Terms) -> None:
        if f.peak is not None:
            f.model.add_linear([*terms, (f.peak, -1)], ub=-scaled(resident))
        else:
            f.model.add_linear(terms, ub=f.units.room(problem.budget_bytes - problem.base_bytes, resident))

    for i, node in enumerate(problem.fwd):
        run = f.r[k][i]
        if run is not None:
            terms: Terms = [(v, scaled(node.impls[way].workspace(not forward))) for way, v in f.delta[k][i].items()]
            terms.append((run, scaled(node.out_bytes)))
            terms += [(var, scaled(problem.fwd[j].out_bytes)) for j in local[i] for var, _ in held(i, j)]
            q = f.q[k][i]
            if q is not None and node.inplace_of is not None:
                terms.append((q, -scaled(problem.fwd[node.inplace_of].out_bytes)))
            terms += passed(i, local[i]) + ahead(i)
            require([(var, coef) for var, coef in terms if coef])
        if not forward and not f.switches.no_idle_rows:
            require(passed(i + 1, ()) + ahead(i))
    if back is None:
        return
    earlier = problem.bwd[f.stages - k - 1] if k < f.stages else None
    grown = earlier is not None and not any(impl.grad_inplace for impl in earlier.impls)
    before = 0 if earlier is None else earlier.live_grad_bytes + (earlier.out_grad_bytes if grown else 0)
    if back.live_grad_bytes > before:
        require(ahead(-1))
    made: Terms = [(var, scaled(transient_bytes(back, way))) for way, var in f.dhat[k].items()]
    require([*made, *passed(n, ())])


def _held(f: Formulation, k: int) -> Callable[[int, int], Terms]:
    """held_ij for j in L_i, in the form that the switches ask for."""
    runs = {t: run for t, run in enumerate(f.r[k]) if run is not None}
    waits = waiting(f.problem, f.model, f.one, runs, f.u[k].__getitem__, f.auxiliary)

    def held(i: int, j: int) -> Terms:
        short = f.switches.local == "superset" or (f.switches.local == "exact" and j in f.problem.fwd[i].inputs)
        return [(runs[i], 1)] if short else waits(i, j)

    return held


def _sums(
    f: Formulation, k: int, entered: list[MaybeVar]
) -> tuple[Callable[[int, Iterable[int]], Terms], Callable[[int], Terms]]:
    """passed(i, without): sum of b_j U_k(j) over j < i not in `without`.
    ahead(i): sum of b_j s_j^k over j > i."""
    size = [f.units.scaled(node.out_bytes) for node in f.problem.fwd]
    n = len(size)

    def kept(j: int, sign: int = 1) -> Terms:
        return [(var, sign * size[j]) for var, _ in f.u[k][j]] if size[j] else []

    def stored(j: int) -> Terms:
        var = entered[j]
        return [] if var is None or not size[j] else [(var, size[j])]

    if not f.switches.chains or f.switches.integral:
        return (
            lambda i, without: [term for j in range(i) if j not in without for term in kept(j)],
            lambda i: [term for j in range(i + 1, n) for term in stored(j)],
        )
    left = _chain(f.model, [kept(j) for j in range(n)])
    right = _chain(f.model, [stored(j) for j in reversed(range(n))])
    return (
        lambda i, without: left[i] + [term for j in without for term in kept(j, -1)],
        lambda i: right[n - 1 - i],
    )


def _chain(model: Model, parts: list[Terms]) -> list[Terms]:
    """T5: chain[i] stands for the sum of the first i parts."""
    chain: list[Terms] = [[]]
    for part in parts:
        chain.append(shortened(model, chain[-1] + part))
    return chain


def row_peak(problem: MemoryProblem, schedule: RecomputeSchedule) -> int:
    """Largest left side in bytes of a memory row, L_i taken over the runs of the schedule itself."""
    size = [node.out_bytes for node in problem.fwd]
    peak = 0
    for stage, (runs, kept) in enumerate(zip(schedule.runs, schedule.kept, strict=True)):
        union = kept | set(schedule.needs(problem, stage))
        entered = schedule.kept[stage - 1] if stage else frozenset[int]()
        back = problem.bwd[stage - 1] if stage else None
        gradients = back.live_grad_bytes if back else 0
        last = {j: run.node for run in runs for j in problem.fwd[run.node].inputs}
        peak = max(peak, gradients + sum(size[j] for j in entered))
        for run in runs:
            i, node = run.node, problem.fwd[run.node]
            feeding = {j for j, t in last.items() if j < i <= t}
            held = sum(size[j] for j in union if j < i and j not in feeding) + sum(size[j] for j in feeding)
            saved = size[node.inplace_of] if run.inplace and node.inplace_of is not None else 0
            ahead = sum(size[j] for j in entered if j > i)
            peak = max(peak, gradients + node.impls[run.impl].workspace(stage > 0) + size[i] - saved + held + ahead)
        if back:
            made = transient_bytes(back, schedule.backward[stage - 1])
            peak = max(peak, gradients + made + sum(size[j] for j in union))
    return problem.base_bytes + peak
