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
    U_k(i)       x_i is in S^{k-1} or in the chosen D_k, an expression (`union.py`)

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

Memory, by `memory_rows.py`, with L_i = {j < i: some t >= i that may run in the stage reads j}, U_{K+1}(j) =
s_j^K, s^{K+1} = 0, Lhat_{K+1} = 0 and held_ij = 1 wherever i runs and x_j is there:
    (M-run)   B + Lhat_k + sum_l c_il delta_il + r_i b_i + sum_{j in L_i} b_j held_ij - q_i b_inplace(i)
                + sum_{j<i, j not in L_i} b_j U_k(j) + sum_{j>i} b_j s_j^k <= M
    (M-idle)  B + Lhat_k + sum_{j<=i} b_j U_k(j) + sum_{j>i} b_j s_j^k <= M                      for k <= K
    (M-start) B + Lhat_k + sum_j b_j s_j^k <= M        where Lhat_k may exceed what the instruction before used
    (M-bwd)   B + Lhat_k + sum_l (chat_kl + y_k [not in place]) dhat_kl + sum_i b_i U_k(i) <= M

    exact (default)   held_ij = r_i where i reads j, else w_tj for the next t > i that may run and reads j:
                      w_tj >= r_t,  w_tj >= w_t'j of the reader t' after t,  w_tj >= U_k(j) for the last
    long              held_ij = w_tj for the next t >= i that reads j, for all j in L_i
    superset          held_ij = r_i, as in MONeT: counts what no run of the stage reads, so it can lose the best plan

Trims (`switches.py`): T1 leaves (M-idle) out, which the other rows imply; T2 allows r and s only for ancestors of what
a backward node still reads; T3 takes L_i over those; T4 leaves dominated implementations out; T5 writes the two sums
over j as chains of prefix variables, one for every eight terms.
`cuts.py` adds inequalities that every plan satisfies and the linear relaxation does not.
"""

from __future__ import annotations

from treadle.planner.passes.memory.formulation.cuts import add_cuts
from treadle.planner.passes.memory.formulation.memory_rows import add_memory
from treadle.planner.passes.memory.formulation.switches import DependencySet, Switches
from treadle.planner.passes.memory.formulation.tables import Formulation, Terms, Units, all_sizes, choice
from treadle.planner.passes.memory.formulation.union import add_union
from treadle.planner.passes.memory.formulation.useful import (
    Cost,
    backward_costs,
    forward_costs,
    undominated,
    useful_sets,
)
from treadle.planner.passes.memory.problem import MemoryProblem
from treadle.planner.solver import Model, Var

SWITCHES = Switches()


def formulate(
    problem: MemoryProblem,
    *,
    dependency_set: DependencySet = "entering",
    switches: Switches = SWITCHES,
    minimize_peak: bool = False,
) -> Formulation:
    """The 0-1 program of `problem`; with `minimize_peak` M is a variable and the only objective."""
    n, stages = len(problem.fwd), len(problem.bwd)
    model = Model("memory plan")
    one = model.int_var(1, 1, "one")
    everything = frozenset(range(n))
    useful = useful_sets(problem) if switches.useful_only else [everything] * (stages + 1)
    kept_by = [*useful[1:], useful[-1]] if dependency_set == "leaving" else [frozenset(), *useful[1:]]
    units = Units.of(problem, switches)
    f = Formulation(
        problem=problem,
        dependency_set=dependency_set,
        switches=switches,
        model=model,
        one=one,
        peak=_peak_variable(problem, model, units, switches) if minimize_peak else None,
        s=[[model.bool_var() if i in kept_by[k] else None for i in range(n)] for k in range(stages + 1)],
        r=[[None] * n for _ in range(stages + 2)],
        delta=[[{} for _ in range(n)] for _ in range(stages + 2)],
        dhat=[{} for _ in range(stages + 1)],
        q=[[None] * n for _ in range(stages + 2)],
        p=[[None] * n for _ in range(stages + 2)],
        u=[[[] for _ in range(n)] for _ in range(stages + 2)],
        time_unit=1.0 if switches.integral else max(1.0, _total_time(problem) / 1e6),
        units=units,
    )
    for k in range(1, stages + 2):
        add_selection(f, k, useful[k] if f.again(k) else everything)
        add_inplace(f, k)
    for k in range(1, stages + 2):
        add_dependencies(f, k)
    for k in range(1, stages + 2):
        add_union(f, k)
        add_memory(f, k)
    if switches.cuts:
        add_cuts(f)
    add_objective(f)
    return f


def add_selection(f: Formulation, k: int, useful: frozenset[int]) -> None:
    """(C1), (C2): which nodes run in stage k, and by which implementations."""
    again = f.again(k)
    for i, node in enumerate(f.problem.fwd):
        if not again:
            f.r[k][i] = f.one if node.kind == "op" else f.model.bool_var()
        elif i in useful and node.recomputable:
            f.r[k][i] = f.model.bool_var()
        run = f.r[k][i]
        if run is not None:
            f.delta[k][i] = _choice(f, *forward_costs(node, again), run)
    if again:
        back = f.problem.bwd[f.stages - k]
        f.dhat[k] = _choice(f, *backward_costs(back), f.one)


def _choice(f: Formulation, costs: list[Cost], needs: list[frozenset[int]], run: Var) -> dict[int, Var]:
    """One variable for each implementation worth having; they add up to `run`."""
    candidates = undominated(costs, needs) if f.switches.no_dominated else list(range(len(costs)))
    return choice(f.model, candidates, run)


def add_inplace(f: Formulation, k: int) -> None:
    """(4.10), (4.11): q, and p where it differs from r."""
    model = f.model
    f.p[k] = list(f.r[k])
    for i, node in enumerate(f.problem.fwd):
        j, run = node.inplace_of, f.r[k][i]
        if j is None or run is None:
            continue
        q = f.q[k][i] = model.bool_var()
        f.at_most(q, [run])
        made = f.r[k][j]
        if made is not None:
            p = f.p[k][j] = model.bool_var()
            f.at_most(p, [made])
            model.add_linear([(p, 1), (made, -1), (q, 1)], lb=0)
            model.add_linear([(p, 1), (q, 1)], ub=1)
        left = f.s[k - 1][j]
        if left is not None:
            model.add_linear([(left, 1), (q, 1)], ub=1)


def add_dependencies(f: Formulation, k: int) -> None:
    """(C3) to (C6) of stage k."""
    again = f.again(k)
    entered = f.s[k] if again else [None] * len(f.problem.fwd)
    for i, node in enumerate(f.problem.fwd):
        run, left = f.r[k][i], f.s[k - 1][i]
        if run is not None and node.creator is not None:
            f.at_most(run, [f.r[k][node.creator]])
        if run is not None and again:
            for j in sorted({*node.inputs} - {node.creator}):
                f.at_most(run, [entered[j], f.r[k][j]])
        if left is not None:
            f.at_most(left, [entered[i], f.p[k][i]])
    if not again:
        return
    overwriter = {node.inplace_of: i for i, node in enumerate(f.problem.fwd) if node.inplace_of is not None}
    impls = f.problem.bwd[f.stages - k].impls
    for way, chosen in f.dhat[k].items():
        for i in sorted(set(impls[way].needs)):
            if f.dependency_set == "leaving":
                f.at_most(chosen, [f.s[k - 1][i], f.p[k][i]])
                continue
            f.at_most(chosen, [entered[i], f.p[k][i]])
            q = f.q[k][overwriter[i]] if i in overwriter else None
            if q is not None:
                f.model.add_linear([(chosen, 1), (q, 1)], ub=1)


def add_objective(f: Formulation) -> None:
    """(4.9), in units of `time_unit`; or the peak alone."""
    if f.peak is not None:
        f.model.minimize([(f.peak, 1)])
        return
    cost: Terms = []
    for k in range(1, f.stages + 2):
        for node, chosen, q in zip(f.problem.fwd, f.delta[k], f.q[k], strict=True):
            cost += [(var, node.impls[way].time(f.again(k))) for way, var in chosen.items()]
            if q is not None and node.inplace_saves_ns:
                cost.append((q, -node.inplace_saves_ns))
    for back, chosen in zip(reversed(f.problem.bwd), f.dhat[1:], strict=True):
        cost += [(var, back.impls[way].time_ns) for way, var in chosen.items()]
    f.model.minimize([(var, ns if f.time_unit == 1.0 else ns / f.time_unit) for var, ns in cost])


def _peak_variable(problem: MemoryProblem, model: Model, units: Units, switches: Switches) -> Var:
    most = sum(all_sizes(problem)) // units.bytes_ + 2 * len(problem.fwd) + 4
    return model.int_var(0, most, "peak") if switches.integral else model.continuous(0.0, most, "peak")


def _total_time(problem: MemoryProblem) -> int:
    forward = sum(impl.time(again) for node in problem.fwd for impl in node.impls for again in (False, True))
    return forward + sum(impl.time_ns for node in problem.bwd for impl in node.impls)
