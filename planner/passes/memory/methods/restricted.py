"""The 0-1 program of MONeT (chapter 4) restricted to some recomputations, so that its size follows what may run.

Given is `allowed`: the forward nodes that stage t may run again, t = 1..K (stage t ends with backward node t - 1, stage
0 is the forward pass). A tensor that no instruction of a stage can touch is as live after the stage as before it, so
one variable stands for its liveness between two stages that touch it. With everything allowed this is the full
program; with a few stages, or the runs of a known plan and a few more, it has few variables for each node.

Variables (0-1):
    r_it      forward i runs in stage t, i in allowed_t (1 for ops in stage 0)
    delta_ilt that run uses implementation l
    d_tl      the backward node of stage t runs with implementation l
    s_it      x_i is live after stage t; the same variable as s_i,t+1 unless stage t + 1 runs i, runs a reader of i, or
              has a backward node that may read i; 1 where that backward node must read i and the stage cannot run i
    q_it      the run of i in stage t overwrites x_inplace(i)
    p_jt      x_j was made in stage t and not overwritten in it; r_jt where nothing can overwrite it
    u_it      x_i is live when the backward node of stage t runs

Objective (4.9):  min sum tau_il delta_ilt + sum tauhat_tl d_tl - sum saved_i q_it

Executability, by `_link`:
    sum_l delta_ilt = r_it,  sum_l d_tl = 1
    r_it <= s_j,t-1 + r_jt  for every input j of i;   r_mt <= r_creator(m)t
    s_it <= s_i,t-1 + p_it
    d_tl <= s_i,t-1 + p_it,  d_tl <= 1 - q_ct  for i in D_tl, c overwriting i
    q_it <= r_it,  p_jt <= r_jt,  p_jt >= r_jt - q_it,  p_jt <= 1 - q_it,  s_jt <= 1 - q_it
    u_it >= s_it,  u_it >= sum_{l: i in D_tl} d_tl

Memory, by `_limit`, with F_it = {j < i: some t' >= i that stage t may run reads j} and w_ijt = r_it where i reads j,
else what `treadle.planner.passes.memory.formulation.holding` says; stage 0 has no Lhat:
    run i    B + Lhat_t + sum_l c_il delta_ilt + r_it b_i + sum_{j in F_it} b_j w_ijt - q_it b_inplace(i)
               + sum_{j < i, j not in F_it} b_j u_jt + sum_{j > i} b_j s_j,t-1 <= M
    start    B + Lhat_t + sum_j b_j s_j,t-1 <= M
    backward B + Lhat_t + sum_l (c_tl + y_t [not in place]) d_tl + sum_j b_j u_jt <= M
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from treadle.planner.passes.memory.formulation.holding import waiting
from treadle.planner.passes.memory.formulation.tables import Terms, choice, shortened
from treadle.planner.passes.memory.formulation.useful import backward_costs, forward_costs, undominated, useful_sets
from treadle.planner.passes.memory.lower import RecomputeSchedule
from treadle.planner.passes.memory.problem import ForwardNode, MemoryProblem
from treadle.planner.passes.memory.program import RunForward
from treadle.planner.solver import Model, Solution, Var

Allowed = Sequence[frozenset[int]]
Choices = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Restricted:
    """The model and the tables that read its solution, indexed by stage 0..K, then by forward node."""

    problem: MemoryProblem
    model: Model
    one: Var
    time_unit: float
    """Nanoseconds of one unit of the objective."""
    byte_unit: int
    runs: list[dict[int, Var]]
    choices: list[dict[int, dict[int, Var]]]
    inplace: list[dict[int, Var]]
    kept: list[dict[int, Var]]
    union: list[dict[int, Var]]
    backward: list[dict[int, Var]] = field(default_factory=list)


def every_choice(problem: MemoryProblem) -> Choices:
    """The undominated implementations of each backward node."""
    return [backward_ways(problem, k) for k in range(len(problem.bwd))]


def useful(problem: MemoryProblem, choices: Choices | None = None) -> list[frozenset[int]]:
    """For each stage t = 0..K the nodes worth recomputing in it: what the backward nodes of stage t and later read,
    with all their ancestors. Stage 0 runs everything."""
    return [frozenset(range(len(problem.fwd))), *reversed(useful_sets(problem, choices)[1:])]


def byte_unit(problem: MemoryProblem) -> int:
    """A power of two: about a millionth of the budget. Sizes divided by it are exact as floats."""
    return 1 << max(0, problem.budget_bytes.bit_length() - 20)


def time_unit(problem: MemoryProblem) -> float:
    """About a millionth of a step."""
    total = sum(node.impls[0].time_ns for node in problem.fwd) + sum(back.impls[0].time_ns for back in problem.bwd)
    return max(1.0, total / 1e6)


def formulate(problem: MemoryProblem, allowed: Allowed, choices: Choices | None = None) -> Restricted:
    """The program in which stage t >= 1 may run `allowed[t]` again and backward node k runs by one of `choices[k]`.

    `allowed[0]` is not read; without `choices` by any implementation.
    """
    choices = every_choice(problem) if choices is None else choices
    model = Model("memory windows")
    one = model.int_var(1, 1, "one")
    stages = len(problem.bwd) + 1
    good = useful(problem, choices)
    runnable = [good[0]]
    for t in range(1, stages):
        runnable.append(frozenset(i for i in allowed[t] & good[t] if problem.fwd[i].recomputable))
    f = Restricted(
        problem=problem,
        model=model,
        one=one,
        time_unit=time_unit(problem),
        byte_unit=byte_unit(problem),
        runs=[{} for _ in range(stages)],
        choices=[{} for _ in range(stages)],
        inplace=[{} for _ in range(stages)],
        kept=_kept_variables(problem, choices, model, one, runnable),
        union=[{} for _ in range(stages)],
    )
    for t in range(stages):
        _choose(f, t, runnable[t])
        f.backward.append(choice(model, list(choices[t - 1]), one) if t else {})
        _link(f, t)
        _limit(f, t)
    cost: Terms = []
    for t in range(stages):
        for i, chosen in f.choices[t].items():
            node = problem.fwd[i]
            cost += [(var, node.impls[way].time(t > 0)) for way, var in chosen.items()]
            if i in f.inplace[t]:
                cost.append((f.inplace[t][i], -node.inplace_saves_ns))
        cost += [(var, problem.bwd[t - 1].impls[way].time_ns) for way, var in f.backward[t].items()]
    model.minimize([(var, ns / f.time_unit) for var, ns in cost if ns])
    return f


def _kept_variables(
    problem: MemoryProblem, choices: Choices, model: Model, one: Var, runnable: list[frozenset[int]]
) -> list[dict[int, Var]]:
    """The variables s: a new one only after a stage that can touch the tensor."""
    kept: list[dict[int, Var]] = [{} for _ in runnable]
    for t in reversed(range(len(runnable) - 1)):
        after = t + 1
        needs = [frozenset(problem.bwd[t].impls[way].needs) for way in choices[t]]
        must = frozenset.intersection(*needs)
        touched = {j for i in runnable[after] for j in problem.fwd[i].inputs}.union(runnable[after], *needs)
        kept[t] = dict(kept[after])
        for i in sorted(touched):
            forced = i in must or kept[after].get(i) == one
            kept[t][i] = one if forced and i not in runnable[after] else model.bool_var()
    return kept


def forward_ways(node: ForwardNode, again: bool) -> list[int]:
    """Implementations of a run in the forward pass, or of one `again`, worth a variable."""
    return undominated(*forward_costs(node, again))


def backward_ways(problem: MemoryProblem, k: int) -> list[int]:
    """Implementations of backward node k worth a variable."""
    return undominated(*backward_costs(problem.bwd[k]))


def _choose(f: Restricted, t: int, runnable: frozenset[int]) -> None:
    for i in sorted(runnable):
        node = f.problem.fwd[i]
        f.runs[t][i] = f.one if t == 0 and node.kind == "op" else f.model.bool_var()
        f.choices[t][i] = choice(f.model, forward_ways(node, t > 0), f.runs[t][i])
        if node.inplace_of is not None:
            f.inplace[t][i] = f.model.bool_var()


def _link(f: Restricted, t: int) -> None:
    model, runs, left = f.model, f.runs[t], f.kept[t]
    entered = f.kept[t - 1] if t else {}
    lasting = dict(runs)
    overwriter: dict[int, Var] = {}
    for i, q in f.inplace[t].items():
        j = f.problem.fwd[i].inplace_of
        assert j is not None
        overwriter[j] = q
        model.add_linear([(q, 1), (runs[i], -1)], ub=0)
        if j in runs:
            p = lasting[j] = model.bool_var()
            model.add_linear([(p, 1), (runs[j], -1)], ub=0)
            model.add_linear([(p, 1), (runs[j], -1), (q, 1)], lb=0)
            model.add_linear([(p, 1), (q, 1)], ub=1)
        if j in left:
            model.add_linear([(left[j], 1), (q, 1)], ub=1)
    for i, run in runs.items():
        node = f.problem.fwd[i]
        if node.creator is not None and runs.get(node.creator) != f.one:
            at_most(model, run, [runs.get(node.creator)])
        for j in sorted(set(node.inputs)) if t else ():
            at_most(model, run, [entered.get(j), runs.get(j)])
    for i, var in left.items():
        if entered.get(i) != var:
            at_most(model, var, [entered.get(i), lasting.get(i)])
    if not t:
        f.union[t] = left
        return
    impls = f.problem.bwd[t - 1].impls
    f.union[t] = dict(left)
    for i in sorted({i for way in f.backward[t] for i in impls[way].needs}):
        choosing = [var for way, var in f.backward[t].items() if i in impls[way].needs]
        for var in choosing:
            at_most(model, var, [entered.get(i), lasting.get(i)])
            if i in overwriter:
                model.add_linear([(var, 1), (overwriter[i], 1)], ub=1)
        if len(choosing) == len(f.backward[t]):
            f.union[t][i] = f.one
        elif left.get(i) != f.one:
            u = f.union[t][i] = model.bool_var()
            if i in left:
                model.add_linear([(u, 1), (left[i], -1)], lb=0)
            model.add_linear([(u, 1), *((var, -1) for var in choosing)], lb=0)


def at_most(model: Model, var: Var, others: Iterable[Var | None]) -> None:
    """var <= sum of the others; None stands for 0."""
    model.add_linear([(var, 1), *((other, -1) for other in others if other is not None)], ub=0)


def _limit(f: Restricted, t: int) -> None:
    problem, unit = f.problem, f.byte_unit
    room = problem.budget_bytes - problem.base_bytes
    back = problem.bwd[t - 1] if t else None
    if back:
        room -= back.live_grad_bytes
    entered = f.kept[t - 1] if t else {}

    def size(i: int) -> float:
        return problem.fwd[i].out_bytes / unit

    def require(terms: Terms) -> None:
        f.model.add_linear(merged(terms), ub=room / unit)

    def held(j: int) -> Terms:
        return [(f.union[t][j], 1)] if j in f.union[t] else []

    places = sorted(f.runs[t])
    feeding = _feeds(problem, places)
    waits = waiting(problem, f.model, f.one, f.runs[t], held, lambda: f.model.continuous(0.0, 1.0))
    passed = prefix_sums(f.model, places, [(j, var, size(j)) for j, var in f.union[t].items()])
    ahead = prefix_sums(f.model, [-i for i in reversed(places)], [(-j, var, size(j)) for j, var in entered.items()])
    for i in places:
        node = problem.fwd[i]
        terms = [(var, node.impls[way].workspace(t > 0) / unit) for way, var in f.choices[t][i].items()]
        terms.append((f.runs[t][i], size(i) + sum(size(j) for j in feeding[i] if j in node.inputs)))
        terms += [(var, size(j)) for j in feeding[i] if j not in node.inputs for var, _ in waits(i, j)]
        if i in f.inplace[t] and node.inplace_of is not None:
            terms.append((f.inplace[t][i], -size(node.inplace_of)))
        terms += passed(i)
        terms += [(f.union[t][j], -size(j)) for j in feeding[i] if j in f.union[t]]
        terms += ahead(-i)
        require(terms)
    if back:
        require([(var, size(j)) for j, var in entered.items()])
        made: Terms = []
        for way, var in f.backward[t].items():
            impl = back.impls[way]
            made.append((var, (impl.workspace_bytes + (0 if impl.grad_inplace else back.out_grad_bytes)) / unit))
        require([*made, *((var, size(j)) for j, var in f.union[t].items())])


def merged(terms: Terms) -> Terms:
    """The same sum with each variable once and without zeros."""
    total: dict[Var, float] = {}
    for var, coef in terms:
        total[var] = total.get(var, 0.0) + coef
    return [(var, coef) for var, coef in total.items() if coef]


def _feeds(problem: MemoryProblem, places: list[int]) -> dict[int, list[int]]:
    """For each place i the j < i that some place t >= i reads."""
    last = {j: t for t in places for j in problem.fwd[t].inputs}
    return {i: [j for j, t in last.items() if j < i <= t] for i in places}


def prefix_sums(model: Model, places: list[int], parts: Iterable[tuple[int, Var, float]]) -> Callable[[int], Terms]:
    """sum(place) is the sum of coef * var over the parts (key, var, coef) with key < place, for the increasing
    `places`; a continuous variable stands for what came before wherever the sum grows long."""
    sums: dict[int, Terms] = {}
    todo = sorted(parts)
    total: Terms = []
    at = 0
    for place in places:
        while at < len(todo) and todo[at][0] < place:
            if todo[at][2]:
                total = [*total, todo[at][1:]]
            at += 1
        total = shortened(model, merged(total))
        sums[place] = total
    return sums.__getitem__


def schedule_of(f: Restricted, solution: Solution) -> RecomputeSchedule:
    """The decisions that a solution stands for."""

    def on(var: Var) -> bool:
        return solution.values[var] > 0.5

    def chosen(choices: dict[int, Var]) -> int:
        return next(way for way, var in choices.items() if on(var))

    runs = tuple(
        tuple(
            RunForward(i, chosen(f.choices[t][i]), i in f.inplace[t] and on(f.inplace[t][i]))
            for i, run in sorted(stage.items())
            if on(run)
        )
        for t, stage in enumerate(f.runs)
    )
    kept = tuple(frozenset(i for i, var in stage.items() if on(var)) for stage in f.kept)
    return RecomputeSchedule(runs, kept, tuple(map(chosen, f.backward[1:])))


def hint(f: Restricted, schedule: RecomputeSchedule) -> None:
    """Start the solver from a pruned schedule, whose runs are all allowed."""
    values: dict[Var, float] = {}
    for t, runs in enumerate(schedule.runs):
        ran = {run.node: run for run in runs}
        needs = schedule.needs(f.problem, t)
        for i, var in f.runs[t].items():
            values[var] = i in ran
            if len(f.choices[t][i]) > 1:
                values |= {way_var: i in ran and ran[i].impl == way for way, way_var in f.choices[t][i].items()}
        values |= {var: i in ran and ran[i].inplace for i, var in f.inplace[t].items()}
        values |= {var: i in schedule.kept[t] or i in needs for i, var in f.union[t].items()}
        if t and len(f.backward[t]) > 1:
            values |= {var: schedule.backward[t - 1] == way for way, var in f.backward[t].items()}
    for t, stage in enumerate(f.kept):
        values |= {var: i in schedule.kept[t] for i, var in stage.items()}
    for var, value in values.items():
        if var != f.one:
            f.model.hint(var, int(value))
