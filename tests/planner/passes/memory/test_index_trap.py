"""MONeT's inequalities (4.7) and (4.8) with the memory rows of Algorithm 4, one stage apart."""

from __future__ import annotations

import msgspec

from tests.oracles.exact_memory import optima
from tests.planner.passes.memory import cases
from treadle.planner.passes.memory.check import check
from treadle.planner.passes.memory.lower import RecomputeSchedule
from treadle.planner.passes.memory.planning import decide, plan_memory
from treadle.planner.passes.memory.problem import MemoryProblem
from treadle.planner.passes.memory.program import RunForward
from treadle.planner.solver import Model, solve


def literal(problem: MemoryProblem) -> tuple[float | None, RecomputeSchedule]:
    """Optimum and plan of the copied program for a chain in which one implementation is all there is.

    The dependencies take S^{k-1} for what stage k starts with, the memory rows for what it ends with:

        r_i^k <= s_{i-1}^{k-1} + r_{i-1}^k,   s_i^{k-2} <= s_i^{k-1} + r_i^k,   1 <= s_i^{k-1} + r_i^k for i in D_k
    """
    stages = len(problem.bwd)
    nodes = range(len(problem.fwd))
    size = [node.out_bytes for node in problem.fwd]
    model = Model("index trap")
    s = [[model.bool_var() for _ in nodes] for _ in range(stages + 1)]
    r = [[model.bool_var() for _ in nodes] for _ in range(stages + 1)]
    for i in nodes:
        fed = size[i] + (size[i - 1] if i else 0)
        model.add_linear([(s[0][i], 1)], 0, 0)
        model.add_linear([(s[stages - 1][i], 1), (s[stages][i], -1)], ub=0)
        model.add_linear([(s[stages][j], size[j]) for j in range(i - 1)], ub=problem.budget_bytes - fed)
    for k in range(stages, 0, -1):
        back = problem.bwd[stages - k]
        needs = back.impls[0].needs
        room = problem.budget_bytes - back.live_grad_bytes
        for i in nodes:
            if i:
                model.add_linear([(r[k][i], 1), (s[k - 1][i - 1], -1), (r[k][i - 1], -1)], ub=0)
            if k > 1:
                model.add_linear([(s[k - 2][i], 1), (s[k - 1][i], -1), (r[k][i], -1)], ub=0)
            if i in needs:
                model.add_linear([(s[k - 1][i], 1), (r[k][i], 1)], lb=1)
            held = [(s[k - 1][j], size[j]) for j in range(i - 1) if j not in needs]
            ahead = [(s[k][j], size[j]) for j in range(i + 1, len(nodes))]
            fixed = sum(size[j] for j in needs if j < i - 1)
            fed = size[i] + (size[i - 1] if i else 0)
            model.add_linear([(r[k][i], fed), *held, *ahead], ub=room - fixed)
        left = [(s[k - 1][i], size[i]) for i in nodes if i not in needs]
        model.add_linear(left, ub=room - back.out_grad_bytes - sum(size[i] for i in needs))
    once = sum(node.impls[0].time_ns for node in (*problem.fwd, *problem.bwd))
    again = [(r[k][i], problem.fwd[i].impls[0].time_ns) for k in range(1, stages + 1) for i in nodes]
    model.minimize(again, once)
    solution = solve(model, backend="cp_sat")
    runs = [tuple(RunForward(i) for i in nodes)]
    runs += [tuple(RunForward(i) for i in nodes if solution.values[r[k][i]]) for k in range(stages, 0, -1)]
    kept = [frozenset(i for i in nodes if solution.values[s[k][i]]) for k in range(stages, -1, -1)]
    return solution.objective, RecomputeSchedule(tuple(runs), tuple(kept), (0,) * stages)


def test_the_copied_program_is_wrong_and_the_checker_says_where():
    problem = cases.e(10)
    assert optima(msgspec.to_builtins(problem)) == (18, 18)
    assert plan_memory(problem).decisions.objective_ns == 18
    objective, schedule = literal(problem)
    assert objective == 17
    findings = check(decide(problem, schedule))
    assert any("reads forward node" in finding and "not live" in finding for finding in findings), findings
