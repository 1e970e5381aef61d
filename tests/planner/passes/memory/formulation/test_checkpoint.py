"""The 0-1 program against hand-worked cases and an exact dynamic program."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings

from tests.planner.passes.memory import cases
from tests.planner.passes.memory.dynamic import optimum
from tests.planner.passes.memory.strategies import problems
from treadle.planner.passes.memory import bound
from treadle.planner.passes.memory.check import check
from treadle.planner.passes.memory.formulation.checkpoint import formulate
from treadle.planner.passes.memory.formulation.memory_rows import row_peak
from treadle.planner.passes.memory.formulation.readout import schedule_of
from treadle.planner.passes.memory.formulation.switches import Switches
from treadle.planner.passes.memory.formulation.useful import undominated
from treadle.planner.passes.memory.lower import lower, prune
from treadle.planner.passes.memory.minimum import least_budget
from treadle.planner.passes.memory.planning import decide
from treadle.planner.passes.memory.problem import MemoryProblem
from treadle.planner.passes.memory.simulate import simulate
from treadle.planner.solver import Status, solve

BOTH = ("entering", "leaving")
DEFAULT = Switches()


def solved(
    problem: MemoryProblem, dependency_set="entering", switches: Switches = DEFAULT, backend="cp_sat"
) -> int | None:
    """The optimum of the program, whose plan is checked."""
    switches = replace(switches, integral=backend == "cp_sat")
    program = formulate(problem, dependency_set=dependency_set, switches=switches)
    solution = solve(program.model, backend=backend)
    if solution.status is Status.INFEASIBLE:
        return None
    assert solution.status is Status.OPTIMAL
    schedule = prune(problem, schedule_of(program, solution))
    assert check(decide(problem, schedule)) == []
    result = simulate(problem, lower(problem, schedule))
    assert result.time_ns <= solution.objective
    assert result.peak_bytes <= row_peak(problem, schedule) <= problem.budget_bytes
    return solution.objective


@pytest.mark.parametrize(
    ("dependency_set", "optima"),
    [
        ("entering", {5: None, 6: 15, 7: 15, 8: 13, 9: 13, 10: 12, 20: 12}),
        ("leaving", {5: None, 6: 16, 7: 16, 8: 13, 9: 13, 10: 12, 20: 12}),
    ],
)
def test_chain(dependency_set, optima):
    assert {budget: solved(cases.a(budget), dependency_set) for budget in optima} == optima


@pytest.mark.parametrize("dependency_set", BOTH)
@pytest.mark.parametrize(
    ("switches", "optima"),
    [
        (Switches(), {7: None, 8: 17, 9: 16, 10: 16, 11: 15}),
        (Switches(local="superset", useful_feeds=False), {7: None, 8: 18, 9: 16, 10: 16, 11: 15}),
    ],
)
def test_skip_connection_with_trimmed_and_untrimmed_feeds(dependency_set, switches, optima):
    assert {budget: solved(cases.b(budget), dependency_set, switches) for budget in optima} == optima


CHOICES = {
    "noop": ({}, {32: None, 33: None, 37: None, 48: 38, 51: 38, 52: 32}),
    "conv": ({"conv": True}, {32: None, 33: None, 37: None, 48: (26, 27), 51: (26, 27), 52: 22}),
    "out": ({"out": True}, {32: None, 33: None, 37: None, 48: 32, 51: 32, 52: 32}),
    "int": ({"intermediate": True}, {32: None, 33: 35, 36: 35, 37: 34, 47: 34, 48: 33, 51: 33, 52: 32}),
    "conv+out": ({"conv": True, "out": True}, {32: None, 33: None, 37: None, 48: 22, 52: 22}),
    "all": (
        {"conv": True, "out": True, "intermediate": True},
        {32: None, 33: 25, 36: 25, 37: 24, 47: 24, 48: 22, 52: 22},
    ),
}


@pytest.mark.parametrize("dependency_set", BOTH)
@pytest.mark.parametrize("variant", CHOICES)
def test_operator_choice_and_intermediates(variant, dependency_set):
    options, optima = CHOICES[variant]
    place = BOTH.index(dependency_set)
    expected = {m: value[place] if isinstance(value, tuple) else value for m, value in optima.items()}
    assert {m: solved(cases.c(m, **options), dependency_set) for m in expected} == expected


@pytest.mark.parametrize(
    ("dependency_set", "inplace", "optima"),
    [
        ("entering", True, {11: None, 12: 29, 13: 29, 15: 29, 16: 21}),
        ("leaving", True, {11: None, 12: 29, 13: 29, 15: 29, 16: 21}),
        ("entering", False, {11: None, 12: None, 13: 29, 15: 29, 16: 21}),
        ("leaving", False, {11: None, 12: None, 13: 32, 15: 32, 16: 21}),
    ],
)
def test_in_place_forward(dependency_set, inplace, optima):
    assert {budget: solved(cases.d(budget, inplace), dependency_set) for budget in optima} == optima


@pytest.mark.parametrize("dependency_set", BOTH)
def test_stage_indices_are_not_shifted(dependency_set):
    assert solved(cases.e(10), dependency_set) == 18


@pytest.mark.parametrize(
    ("fast", "optima"),
    [(True, {11: None, 12: 8, 13: 8, 14: 7}), (False, {11: None, 12: 16, 13: 15, 14: 15})],
)
def test_joint_choice_of_recomputation_and_kernels(fast, optima):
    assert {budget: solved(cases.f(budget, fast)) for budget in optima} == optima


def test_every_backend_finds_the_same_optimum():
    assert [solved(cases.b(8), backend=backend) for backend in ("cp_sat", "highs", "scip")] == [17, 17, 17]


@given(problems())
def test_the_program_finds_what_the_dynamic_program_finds(problem):
    for dependency_set in BOTH:
        assert solved(problem, dependency_set) == optimum(problem, dependency_set)


@given(problems(max_nodes=5, rich=False))
@settings(max_examples=12)
def test_checkpointing_alone_finds_what_the_dynamic_program_finds(problem):
    assert solved(problem) == optimum(problem)


SWITCHES = ("no_idle_rows", "useful_only", "useful_feeds", "no_dominated", "chains", "cuts")


@given(problems(max_nodes=6))
@settings(max_examples=25)
def test_trims_never_worsen_the_optimum(problem):
    best = solved(problem)
    for switch in SWITCHES:
        switches = replace(Switches(), **{switch: not getattr(DEFAULT, switch)})
        if switch == "useful_only":
            switches = replace(switches, useful_feeds=False)
        other = solved(problem, switches=switches)
        if switch in ("useful_feeds", "useful_only"):
            assert other is None or (best is not None and best <= other)
        else:
            assert other == best


def long_chain(nodes: int, budget: int) -> MemoryProblem:
    bwd = [cases.backward(1, 1, ((k - 1,) if k else (), 0, 2)) for k in reversed(range(nodes))]
    return cases.problem(budget, cases.chain(*[1 + i % 3 for i in range(nodes)]), bwd)


def test_chained_sums_do_not_change_the_optimum():
    long = long_chain(60, 30)
    dense = formulate(long, switches=Switches(chains=False, cuts=False))
    chained = formulate(long, switches=Switches(cuts=False))
    assert chained.model.size[2] < dense.model.size[2] / 2
    problem = long_chain(14, 14)
    assert solved(problem, backend="highs") == solved(problem, switches=Switches(chains=False), backend="highs")


@given(problems())
@settings(max_examples=20)
def test_least_budget_is_exact(problem):
    least = least_budget(problem, backend="cp_sat")
    assert least.budget_bytes == least.proved_bytes >= bound.least_bytes(problem)
    at = msgspec.structs.replace(problem, budget_bytes=least.budget_bytes)
    assert check(decide(at, least.schedule)) == []
    assert optimum(at) is not None
    if least.budget_bytes:
        assert optimum(msgspec.structs.replace(problem, budget_bytes=least.budget_bytes - 1)) is None


@given(problems())
def test_no_plan_is_below_the_bounds(problem):
    best = optimum(problem)
    if best is not None:
        assert best >= bound.least_time(problem)
        assert problem.budget_bytes >= bound.least_bytes(problem)


def test_dominated_implementations_are_left_out():
    one, two, both = frozenset({1}), frozenset({2}), frozenset({1, 2})
    assert undominated([(4, 4), (4, 5), (9, 9), (4, 4)], [one, one, two, one]) == [0, 2]
    assert undominated([(0, 9), (9, 0)], [one, one]) == [0, 1]
    assert undominated([(4, 4), (4, 4), (3, 5)], [both, one, one]) == [1, 2]
