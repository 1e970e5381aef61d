"""The 0-1 program that decides what to keep, what to recompute and with which implementation (MONeT, chapter 4).

Stage k = K+1 is the forward pass, stages k = K..1 recompute some forward nodes and then run backward node k. Stage k
is entered with S^k and left with S^{k-1}. Forward nodes are i = 1..N (0-based in the code), b_i = |x_i|.

Variables (0-1):
    s_i^k        x_i is in S^k
    r_i^k        forward i runs in stage k (1 for ops in stage K+1)
    delta_il^k   that run uses implementation l
    dhat_kl      backward k runs with implementation l
    q_i^k        the run of i in stage k overwrites x_inplace(i)
    p_j^k        x_j was computed in stage k and not overwritten in it
    u_ki         x_i is in S^{k-1} or in the chosen D_k; U_k(i) is u_ki, or s_i^{k-1} where no D_k^l has i

Objective (4.9):  min sum_{k,i,l} tau_il delta_il^k - sum_{k,i} (time saved in place)_i q_i^k
                        + sum_{k,l} tauhat_kl dhat_kl
(tau and the workspace c are those of a recomputation in the stages k <= K, where they differ.)

Executability, by `add_selection`, `add_dependencies`, `add_inplace`:
    (C1)  sum_l delta_il^k = r_i^k
    (C2)  sum_l dhat_kl = 1
    (C3)  r_i^k <= s_j^k + r_j^k                       for every input j of i, k <= K
    (C4)  s_i^{k-1} <= s_i^k + p_i^k
    (C5)  dhat_kl <= s_i^k + p_i^k, dhat_kl <= 1 - q_c^k   for i in D_kl, c overwriting i     (entering)
          dhat_kl <= s_i^{k-1} + p_i^k                 for i in D_kl                          (leaving)
    (C6)  r_m^k <= r_creator(m)^k
    (4.10, 4.11)  q_i^k <= r_i^k, r_j^k - q_i^k <= p_j^k <= r_j^k, p_j^k <= 1 - q_i^k, s_j^{k-1} <= 1 - q_i^k

Union (4.12), by `add_union`:  u_ki >= s_i^{k-1},  u_ki >= sum_{l: i in D_kl} dhat_kl

Memory, by `add_memory`, with L_i = {j < i: some t >= i that may run in the stage reads j}:
    (M-fwd)   B + sum_l c_il delta_il + r_i (b_i + sum_{j in L_i} b_j) - q_i b_inplace(i)
                + sum_{j<i, j not in L_i} b_j s_j^K <= M
    (M-rec)   B + Lhat_k + sum_l c_il delta_il + r_i (b_i + sum_{j in L_i} b_j) - q_i b_inplace(i)
                + sum_{j<i, j not in L_i} b_j U_k(j) + sum_{j>i} b_j s_j^k <= M
    (M-idle)  B + Lhat_k + sum_{j<=i} b_j U_k(j) + sum_{j>i} b_j s_j^k <= M
    (M-start) B + Lhat_k + sum_j b_j s_j^k <= M        where Lhat_k may exceed what the instruction before used
    (M-bwd)   B + Lhat_k + sum_l (chat_kl + y_k [not in place]) dhat_kl + sum_i b_i U_k(i) <= M

Trims (Trims): T1 leaves (M-idle) out, which the other rows imply; T2 allows r and s only for ancestors of what a
backward node still reads; T3 takes L_i over those; T4 leaves dominated implementations out; T5 rounds sizes up to a
unit; T6 writes the two sums over j as chains of prefix variables, one for every eight terms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from planner.memory.lower import Schedule
from planner.memory.problem import MemoryProblem
from planner.memory.program import RunForward
from planner.solver import Model, Solution, Var

DependencySet = Literal["entering", "leaving"]
MaybeVar = Var | None
"""None stands for a variable that is fixed to 0."""


@dataclass(frozen=True)
class Trims:
    """Each trim keeps every optimum or improves it; tests switch them off one by one."""

    no_idle_rows: bool = True
    useful_only: bool = True
    useful_feeds: bool = True
    """Needs `useful_only`: only then is every run outside the useful sets impossible."""
    no_dominated: bool = True
    round_sizes: bool = True
    chains: bool = True


@dataclass(frozen=True)
class Formulation:
    """A model with the tables that read its solution. Tables are indexed by k (0..K+1), then by forward node."""

    problem: MemoryProblem
    model: Model
    one: Var
    peak: MaybeVar
    s: list[list[MaybeVar]]
    r: list[list[MaybeVar]]
    delta: list[list[dict[int, Var]]]
    dhat: list[dict[int, Var]]
    q: list[list[MaybeVar]]
    p: list[list[MaybeVar]]
    u: list[list[MaybeVar]]
    time_unit: float
    """Nanoseconds of one unit of the objective."""
    byte_unit: int
    """Bytes of one unit of `peak`."""
    rounded_to: int
    """Bytes that sizes were rounded up to, 1 where all of them are exact."""


def formulate(
    problem: MemoryProblem,
    *,
    dependency_set: DependencySet = "entering",
    trims: Trims = Trims(),
    minimize_peak: bool = False,
) -> Formulation:
    """The 0-1 program of `problem`; with `minimize_peak` M is a variable and the only objective."""
    n, stages = len(problem.fwd), len(problem.bwd)
    model = Model("memory plan")
    one = model.int_var(1, 1, "one")
    useful = useful_sets(problem, trims)
    kept_by = [*useful[1:-1], useful[-2]] if dependency_set == "leaving" else [frozenset(), *useful[1:-1]]
    unit, scaled = byte_scale(problem, trims)
    formulation = Formulation(
        problem=problem,
        model=model,
        one=one,
        peak=_peak_variable(problem, model, unit, scaled) if minimize_peak else None,
        s=[[model.bool_var() if i in kept_by[k] else None for i in range(n)] for k in range(stages + 1)],
        r=[[None] * n for _ in range(stages + 2)],
        delta=[[{} for _ in range(n)] for _ in range(stages + 2)],
        dhat=[{} for _ in range(stages + 1)],
        q=[[None] * n for _ in range(stages + 2)],
        p=[[None] * n for _ in range(stages + 2)],
        u=[[None] * n for _ in range(stages + 1)],
        time_unit=max(1.0, _total_time(problem) / 1e6),
        byte_unit=unit,
        rounded_to=1 if all(scaled(size) * unit == size for size in _sizes(problem)) else unit,
    )
    for k in range(1, stages + 2):
        add_selection(formulation, k, useful[k] if k <= stages else None, trims)
        add_inplace(formulation, k)
    for k in range(1, stages + 2):
        add_dependencies(formulation, k, dependency_set)
    for k in range(1, stages + 1):
        add_union(formulation, k)
    for k in range(1, stages + 2):
        add_memory(formulation, k, trims, scaled)
    add_objective(formulation)
    return formulation


def useful_sets(problem: MemoryProblem, trims: Trims) -> list[frozenset[int]]:
    """T2: useful[k] holds what a recomputation in stage k can be good for, k = 0..K (0: nothing), then all nodes."""
    stages = len(problem.bwd)
    everything = frozenset(range(len(problem.fwd)))
    if not trims.useful_only:
        return [everything] * (stages + 2)
    sets: list[frozenset[int]] = [frozenset()]
    found: set[int] = set()
    for k in range(1, stages + 1):
        todo = [i for impl in problem.bwd[stages - k].impls for i in impl.needs]
        while todo:
            i = todo.pop()
            if i not in found:
                found.add(i)
                creator = problem.fwd[i].creator
                todo.extend(problem.fwd[i].inputs if creator is None else (*problem.fwd[i].inputs, creator))
        sets.append(frozenset(found))
    return [*sets, everything]


def byte_scale(problem: MemoryProblem, trims: Trims) -> tuple[int, Callable[[int], int | float]]:
    """T5: the unit in bytes, and the function that rounds a size up to whole units (exact without the trim).

    A unit of one common divisor loses nothing. Where that leaves numbers too long for a solver's tolerances the unit
    is about the largest sum of sizes by 2^16, a power of two, so that unrounded sizes stay exact as floats.
    """
    sizes = _sizes(problem)
    total, common = max(1, sum(node.out_bytes for node in problem.fwd)), math.gcd(*sizes) or 1
    if total // common <= 2**20:
        return common, lambda size: -(-size // common)
    unit = 2 ** max(0, (total >> 16).bit_length())
    if trims.round_sizes:
        return unit, lambda size: -(-size // unit)
    return unit, lambda size: size / unit


def _sizes(problem: MemoryProblem) -> list[int]:
    sizes = [node.out_bytes for node in problem.fwd]
    sizes += [impl.workspace(again) for node in problem.fwd for impl in node.impls for again in (False, True)]
    for back in problem.bwd:
        sizes += [back.live_grad_bytes, back.out_grad_bytes, *(impl.workspace_bytes for impl in back.impls)]
    return sizes


def add_selection(f: Formulation, k: int, useful: frozenset[int] | None, trims: Trims) -> None:
    """(C1), (C2): which forward nodes run in stage k, and who runs them. `useful` is None for the forward pass."""
    for i, node in enumerate(f.problem.fwd):
        if useful is None:
            f.r[k][i] = f.one if node.kind == "op" else f.model.bool_var()
        elif i in useful and node.recomputable:
            f.r[k][i] = f.model.bool_var()
        run = f.r[k][i]
        if run is None:
            continue
        again = useful is not None
        costs = [(impl.workspace(again), impl.time(again)) for impl in node.impls]
        f.delta[k][i] = _choice(f.model, undominated(costs, [()] * len(costs), trims), run)
    if useful is not None:
        impls = f.problem.bwd[len(f.problem.bwd) - k].impls
        costs = [(impl.workspace_bytes, impl.time_ns) for impl in impls]
        kinds = [(tuple(sorted(set(impl.needs))), impl.grad_inplace) for impl in impls]
        f.dhat[k] = _choice(f.model, undominated(costs, kinds, trims), f.one)


def undominated(costs: Sequence[tuple[int, int]], kinds: Sequence[object], trims: Trims) -> list[int]:
    """T4: implementations that no other one of the same kind beats in both workspace and time."""

    def beats(a: int, b: int) -> bool:
        no_worse = kinds[a] == kinds[b] and costs[a][0] <= costs[b][0] and costs[a][1] <= costs[b][1]
        return no_worse and (costs[a] != costs[b] or a < b)

    every = range(len(costs))
    return [b for b in every if not trims.no_dominated or not any(beats(a, b) for a in every)]


def _choice(model: Model, candidates: list[int], run: Var) -> dict[int, Var]:
    if len(candidates) == 1:
        return {candidates[0]: run}
    chosen = {way: model.bool_var() for way in candidates}
    model.add_linear([*((var, 1) for var in chosen.values()), (run, -1)], 0, 0)
    return chosen


def add_inplace(f: Formulation, k: int) -> None:
    """(4.10), (4.11): q, and p where it differs from r."""
    model = f.model
    f.p[k] = list(f.r[k])
    for i, node in enumerate(f.problem.fwd):
        j, run = node.inplace_of, f.r[k][i]
        if j is None or run is None:
            continue
        q = f.q[k][i] = model.bool_var()
        model.add_linear([(q, 1), (run, -1)], ub=0)
        made = f.r[k][j]
        if made is not None:
            p = f.p[k][j] = model.bool_var()
            model.add_linear([(p, 1), (made, -1)], ub=0)
            model.add_linear([(p, 1), (made, -1), (q, 1)], lb=0)
            model.add_linear([(p, 1), (q, 1)], ub=1)
        left = f.s[k - 1][j]
        if left is not None:
            model.add_linear([(left, 1), (q, 1)], ub=1)


def add_dependencies(f: Formulation, k: int, dependency_set: DependencySet) -> None:
    """(C3) to (C6) of stage k."""
    model, stages = f.model, len(f.problem.bwd)
    entered = f.s[k] if k <= stages else [None] * len(f.problem.fwd)
    for i, node in enumerate(f.problem.fwd):
        run, left = f.r[k][i], f.s[k - 1][i]
        if run is not None and node.creator is not None:
            _at_most(model, run, [f.r[k][node.creator]])
        if run is not None and k <= stages:
            for j in sorted(set(node.inputs)):
                _at_most(model, run, [entered[j], f.r[k][j]])
        if left is not None:
            _at_most(model, left, [entered[i], f.p[k][i]])
    if k > stages:
        return
    overwriter = {node.inplace_of: i for i, node in enumerate(f.problem.fwd) if node.inplace_of is not None}
    impls = f.problem.bwd[stages - k].impls
    for way, chosen in f.dhat[k].items():
        for i in sorted(set(impls[way].needs)):
            if dependency_set == "leaving":
                _at_most(model, chosen, [f.s[k - 1][i], f.p[k][i]])
                continue
            _at_most(model, chosen, [entered[i], f.p[k][i]])
            q = f.q[k][overwriter[i]] if i in overwriter else None
            if q is not None:
                model.add_linear([(chosen, 1), (q, 1)], ub=1)


def _at_most(model: Model, var: Var, others: Iterable[MaybeVar]) -> None:
    """var <= sum of the others."""
    model.add_linear([(var, 1), *((other, -1) for other in others if other is not None)], ub=0)


def add_union(f: Formulation, k: int) -> None:
    """(4.12): U_k."""
    impls = f.problem.bwd[len(f.problem.bwd) - k].impls
    f.u[k] = list(f.s[k - 1])
    for i in sorted({i for way in f.dhat[k] for i in impls[way].needs}):
        choosing = [var for way, var in f.dhat[k].items() if i in impls[way].needs]
        if len(choosing) == len(f.dhat[k]):
            f.u[k][i] = f.one
            continue
        u = f.u[k][i] = f.model.bool_var()
        left = f.s[k - 1][i]
        if left is not None:
            f.model.add_linear([(u, 1), (left, -1)], lb=0)
        f.model.add_linear([(u, 1), *((var, -1) for var in choosing)], lb=0)


def add_memory(f: Formulation, k: int, trims: Trims, scaled: Callable[[int], int | float]) -> None:
    """All memory rows of stage k."""
    problem, model, n = f.problem, f.model, len(f.problem.fwd)
    forward = k > len(problem.bwd)
    back = None if forward else problem.bwd[len(problem.bwd) - k]
    size = [scaled(node.out_bytes) for node in problem.fwd]
    resident = 0 if back is None else scaled(back.live_grad_bytes)
    entered: list[MaybeVar] = [None] * n if forward else f.s[k]
    union = f.s[k - 1] if forward else f.u[k]
    runnable = {i for i in range(n) if f.r[k][i] is not None or not trims.useful_feeds}
    feeds = _feeds(problem, runnable)
    passed, ahead = _sums(f, union, entered, size, trims)

    def require(terms: Sequence[tuple[Var, int | float]]) -> None:
        if f.peak is not None:
            model.add_linear([*terms, (f.peak, -1)], ub=-resident)
        else:
            slack = problem.budget_bytes - problem.base_bytes
            room = slack // f.byte_unit if isinstance(resident, int) else slack / f.byte_unit
            model.add_linear(terms, ub=room - resident)

    for i, node in enumerate(problem.fwd):
        run = f.r[k][i]
        if run is not None:
            terms = [(var, scaled(node.impls[way].workspace(not forward))) for way, var in f.delta[k][i].items()]
            terms.append((run, size[i] + sum(size[j] for j in feeds[i])))
            q = f.q[k][i]
            if q is not None and node.inplace_of is not None:
                terms.append((q, -size[node.inplace_of]))
            terms += passed(i, feeds[i]) + ahead(i)
            require([(var, coef) for var, coef in terms if coef])
        if not forward and not trims.no_idle_rows:
            require(passed(i + 1, ()) + ahead(i))
    if back is None:
        return
    earlier = problem.bwd[len(problem.bwd) - k - 1] if k < len(problem.bwd) else None
    grown = earlier is not None and not any(impl.grad_inplace for impl in earlier.impls)
    before = 0 if earlier is None else earlier.live_grad_bytes + (earlier.out_grad_bytes if grown else 0)
    if back.live_grad_bytes > before:
        require(ahead(-1))
    made: Terms = []
    for way, var in f.dhat[k].items():
        impl = back.impls[way]
        made.append((var, scaled(impl.workspace_bytes) + (0 if impl.grad_inplace else scaled(back.out_grad_bytes))))
    require([*made, *passed(n, ())])


Terms = list[tuple[Var, int | float]]


def _sums(
    f: Formulation, union: list[MaybeVar], entered: list[MaybeVar], size: list[int | float], trims: Trims
) -> tuple[Callable[[int, Iterable[int]], Terms], Callable[[int], Terms]]:
    """passed(i, without): sum of b_j U(j) over j < i not in `without`. ahead(i): sum of b_j s_j over j > i."""
    n = len(size)

    def some(row: list[MaybeVar], places: Iterable[int], sign: int = 1) -> Terms:
        return [(var, sign * size[j]) for j in places if (var := row[j]) is not None and size[j]]

    if not trims.chains:
        return (
            lambda i, without: some(union, (j for j in range(i) if j not in without)),
            lambda i: some(entered, range(i + 1, n)),
        )
    left = _chain(f.model, [some(union, (j,)) for j in range(n)])
    right = _chain(f.model, [some(entered, (j,)) for j in reversed(range(n))])
    return lambda i, without: left[i] + some(union, without, -1), lambda i: right[n - 1 - i]


def _chain(model: Model, parts: list[Terms]) -> list[Terms]:
    """chain[i] stands for the sum of the first i parts, by a continuous variable wherever it grows long."""
    chain: list[Terms] = [[]]
    for part in parts:
        total = chain[-1] + part
        if len(total) > 8:
            prefix = model.continuous(0.0, sum(coef * model.upper[var] for var, coef in total))
            model.add_linear([(prefix, -1), *total], ub=0)
            total = [(prefix, 1)]
        chain.append(total)
    return chain


def _feeds(problem: MemoryProblem, runnable: set[int]) -> list[tuple[int, ...]]:
    """L_i for every i: the j < i that some runnable t >= i reads."""
    last: dict[int, int] = {}
    for t in sorted(runnable):
        last.update(dict.fromkeys(problem.fwd[t].inputs, t))
    return [tuple(j for j, t in sorted(last.items()) if j < i <= t) for i in range(len(problem.fwd))]


def add_objective(f: Formulation) -> None:
    """(4.9), in units of `time_unit`; or the peak alone."""
    if f.peak is not None:
        f.model.minimize([(f.peak, 1)])
        return
    cost: Terms = []
    for k, (row, in_place) in enumerate(zip(f.delta, f.q, strict=True)):
        for node, chosen, q in zip(f.problem.fwd, row, in_place, strict=True):
            again = k <= len(f.problem.bwd)
            cost += [(var, node.impls[way].time(again)) for way, var in chosen.items()]
            if q is not None and node.inplace_saves_ns:
                cost.append((q, -node.inplace_saves_ns))
    for back, chosen in zip(reversed(f.problem.bwd), f.dhat[1:], strict=True):
        cost += [(var, back.impls[way].time_ns) for way, var in chosen.items()]
    f.model.minimize([(var, ns if f.time_unit == 1.0 else ns / f.time_unit) for var, ns in cost])


def _peak_variable(problem: MemoryProblem, model: Model, unit: int, scaled: Callable[[int], int | float]) -> Var:
    sizes = sum(
        node.out_bytes + max(impl.workspace(again) for impl in node.impls for again in (False, True))
        for node in problem.fwd
    )
    gradients = [b.live_grad_bytes + b.out_grad_bytes + max(i.workspace_bytes for i in b.impls) for b in problem.bwd]
    most = sizes + max(gradients, default=0)
    count = 2 * len(problem.fwd) + 4
    if isinstance(scaled(1), int):
        return model.int_var(0, most // unit + count, "peak")
    return model.continuous(0.0, most / unit + count, "peak")


def _total_time(problem: MemoryProblem) -> int:
    forward = sum(impl.time(again) for node in problem.fwd for impl in node.impls for again in (False, True))
    return forward + sum(impl.time_ns for node in problem.bwd for impl in node.impls)


def schedule_of(f: Formulation, solution: Solution) -> Schedule:
    """The decisions that a solution stands for."""

    def on(var: MaybeVar) -> bool:
        return var is not None and solution.values[var] > 0.5

    stages = range(len(f.problem.bwd) + 1, 0, -1)
    runs = tuple(
        tuple(
            RunForward(i, next(way for way, var in f.delta[k][i].items() if on(var)), on(f.q[k][i]))
            for i in range(len(f.problem.fwd))
            if on(f.r[k][i])
        )
        for k in stages
    )
    kept = tuple(frozenset(i for i, var in enumerate(f.s[k - 1]) if on(var)) for k in stages)
    backward = tuple(next(way for way, var in f.dhat[k].items() if on(var)) for k in stages if k <= len(f.problem.bwd))
    return Schedule(runs, kept, backward)


def hint(f: Formulation, schedule: Schedule) -> None:
    """Start the solver from `schedule`; variables that it does not decide are left to the solver."""
    values: dict[Var, int] = {}

    def set_to(var: MaybeVar, value: bool) -> None:
        if var is not None and var != f.one:
            values[var] = int(value)

    for stage, k in enumerate(range(len(f.problem.bwd) + 1, 0, -1)):
        ran = {run.node: run for run in schedule.runs[stage]}
        needs = schedule.needs(f.problem, stage)
        for i in range(len(f.problem.fwd)):
            run = ran.get(i)
            set_to(f.s[k - 1][i], i in schedule.kept[stage])
            set_to(f.r[k][i], run is not None)
            set_to(f.q[k][i], run is not None and run.inplace)
            for way, var in f.delta[k][i].items():
                set_to(var, run is not None and run.impl == way)
            if stage:
                set_to(f.u[k][i], i in needs or i in schedule.kept[stage])
        for way, var in f.dhat[k].items() if stage else ():
            set_to(var, schedule.backward[stage - 1] == way)
    for var, value in values.items():
        f.model.hint(var, value)


def row_peak(problem: MemoryProblem, schedule: Schedule) -> int:
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
            impl = back.impls[schedule.backward[stage - 1]]
            made = 0 if impl.grad_inplace else back.out_grad_bytes
            peak = max(peak, gradients + impl.workspace_bytes + made + sum(size[j] for j in union))
    return problem.base_bytes + peak
