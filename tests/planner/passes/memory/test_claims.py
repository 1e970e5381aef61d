"""What methods claim of all plans, against the exact dynamic program: optima, bounds, infeasibility, least budgets.

`TREADLE_EXACT=1000` asks every method and every solver about 1,000 problems; without it one each about a few.
"""

from __future__ import annotations

import os

import pytest
from msgspec.structs import replace

from tests.planner.passes.memory.dynamic import optimum
from tests.planner.passes.memory.instances import instance, optional
from treadle.planner.passes.memory.minimum import least_budget
from treadle.planner.passes.memory.problem import MemoryProblem
from treadle.planner.passes.memory.search.attempts import Attempt, MemoryOptions, attempt
from treadle.planner.passes.memory.search.rounds import BudgetTooSmall, search

ASKED = int(os.environ.get("TREADLE_EXACT", "0"))
COUNT = ASKED or 24
PARTS = 8
EXACT = {
    "auto, HiGHS": MemoryOptions(gap=0.0, time_limit_s=None),
    "full, SCIP": MemoryOptions(method="full", gap=0.0, time_limit_s=None, solver="scip"),
    "full, CP-SAT": MemoryOptions(method="full", gap=0.0, time_limit_s=None, solver="cp_sat"),
    "retention": MemoryOptions(method="retention", gap=0.0, time_limit_s=None),
}
HARD = [
    *(pytest.param(instance(seed), id=f"instance {seed}") for seed in (1512, 3371, 22005, 22205)),
    *(pytest.param(optional(seed), id=f"optional {seed}") for seed in (265, 344, 741, 895, 1225, 1524)),
]
"""Where intermediates do not run or runs are in place, a superset of what a run holds costs the best plan or all."""


def proved(problem: MemoryProblem, options: MemoryOptions) -> int | None:
    """The time that a search proves optimal, None where it proves that no plan fits and names the least budget."""
    try:
        found = search(problem, options)
    except BudgetTooSmall as error:
        minimum = error.minimum
    else:
        assert found.bound.time_ns == found.time_ns
        return found.time_ns
    assert minimum.budget_bytes == minimum.proved_bytes
    assert is_least(problem, minimum.budget_bytes)
    return None


def is_least(problem: MemoryProblem, budget: int) -> bool:
    below = budget and optimum(replace(problem, budget_bytes=budget - 1))
    return optimum(replace(problem, budget_bytes=budget)) is not None and not below


def holds(problem: MemoryProblem, job: str, best: int | None) -> bool:
    """Whether what a method says that need not find the best plan is true."""
    answer = attempt(Attempt(job), problem, None, MemoryOptions(gap=0.0, time_limit_s=None))
    return best is None or not (answer.infeasible or (answer.bound is not None and answer.bound.time_ns > best))


@pytest.mark.parametrize("problem", HARD)
def test_claims_hold_where_a_superset_of_what_runs_hold_would_break_them(problem):
    best = optimum(problem)
    assert {proved(problem, EXACT[name]) for name in ("auto, HiGHS", "full, CP-SAT", "retention")} == {best}
    assert all(holds(problem, job, best) for job in ("rounding", "bound"))
    least = least_budget(problem, backend="cp_sat")
    assert least.budget_bytes == least.proved_bytes
    assert is_least(problem, least.budget_bytes)


@pytest.mark.parametrize("part", range(PARTS))
def test_every_method_and_every_solver_proves_the_optimum(part):
    names = sorted(EXACT)
    for seed in range(part, COUNT, PARTS):
        problem = (instance if seed % 4 else optional)(seed)
        best = optimum(problem)
        for name in names if ASKED else [names[(seed + seed // PARTS) % len(names)]]:
            assert proved(problem, EXACT[name]) == best, (seed, name)
