"""The search: every method between the optimum and the budget, rounds in processes of their own, equal outcomes."""

from __future__ import annotations

import itertools
import math
import os
import signal
import threading
import time
from dataclasses import replace

import msgspec
import psutil
import pytest
from hypothesis import given, settings

from tests.planner.passes.memory import cases
from tests.planner.passes.memory.dynamic import optimum
from tests.planner.passes.memory.formulation.test_checkpoint import long_chain
from tests.planner.passes.memory.strategies import problems
from treadle.planner.documents.plan import Plan
from treadle.planner.errors import InfeasibleError, InputError, LimitError
from treadle.planner.passes.memory.check import check
from treadle.planner.passes.memory.lower import lower, store_all
from treadle.planner.passes.memory.methods.checkpoints import solve_checkpoints
from treadle.planner.passes.memory.minimum import Minimum
from treadle.planner.passes.memory.planning import plan_memory
from treadle.planner.passes.memory.problem import MemoryProblem
from treadle.planner.passes.memory.search import attempts
from treadle.planner.passes.memory.search import rounds as searching
from treadle.planner.passes.memory.search.attempts import Answer, Attempt, MemoryOptions
from treadle.planner.passes.memory.search.race import race
from treadle.planner.passes.memory.search.rounds import BoundedSchedule, BudgetTooSmall, _Search, rounds, search
from treadle.planner.passes.memory.simulate import simulate
from treadle.planner.search.bound import Argument, Bound
from treadle.planner.search.clock import Clock

EXACT = MemoryOptions(gap=0.0)
FIXTURES = [
    (cases.a, {5: None, 6: 15, 8: 13, 10: 12}),
    (cases.b, {7: None, 8: 17, 9: 16, 11: 15}),
    (lambda budget: cases.c(budget, conv=True, out=True, intermediate=True), {32: None, 33: 25, 37: 24, 48: 22}),
    (cases.d, {11: None, 12: 29, 16: 21}),
    (cases.e, {10: 18}),
    (cases.f, {11: None, 12: 8, 13: 8, 14: 7}),
]


@pytest.mark.parametrize("method", ["auto", "full"])
@pytest.mark.parametrize(("case", "optima"), FIXTURES)
def test_hand_worked_optima(case, optima, method):
    for budget, best in optima.items():
        if best is None:
            with pytest.raises(InfeasibleError):
                plan_memory(case(budget), options=replace(EXACT, method=method))
        else:
            plan = plan_memory(case(budget), options=replace(EXACT, method=method))
            assert (plan.decisions.objective_ns, plan.certificate.optimal) == (best, True)


@pytest.mark.parametrize("method", ["auto", "heuristic", "segments", "windows", "full", "retention", "rounding"])
@given(problem=problems())
@settings(max_examples=5)
def test_every_method_returns_a_checked_plan_above_the_optimum(problem, method):
    best = optimum(problem)
    options = replace(EXACT, method=method)
    try:
        plan = plan_memory(problem, options=options)
    except InfeasibleError:
        assert best is None
    except LimitError:
        assert method not in ("auto", "full", "retention")
    else:
        assert check(plan.decisions) == []
        assert plan.certificate.lower_bound <= best <= plan.decisions.objective_ns
        assert plan.provenance.options["method"] == method
        if method in ("auto", "full", "retention"):
            assert plan.decisions.objective_ns == best
            assert plan.certificate.optimal


def test_what_follows_what_depends_on_node_counts_only():
    auto = MemoryOptions()
    assert [[str(job) for job in jobs] for jobs in rounds(100, auto)] == [["heuristic"], ["full"]]
    large = rounds(10**7, auto)
    assert all("full" not in map(str, jobs) for jobs in large)
    assert any(job.method == "full" for jobs in rounds(searching.FULL, auto) for job in jobs)
    for jobs in large:
        assert sum(job.method != "bound" for job in jobs) <= 1
        assert sum(job.method == "bound" for job in jobs) <= 1


def test_only_the_program_knows_the_leaving_mode():
    with pytest.raises(InputError, match="found method windows, expected full or auto"):
        search(cases.a(8), MemoryOptions(method="windows", dependency_set="leaving"))


def uneven(count: int, budget: int) -> MemoryProblem:
    """A chain whose best plans are not found at first sight."""
    sizes = [1 + 7 * i % 11 for i in range(count)]
    fwd = cases.chain(*sizes, times=tuple(1 + 5 * i % 7 for i in range(count)))
    bwd = [
        cases.backward(sizes[k - 1] if k else 0, sizes[k], ((k - 1,) if k % 3 else (k,), 0, 2))
        for k in reversed(range(count))
    ]
    return cases.problem(budget, fwd, bwd)


@pytest.fixture
def as_large(monkeypatch):
    """Everything counts as large: all but quick jobs run in processes of their own."""
    monkeypatch.setattr(searching, "SMALL", 0)


@pytest.mark.slow
def test_processes_give_equal_plans_and_tell_better_ones_as_they_are_found(as_large):
    problem = uneven(20, 50)
    reported: list[Plan] = []
    plans = [plan_memory(problem, options=EXACT, on_plan=on_plan) for on_plan in (reported.append, None)]
    assert plans[0] == plans[1]
    assert plans[0].certificate.optimal
    assert "segments" in plans[0].provenance.parts
    assert not plans[0].provenance.limit_fired
    assert reported[0].provenance.interrupted
    assert all(check(early.decisions) == [] for early in reported)
    times = [early.decisions.objective_ns for early in reported]
    assert times == sorted(times, reverse=True)
    assert times[-1] >= plans[0].decisions.objective_ns


def test_an_error_of_a_job_is_one_of_the_search(as_large):
    with pytest.raises(InputError, match="windows of cheese"):
        search(long_chain(12, 12), replace(EXACT, method="full", solver="windows of cheese"))


def test_a_late_deadline_and_ctrl_c_end_all_processes(as_large, monkeypatch):
    hard = uneven(100, 120)
    others = set(psutil.Process().children(recursive=True))  # of tests before this one
    for how in ("deadline", "interrupt"):
        pressed = threading.Timer(2.0, os.kill, (os.getpid(), signal.SIGINT))
        if how == "interrupt":
            pressed.start()
        found = search(hard, replace(EXACT, method="full", time_limit_s=2.0 if how == "deadline" else None))
        pressed.cancel()  # too late it would end the process of the tests
        assert (found.limit_fired, found.interrupted) == (how == "deadline", how == "interrupt")
        assert simulate(hard, lower(hard, found.schedule)).time_ns == found.time_ns > found.bound.time_ns
    deadline = time.monotonic() + 10
    while (children := set(psutil.Process().children(recursive=True)) - others) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [child for child in children if child.status() != psutil.STATUS_ZOMBIE]


def test_a_process_that_dies_leaves_the_plans_of_the_others():
    problem = long_chain(12, 12)
    answers: list[Answer] = []

    def kill_child() -> None:
        for child in psutil.Process().children():
            child.kill()

    race(
        (Attempt("full"),),
        problem,
        None,
        EXACT,
        stop=threading.Event(),
        deadline=math.inf,
        on_better=lambda place, schedule: None,
        on_bound=lambda bound: None,
        on_answer=lambda place, answer: answers.append(answer),
        over=lambda: False,
        tick=kill_child,
    )
    (answer,) = answers
    assert answer.schedule is None
    assert "full: its process was killed by signal 9 (SIGKILL, out of memory?)" in answer.failure


def standing(problem, clock=None, **options) -> _Search:
    chosen = replace(EXACT, **options)
    return _Search(problem, chosen, None, lambda found: None, clock or Clock.of(chosen.time_limit_s))


def test_a_round_ends_with_the_first_plan_near_the_bound_it_started_from():
    problem = cases.a(6)
    state = standing(problem, gap=0.5)
    state.offer("heuristic", search(problem, EXACT).schedule)
    state.on_answer(Attempt("bound"), Answer(bound=Bound(14, Argument("proved"))))
    assert state.ended()
    assert (state.bound.time_ns, state.waiting) == (12, [])


def test_bounds_above_the_plan_speak_of_other_plans():
    problem = cases.a(6)
    state = standing(problem)
    state.offer("heuristic", search(problem, EXACT).schedule)
    for bound in (13, 99):
        state.on_answer(Attempt("full"), Answer(bound=Bound(bound, Argument(f"proved {bound}"))))
    state.count()
    assert state.bound == Bound(13, Argument("proved 13"))


def test_infeasible_budgets_carry_what_is_known_of_the_least():
    with pytest.raises(BudgetTooSmall) as caught:
        search(cases.a(5), EXACT)
    assert (caught.value.minimum.budget_bytes, caught.value.minimum.proved_bytes) == (6, 6)


def test_auto_goes_on_from_the_plan_of_least_peak_where_heuristics_find_none(as_large, monkeypatch):
    monkeypatch.setattr(attempts, "solve_quick", lambda problem, on_better: None)
    monkeypatch.setattr(searching, "solve_checkpoints", store_all)
    reported: list[BoundedSchedule] = []
    found = search(cases.a(6), MemoryOptions(gap=1.0), on_better=reported.append)
    assert found.parts == ("heuristic", "least-budget")
    assert reported[0].method == found.method == "least-budget"
    assert simulate(cases.a(6), lower(cases.a(6), found.schedule)).peak_bytes == 6


@pytest.mark.parametrize("share", [0.6, 0.25])
def test_without_any_time_there_are_checkpoints_and_nothing_slower(share):
    problem = uneven(60, 0)
    whole = simulate(problem, lower(problem, store_all(problem)))
    problem = msgspec.structs.replace(problem, budget_bytes=int(share * whole.peak_bytes))
    found = search(problem, MemoryOptions(time_limit_s=1e-9))
    assert (found.method, found.limit_fired) == ("heuristic", True)
    assert simulate(problem, lower(problem, found.schedule)).peak_bytes <= problem.budget_bytes
    assert found.time_ns == simulate(problem, lower(problem, solve_checkpoints(problem))).time_ns
    assert found.time_ns < 2.5 * whole.time_ns


def test_writing_a_plan_counts_against_the_limit():
    clock = Clock(1000.0, 0.0, map(float, itertools.count(0, 10)).__next__)
    state = standing(cases.a(6), clock)
    state.offer("heuristic", search(cases.a(6), replace(EXACT, time_limit_s=None)).schedule)
    assert 500.0 <= state.deadline < 1000.0


def test_what_is_not_proved_infeasible_is_not_called_so(monkeypatch):
    """With nothing found at a budget that the bound leaves open, the true time and other methods are named."""
    problem = msgspec.structs.replace(cases.a(6), budget_bytes=6)
    monkeypatch.setattr(attempts, "solve_quick", lambda problem, on_better: None)
    monkeypatch.setattr(searching, "solve_checkpoints", store_all)
    monkeypatch.setattr(searching, "least_peak_schedule", store_all)
    with pytest.raises(LimitError) as caught:
        search(problem, MemoryOptions(method="heuristic"))
    message = str(caught.value)
    assert "heuristic has nothing more to try: raise --budget or take --method auto" in message
    assert "10 B (10 bytes) would be enough" in message
    assert "120 s" not in message
    monkeypatch.setattr(searching, "least_budget", lambda *args, **options: Minimum(8, 6, None))
    with pytest.raises(LimitError, match=r"10 bytes.*; raise --time-limit or --budget"):
        search(problem, MemoryOptions(method="auto", gap=1.0, time_limit_s=1e-9))
    state = standing(problem)
    state.infeasible = True
    monkeypatch.setattr(searching, "_Search", lambda *args: state)
    with pytest.raises(BudgetTooSmall, match=r"no plan is below 7 B .* smallest one found needs 8 B"):
        search(problem, MemoryOptions(method="heuristic"))


def test_a_round_before_the_last_gets_half_of_the_time(monkeypatch):
    given = []
    monkeypatch.setattr(searching, "race", lambda *args, deadline, **rest: given.append(deadline) or True)
    for last in (False, True):
        state = standing(cases.a(6), time_limit_s=100.0)
        state.run((Attempt("windows"),), threading.Event(), isolated=True, last=last)
    now = time.monotonic()
    assert [round((deadline - now) / 10) for deadline in given] == [5, 10]


def test_schedules_travel_between_processes():
    found = search(cases.d(12), EXACT).schedule
    text = msgspec.msgpack.encode(found)
    assert msgspec.msgpack.decode(text, type=type(found)) == found
