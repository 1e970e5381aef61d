"""The memory pass with a limit: the same plans as without where it has time, an end in time where it has not."""

from __future__ import annotations

import time

import pytest
from msgspec.structs import replace

from tests.planner.job.recompute_swap.steps import captured
from treadle.planner.job.recompute_swap import memory_pass
from treadle.planner.job.recompute_swap.memory_pass import MOST_RUNS, schedule_within
from treadle.planner.job.recompute_swap.memory_runs import memory_problem
from treadle.planner.passes.memory.lower import RecomputeSchedule, lower, store_all
from treadle.planner.passes.memory.methods.quick import solve_quick
from treadle.planner.passes.memory.problem import MemoryProblem
from treadle.planner.passes.memory.simulate import simulate


@pytest.fixture
def problem() -> MemoryProblem:
    found = memory_problem(captured("convnet"))
    peak = simulate(found, lower(found, store_all(found))).peak_bytes
    return replace(found, budget_bytes=peak * 9 // 10)


def time_of(problem: MemoryProblem, schedule: RecomputeSchedule | None) -> int:
    assert schedule is not None
    result = simulate(problem, lower(problem, schedule))
    assert result.peak_bytes <= problem.budget_bytes
    return result.time_ns


def test_jobs_in_processes_find_no_worse(problem: MemoryProblem, monkeypatch: pytest.MonkeyPatch) -> None:
    here = schedule_within(problem, lambda: False)
    monkeypatch.setattr(memory_pass, "FULL", 0)
    assert time_of(problem, schedule_within(problem, lambda: False)) <= time_of(problem, here)


def test_the_limit_ends_jobs_whatever_they_do(problem: MemoryProblem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_pass, "FULL", 0)
    began = time.monotonic()
    assert schedule_within(problem, lambda: time.monotonic() > began + 0.05) is None


def test_what_does_not_fit_or_runs_everything_many_times_is_left_out(
    problem: MemoryProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert schedule_within(replace(problem, budget_bytes=1), lambda: False) is None
    found = solve_quick(problem)
    assert found is not None
    many = RecomputeSchedule((found.runs[0] * (MOST_RUNS + 1), *found.runs[1:]), found.kept, found.backward)
    monkeypatch.setattr(memory_pass, "solve_quick", lambda problem: many)
    assert schedule_within(problem, lambda: False) is None
