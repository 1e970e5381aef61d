"""Proven lower bounds on the time of a plan, from a 0-1 program over a few windows of stages instead of all.

The backward pass is cut into windows a = 0..A-1 of consecutive stages (stage t ends with backward node t - 1, stage 0
is the forward pass). For any plan let S^a be what is live when window a starts, and R^a what runs at least once in it.
Then the variables below, set to 1 exactly there, satisfy every row, in whatever order and however often a window
recomputes; a cheapest run of each member of R^a is the least that the window costs. So no plan takes less than the
optimum. More windows count more repeated recomputations and more moments at which the bytes must fit.

Where blocks repeat, the linear relaxation over one window is nearly as strong as its 0-1 program: a few moments bind,
and prices on their bytes decide alike for each block what it keeps. It is solved first, in a small part of the time,
and weak duality proves its bound from the prices alone.

Variables (0-1):
    s_i^a      x_i is live when window a starts, s^A = 0
    r_i^a      forward i runs in window a; in the forward pass 1 for ops, with implementations delta_il and q_i in place
    d_tl       the backward node of stage t runs with implementation l
    c_i^a      x_i stays from the start of window a to its end:  c_i^a >= s_i^{a+1} - r_i^a
    h_it       x_i is live when the backward node of stage t runs, t in window a

Objective:  min sum tau_il delta_il + sum_{a,i} (min_l tau_il - saved_i) r_i^a + sum tauhat_tl d_tl

Rows, by `_link`:
    s_i^{a+1} <= s_i^a + r_i^a;   s_i^0 <= 1 - q_c for c overwriting i in the forward pass
    r_i^a <= s_j^a + r_j^a        for every input j of i;   r_m^a <= r_creator(m)^a
    d_tl <= s_i^a + r_i^a         for i in D_tl, t in window a

Memory, by `_limit`. What window a needs and never makes has been there from its start:
    h_it >= c_i^a,  h_it >= sum_{l: i in D_tl} d_tl,  h_it >= sum_{l: i in D_t'l} d_t'l - r_i^a  for t' > t in window a,
    h_it >= s_i^{a+1} for the last t of the window
    forward i   B + sum_l c_il delta_il + b_i + sum_{j in F_i} b_j - q_i b_inplace(i)
                  + sum_{j < i, j not in F_i} b_j s_j^0 <= M      where F_i = {j < i: some op t >= i reads j}
    start       B + Lhat_first(a) + sum_j b_j s_j^a <= M
    backward    B + Lhat_t + sum_l (c_tl + y_t [not in place]) d_tl + sum_j b_j h_jt <= M
    run i       B + min_{t in a} Lhat_t + (min_l c_il + b_i + sum_{j in N_i} b_j - b_inplace(i)) r_i^a
                  + sum_{j not in N_i, j != i} b_j c_j^a <= M
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from treadle.planner.errors import InfeasibleError, LimitError
from treadle.planner.passes.memory.bound import KEPT, once
from treadle.planner.passes.memory.formulation.tables import Terms, choice, shortened
from treadle.planner.passes.memory.lower import RecomputeSchedule
from treadle.planner.passes.memory.methods.limits import LIMITS, Account, SolveLimits, Window, cut, doubling
from treadle.planner.passes.memory.methods.restricted import (
    at_most,
    backward_ways,
    byte_unit,
    forward_ways,
    merged,
    prefix_sums,
    time_unit,
    useful,
)
from treadle.planner.passes.memory.problem import MemoryProblem
from treadle.planner.passes.memory.simulate import simulated
from treadle.planner.search.bound import Argument, Bound
from treadle.planner.solver import Model, Solution, Status, Var, linear


@dataclass(frozen=True)
class Relaxation:
    """The model with its tables, indexed by window, then by forward node; `d` by stage."""

    problem: MemoryProblem
    windows: list[Window]
    model: Model
    one: Var
    time_unit: float
    choices: dict[int, dict[int, Var]]
    made: dict[int, Var]
    inplace: dict[int, Var]
    s: list[dict[int, Var]]
    r: list[dict[int, Var]]
    d: list[dict[int, Var]]


def lower_bound(
    problem: MemoryProblem,
    limits: SolveLimits = LIMITS,
    known: RecomputeSchedule | None = None,
    on_bound: Callable[[Bound], None] = lambda bound: None,
) -> Bound:
    """The best bound of the linear program over one window, then of programs with 1, 2, 4, .. windows in the limits.

    `known` is a pruned schedule within the budget: the solver starts from it, and the search ends within the gap of it.
    `on_bound` is called with each better bound. Raises InfeasibleError if the solver proves that no plan fits.
    """
    best = once(problem)
    known_ns = None if known is None else simulated(problem, known).time_ns
    account = Account(limits)

    def take(found: Bound | None) -> None:
        nonlocal best
        if found is not None and found.time_ns > best.time_ns:
            best = found
            on_bound(best)

    def settled() -> bool:
        return known_ns is not None and best.time_ns >= known_ns * (1 - limits.gap)

    for count in doubling(1, min(limits.windows, len(problem.bwd))):
        if settled() or account.spent():
            break
        f = relax(problem, cut(problem, count))
        if count == 1:
            take(_priced(f, limits.seconds_each))
            if settled():
                break
        if known is not None:
            hint(f, known)
        with suppress(LimitError):
            take(_bound(f, account.solve(f.model)))
    return best


def priced_bound(problem: MemoryProblem) -> int | None:
    """The bound of the linear program over one window in ns; None where it proves nothing."""
    found = _priced(relax(problem, cut(problem, 1)))
    return None if found is None else found.time_ns


def _priced(f: Relaxation, seconds: float | None = None) -> Bound | None:
    with suppress(LimitError):
        bound = linear.relax(f.model, time_limit_s=seconds).bound
        if bound is not None and math.isfinite(bound):
            return Bound(math.floor(bound * f.time_unit + 1e-6), Argument("priced"), "any order")
    return None


def choices_of(f: Relaxation, solution: Solution) -> tuple[int, ...]:
    """The implementation of each backward node in a solution."""
    return tuple(next(way for way, var in choices.items() if solution.values[var] > 0.5) for choices in f.d[1:])


def kept_of(f: Relaxation, solution: Solution) -> frozenset[int]:
    """What is kept at the end of the forward pass in a solution."""
    return frozenset(i for i, var in f.s[0].items() if solution.values[var] > 0.5)


def restrain(f: Relaxation, share: float) -> None:
    """Let the forward pass keep at most this share of the bytes that the base leaves."""
    size = _sizes(f.problem)
    f.model.add_linear([(var, size[i]) for i, var in f.s[0].items() if size[i]], ub=share * _room(f.problem))


def _bound(f: Relaxation, solution: Solution) -> Bound | None:
    windows = "one window" if len(f.windows) == 1 else f"{len(f.windows)} windows"
    if solution.status is Status.INFEASIBLE:
        kept = KEPT.format(windows=windows)
        raise InfeasibleError(f"{kept} cannot be recomputed within the budget, in any order")
    if solution.bound is None or not math.isfinite(solution.bound):
        return None
    time_ns = math.floor(solution.bound * f.time_unit + 1e-6)
    return Bound(time_ns, Argument("windows", facts={"windows": windows}), "any order")


def relax(problem: MemoryProblem, windows: list[Window]) -> Relaxation:
    """The program over `windows`, which cut stages 1..K."""
    model = Model("memory relaxation")
    one = model.int_var(1, 1, "one")
    good = useful(problem)
    repeatable = frozenset(i for i, node in enumerate(problem.fwd) if node.recomputable)
    f = Relaxation(
        problem=problem,
        windows=windows,
        model=model,
        one=one,
        time_unit=time_unit(problem),
        choices={},
        made={},
        inplace={},
        s=[{i: model.bool_var() for i in sorted(good[w.start])} for w in windows] + [{}],
        r=[{i: model.bool_var() for i in sorted(good[w.start] & repeatable)} for w in windows],
        d=[{}, *(choice(model, backward_ways(problem, k), one) for k in range(len(problem.bwd)))],
    )
    _link_forward(f)
    _limit_forward(f)
    for a in range(len(windows)):
        _link(f, a, a + 1, f.r[a])
        _limit(f, a)
    _nest(f, 0, len(windows))
    cost: Terms = [
        (var, problem.fwd[i].impls[w].time_ns) for i, choices in f.choices.items() for w, var in choices.items()
    ]
    cost += [(q, -problem.fwd[i].inplace_saves_ns) for i, q in f.inplace.items()]
    for runs in f.r:
        for i, run in runs.items():
            node = problem.fwd[i]
            saved = node.inplace_saves_ns if node.inplace_of is not None else 0
            cost.append((run, max(0, min(impl.time(True) for impl in node.impls) - saved)))
    cost += [(v, problem.bwd[t - 1].impls[w].time_ns) for t, choices in enumerate(f.d) for w, v in choices.items()]
    model.minimize([(var, ns / f.time_unit) for var, ns in merged(cost)])
    return f


def _link_forward(f: Relaxation) -> None:
    model, entered = f.model, f.s[0]
    for i, node in enumerate(f.problem.fwd):
        if node.kind == "op" or i in entered:
            f.made[i] = f.one if node.kind == "op" else model.bool_var()
            f.choices[i] = choice(model, forward_ways(node, False), f.made[i])
        if node.kind != "op" and i in entered:
            at_most(model, entered[i], [f.made[i]])
        if i in f.made and node.inplace_of is not None:
            q = f.inplace[i] = model.bool_var()
            model.add_linear([(q, 1), (f.made[i], -1)], ub=0)
            if node.inplace_of in entered:
                model.add_linear([(entered[node.inplace_of], 1), (q, 1)], ub=1)


def _nest(f: Relaxation, a: int, b: int) -> dict[int, Var]:
    """g over windows a..b-1, with the rows that tie it to their ends and to what they read."""
    if b == a + 1:
        return f.r[a]
    middle = (a + b) // 2
    first, second = _nest(f, a, middle), _nest(f, middle, b)
    runs = {i: f.model.continuous(0, 1) for i in first}
    for i, run in runs.items():
        at_most(f.model, run, [first[i], second.get(i)])
    _link(f, a, b, runs)
    return runs


def _link(f: Relaxation, a: int, b: int, runs: dict[int, Var]) -> None:
    """What windows a..b-1 recompute, keep to their end and read."""
    model, entered = f.model, f.s[a]
    for i, run in runs.items():
        for j in sorted(set(f.problem.fwd[i].inputs)):
            at_most(model, run, [entered.get(j), runs.get(j)])
        creator = f.problem.fwd[i].creator
        if creator is not None:
            at_most(model, run, [runs.get(creator)])
    for i, left in f.s[b].items():
        at_most(model, left, [entered.get(i), runs.get(i)])
    for t in range(f.windows[a].start, f.windows[b - 1].stop):
        for i, choosing in _reads(f, t).items():
            model.add_linear([*((var, 1) for var in choosing), *_negative(entered.get(i), runs.get(i))], ub=0)


def _reads(f: Relaxation, t: int) -> dict[int, list[Var]]:
    """What the backward node of stage t may read, with the choices that do."""
    impls = f.problem.bwd[t - 1].impls
    nodes = sorted({i for way in f.d[t] for i in impls[way].needs})
    return {i: [var for way, var in f.d[t].items() if i in impls[way].needs] for i in nodes}


def _negative(*variables: Var | None) -> Terms:
    return [(var, -1) for var in variables if var is not None]


def _limit_forward(f: Relaxation) -> None:
    """The forward pass runs in the order of the nodes."""
    problem, unit, size = f.problem, byte_unit(f.problem), _sizes(f.problem)
    room = _room(problem)
    places = sorted(f.made)
    last = {j: t for t in places if f.made[t] == f.one for j in problem.fwd[t].inputs}
    passed = prefix_sums(f.model, places, [(j, var, size[j]) for j, var in f.s[0].items()])
    for i in places:
        node = problem.fwd[i]
        feeding = [j for j, t in last.items() if j < i <= t]
        terms = [(var, node.impls[way].workspace_bytes / unit) for way, var in f.choices[i].items()]
        terms += [(f.made[i], size[i]), (f.one, sum(size[j] for j in feeding))]
        terms += [(f.s[0][j], -size[j]) for j in feeding if j in f.s[0]]
        if i in f.inplace and node.inplace_of is not None:
            terms.append((f.inplace[i], -size[node.inplace_of]))
        f.model.add_linear(merged([*terms, *passed(i)]), ub=room)


def _limit(f: Relaxation, a: int) -> None:
    problem, model, unit, size = f.problem, f.model, byte_unit(f.problem), _sizes(f.problem)
    window, runs, left, entered = f.windows[a], f.r[a], f.s[a + 1], f.s[a]
    room = _room(problem)
    gradients = {t: problem.bwd[t - 1].live_grad_bytes / unit for t in window}
    model.add_linear([(var, size[i]) for i, var in entered.items() if size[i]], ub=room - gradients[window[0]])
    stays = {i: _above(f, [([left[i]], runs.get(i))]) if i in runs else [(left[i], 1.0)] for i in left}
    staying = shortened(model, merged([(var, coef * size[i]) for i, terms in stays.items() for var, coef in terms]))
    waits: dict[int, Terms] = {i: [(var, 1.0)] for i, var in left.items()}
    for t in reversed(window):
        back, reads = problem.bwd[t - 1], _reads(f, t)
        live = {i: waits[i] for i in waits if t == window[-1] or waits[i] != stays.get(i)}
        terms: Terms = [] if t == window[-1] else list(staying)
        if t != window[-1]:
            terms += [(var, -coef * size[i]) for i in live | reads for var, coef in stays.get(i, ())]
        for i, choosing in reads.items():
            always = len(choosing) == len(f.d[t])
            live[i] = [(f.one, 1.0)] if always else _above(f, [(choosing, None)], waits.get(i, ()))
        terms += [(var, coef * size[i]) for i, parts in live.items() for var, coef in parts]
        for way, var in f.d[t].items():
            impl = back.impls[way]
            terms.append((var, (impl.workspace_bytes + (0 if impl.grad_inplace else back.out_grad_bytes)) / unit))
        model.add_linear(merged(terms), ub=room - gradients[t])
        if t == window[-1]:
            waits = dict(stays)
        for i, choosing in reads.items():
            if len(choosing) == len(f.d[t]):
                # 1 - r is as much as there can be.
                waits[i] = [(f.one, 1.0), *_negative(runs.get(i))]
            elif waits.get(i, [])[:1] != [(f.one, 1.0)]:
                waits[i] = _above(f, [(choosing, runs.get(i))], waits.get(i, ()))
    least = min(gradients.values())
    for i, run in runs.items():
        node = problem.fwd[i]
        inputs = set(node.inputs) - {node.inplace_of}
        coef = min(impl.workspace(True) for impl in node.impls) / unit + size[i] + sum(size[j] for j in inputs)
        counted: Terms = [(var, -size[j]) for j in sorted({i, *node.inputs}) for var, _ in stays.get(j, ())]
        model.add_linear(merged([(run, coef), *staying, *counted]), ub=room - least)


def _above(
    f: Relaxation, parts: Sequence[tuple[Sequence[Var], Var | None]], other: Iterable[tuple[Var, float]] = ()
) -> Terms:
    """A variable in [0, 1] that is at least sum(chosen) - run for each part (chosen, run), and at least `other`."""
    top = f.model.continuous(0, 1)
    for chosen, run in parts:
        f.model.add_linear([(top, 1), *_negative(*chosen), *([] if run is None else [(run, 1)])], lb=0)
    if other:
        f.model.add_linear([(top, 1), *((var, -coef) for var, coef in other)], lb=0)
    return [(top, 1.0)]


def _room(problem: MemoryProblem) -> float:
    """Bytes that the base leaves of the budget, and half a unit, so that a tight fit never counts as too large."""
    return (problem.budget_bytes - problem.base_bytes) / byte_unit(problem) + 0.5


def _sizes(problem: MemoryProblem) -> list[float]:
    unit = byte_unit(problem)
    return [node.out_bytes / unit for node in problem.fwd]


def hint(f: Relaxation, schedule: RecomputeSchedule) -> None:
    """Start the solver from a pruned schedule."""
    first = {run.node: run for run in schedule.runs[0]}
    for i, choices in f.choices.items():
        for way, var in choices.items():
            _hint(f, var, i in first and (len(choices) == 1 or first[i].impl == way))
    for i, q in f.inplace.items():
        _hint(f, q, i in first and first[i].inplace)
    for a, window in enumerate(f.windows):
        ran = {run.node for t in window for run in schedule.runs[t]}
        for i, var in f.s[a].items():
            _hint(f, var, i in schedule.kept[window.start - 1])
        for i, var in f.r[a].items():
            _hint(f, var, i in ran)
        for t in window:
            for way, var in f.d[t].items():
                _hint(f, var, schedule.backward[t - 1] == way)


def _hint(f: Relaxation, var: Var, value: bool) -> None:
    if var != f.one:
        f.model.hint(var, int(value))
