"""Plans from windows of stages: valid, never worse than the start, and optimal where everything may run."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from tests.planner.passes.memory import cases
from tests.planner.passes.memory.dynamic import optimum
from tests.planner.passes.memory.instances import optional
from tests.planner.passes.memory.strategies import problems
from treadle.planner.passes.memory.bound import least_time
from treadle.planner.passes.memory.check import check
from treadle.planner.passes.memory.lower import lower, prune, store_all
from treadle.planner.passes.memory.methods.limits import Account, SolveLimits, cut
from treadle.planner.passes.memory.methods.restricted import formulate, hint, schedule_of
from treadle.planner.passes.memory.methods.unfolding import first_plan, unfold
from treadle.planner.passes.memory.methods.windows import solve_windows
from treadle.planner.passes.memory.planning import decide
from treadle.planner.passes.memory.problem import Backward, BackwardNode, Forward, ForwardNode, MemoryProblem
from treadle.planner.passes.memory.program import RunForward
from treadle.planner.passes.memory.search.attempts import Attempt, MemoryOptions, attempt
from treadle.planner.passes.memory.simulate import simulate
from treadle.planner.solver import Status, solve


def time_of(problem: MemoryProblem, schedule) -> int:
    """Its time, after the checker has accepted it."""
    assert check(decide(problem, schedule)) == []
    return simulate(problem, lower(problem, schedule)).time_ns


def everything(problem: MemoryProblem) -> list[frozenset[int]]:
    return [frozenset(range(len(problem.fwd)))] * (len(problem.bwd) + 1)


def deep(layers: int, budget: int) -> MemoryProblem:
    """A chain of `layers` in which the backward nodes read their layer's input; every third layer is dear."""
    fwd = [
        ForwardNode(op=f"f{i}", out_bytes=4, inputs=(i - 1,) if i else (), impls=(Forward(time_ns=1 if i % 3 else 20),))
        for i in range(layers)
    ]
    bwd = [
        BackwardNode(
            op=f"b{i}",
            out_grad_bytes=4,
            live_grad_bytes=4,
            impls=(Backward(needs=(i - 1,) if i else (), time_ns=2),),
        )
        for i in reversed(range(layers))
    ]
    return MemoryProblem(version=1, budget_bytes=budget, base={}, fwd=tuple(fwd), bwd=tuple(bwd))


@given(problems())
@settings(max_examples=8)
def test_with_every_run_allowed_it_is_the_whole_program(problem):
    assert optimum_of(problem) == optimum(problem)


@pytest.mark.parametrize("seed", [265, 344, 741, 895, 1225, 1524])
def test_what_could_run_and_does_not_costs_no_plan(seed):
    problem = optional(seed)
    assert optimum_of(problem) == optimum(problem)


def optimum_of(problem: MemoryProblem) -> int | None:
    """Optimum of the program with every run allowed, after the checker has accepted its plan."""
    program = formulate(problem, everything(problem))
    solution = solve(program.model, backend="highs")
    if solution.status is Status.INFEASIBLE:
        return None
    assert solution.status is Status.OPTIMAL
    found = time_of(problem, prune(problem, schedule_of(program, solution)))
    assert found <= round(solution.objective * program.time_unit)
    return found


@pytest.mark.parametrize(("case", "budget"), [(cases.a, 6), (cases.b, 8), (cases.d, 12), (cases.e, 10), (cases.f, 13)])
def test_small_cases_are_solved_to_their_optimum(case, budget):
    problem = case(budget)
    found = solve_windows(problem)
    assert found is not None
    assert time_of(problem, found) == optimum(problem)


def test_it_says_none_where_there_is_no_plan():
    assert solve_windows(cases.a(5)) is None


def test_each_better_plan_is_told_and_the_start_is_never_lost():
    problem = deep(24, 60)
    start = attempt(Attempt("heuristic"), problem, None, MemoryOptions()).schedule
    assert start is not None
    reported = []
    found = solve_windows(problem, start, SolveLimits(steps=14, seconds_each=20.0), reported.append)
    times = [time_of(problem, start), *(time_of(problem, schedule) for schedule in reported)]
    assert times == sorted(times, reverse=True)
    assert len(set(times)) == len(times)
    assert time_of(problem, found) == times[-1]
    assert least_time(problem) < times[-1]


def test_the_same_effort_gives_the_same_plan():
    problem = deep(12, 30)
    effort = SolveLimits(steps=3)
    found = solve_windows(problem, None, effort)
    assert found is not None
    assert found == solve_windows(problem, None, effort)


def test_a_plan_is_a_solution_of_every_program_that_allows_its_runs():
    problem = deep(12, 40)
    start = attempt(Attempt("heuristic"), problem, None, MemoryOptions()).schedule
    assert start is not None
    program = formulate(problem, [frozenset(run.node for run in runs) for runs in start.runs])
    hint(program, start)
    solution = solve(program.model, backend="highs")
    assert solution.found
    assert time_of(problem, prune(problem, schedule_of(program, solution))) <= time_of(problem, start)


def test_stages_that_run_nothing_again_take_no_variables():
    problem = deep(24, 200)
    nothing = formulate(problem, [frozenset()] * 25)
    assert nothing.model.size[0] == 1
    solution = solve(nothing.model, backend="highs")
    schedule = prune(problem, schedule_of(nothing, solution))
    assert schedule == store_all(problem)
    assert all(run == RunForward(run.node) for run in schedule.runs[0])


def test_what_is_made_again_and_kept_for_long_costs_bytes_and_saves_time():
    problem = deep(24, 60)
    backward = (0,) * 24
    plans = [unfold(problem, frozenset({0, 8, 16}), backward, horizon) for horizon in (24, 4, 1)]
    results = [simulate(problem, lower(problem, plan)) for plan in plans]
    assert [result.time_ns for result in results] == sorted(result.time_ns for result in results)
    assert results[0].time_ns < results[-1].time_ns
    assert results[0].peak_bytes > results[-1].peak_bytes


def test_the_first_plan_fits_and_recomputes():
    problem = deep(24, 60)
    found = first_plan(problem, Account(SolveLimits()))
    assert found is not None
    assert least_time(problem) < time_of(problem, found)


def convolutions(sizes: tuple[int, ...], budget: int) -> MemoryProblem:
    """Convolution, normalisation and ReLU in place for each size; fast convolutions take workspace, backward nodes read
    either side of the normalisation and may write in place."""
    fwd: list[ForwardNode] = []
    bwd: list[BackwardNode] = []
    for place, size in enumerate(sizes):
        i = len(fwd)
        before = (i - 1,) if i else ()
        fast = {"name": "fast", "time_ns": 7, "workspace_bytes": 2 * size}
        fwd += [
            ForwardNode(op="conv", out_bytes=size, inputs=before, impls=(Forward(time_ns=12), Forward(**fast))),
            ForwardNode(op="norm", out_bytes=size, inputs=(i,), impls=(Forward(time_ns=2),)),
            ForwardNode(op="relu", out_bytes=size, inputs=(i + 1,), impls=(Forward(time_ns=1),), inplace_of=i + 1),
        ]
        inplace = Backward(name="in place", needs=(i + 2,), time_ns=3, grad_inplace=True)
        by_output = Backward(name="output", needs=(i + 1,), time_ns=3)
        layer = [
            ("relu", size, (Backward(needs=(i + 2,), time_ns=2), inplace)),
            ("norm", size, (Backward(needs=(i,), time_ns=2), by_output)),
            ("conv weight", 0, (Backward(needs=before, time_ns=12),)),
        ]
        if i:
            layer.append(("conv input", sizes[place - 1], (Backward(time_ns=12), Backward(**fast))))
        made = [BackwardNode(op=op, live_grad_bytes=size, out_grad_bytes=y, impls=impls) for op, y, impls in layer]
        bwd = [*made, *bwd]
    return MemoryProblem(version=1, budget_bytes=budget, base={}, fwd=tuple(fwd), bwd=tuple(bwd))


def test_near_runs_put_a_plan_in_order_that_windows_of_stages_leave_as_it_is():
    problem = convolutions((8, 6, 6, 4, 8), 52)
    start = attempt(Attempt("heuristic"), problem, None, MemoryOptions()).schedule
    assert start is not None
    assert time_of(problem, start) == 171
    found = solve_windows(problem, start, SolveLimits(windows=16, nodes=200, steps=4))
    assert time_of(problem, found) == optimum_of(problem) == 167


@given(problems())
def test_windows_cut_all_stages(problem):
    for count in range(1, len(problem.bwd) + 1):
        windows = cut(problem, count)
        assert [t for window in windows for t in window] == list(range(1, len(problem.bwd) + 1))
        assert len(windows) <= count
