"""The checker accepts what the pass makes and names the spot of every corruption."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from tests.planner.passes.memory import cases
from tests.planner.passes.memory.strategies import problems
from treadle.planner.passes.memory.check import check
from treadle.planner.passes.memory.decisions import MemoryDecisions
from treadle.planner.passes.memory.lower import store_all
from treadle.planner.passes.memory.planning import decide, plan_memory
from treadle.planner.passes.memory.program import Drop, EnterStage, RunBackward, RunForward


@pytest.fixture(scope="module")
def plan() -> MemoryDecisions:
    """The chain of four at 6 bytes: stage 3 recomputes nodes 0 and 1, stage 2 recomputes node 0."""
    return plan_memory(cases.a(6)).decisions


def edited(plan: MemoryDecisions, edit: Callable[[list], None]) -> MemoryDecisions:
    program = list(plan.program)
    edit(program)
    return replace(plan, program=tuple(program))


def swap(a: int, b: int) -> Callable[[list], None]:
    def edit(program: list) -> None:
        program[a], program[b] = program[b], program[a]

    return edit


def first(plan: MemoryDecisions, kind: type, after: int = 0) -> int:
    return next(i for i, step in enumerate(plan.program) if i >= after and isinstance(step, kind))


def test_the_plan_is_accepted_and_is_what_the_tests_below_assume(plan):
    assert check(plan) == []
    assert plan.program == (
        *(EnterStage(5), RunForward(0), RunForward(1), Drop(0), RunForward(2), Drop(1), RunForward(3), Drop(3)),
        *(EnterStage(4), RunBackward(0), Drop(2)),
        *(EnterStage(3), RunForward(0), RunForward(1), Drop(0), RunBackward(1), Drop(1)),
        *(EnterStage(2), RunForward(0), RunBackward(2), Drop(0)),
        *(EnterStage(1), RunBackward(3)),
    )


CORRUPTIONS: dict[str, tuple[Callable[[list], object], str]] = {
    "dropped too early": (lambda p: p.insert(2, Drop(0)), "$.program[3]: forward node 1 reads forward node 0"),
    "dropped twice": (lambda p: p.insert(4, Drop(0)), "$.program[4]: drops forward node 0, which is not live"),
    "never dropped": (lambda p: p.pop(10), "$.program: leaves forward nodes [2] live"),
    "drop of an unknown node": (lambda p: p.insert(1, Drop(9)), "$.program[1]: drops forward node 9"),
    "backward missing": (lambda p: p.pop(9), "ended without backward node 0"),
    "backward twice": (lambda p: p.insert(10, p[9]), "$.program[10]: backward node 0 runs in stage 4"),
    "backward in a wrong stage": (lambda p: p.__setitem__(9, RunBackward(1)), "$.program[9]: backward node 1 runs in"),
    "backward reads what is gone": (lambda p: p.insert(9, Drop(2)), "$.program[10]: backward node 0 reads"),
    "unknown backward": (lambda p: p.__setitem__(9, RunBackward(7)), "$.program[9]: runs backward node 7"),
    "unknown forward": (lambda p: p.__setitem__(1, RunForward(7)), "$.program[1]: runs forward node 7"),
    "forward implementation out of range": (
        lambda p: p.__setitem__(1, RunForward(0, 3)),
        "$.program[1]: runs forward node 0 with implementation 3",
    ),
    "backward implementation out of range": (
        lambda p: p.__setitem__(9, RunBackward(0, 1)),
        "$.program[9]: runs backward node 0 with implementation 1",
    ),
    "forward op missing": (lambda p: (p.pop(6), p.pop(6)), "the forward pass ended without forward nodes [3]"),
    "forward op twice": (lambda p: p.insert(4, RunForward(0)), "$.program[4]: forward node 0 runs twice"),
    "runs while live": (lambda p: p.insert(13, RunForward(0)), "$.program[13]: forward node 0 runs while"),
    "forward after backward": (lambda p: p.insert(10, RunForward(0)), "$.program[10]: forward node 0 runs after the"),
    "wrong order": (swap(1, 2), "$.program[1]: forward node 1 reads forward node 0, which is not live"),
    "in place where nothing can be": (
        lambda p: p.__setitem__(2, RunForward(1, 0, True)),
        "$.program[2]: forward node 1 runs in place",
    ),
    "stage missing": (lambda p: p.pop(8), "backward node 0 runs in stage 5"),
    "extra stage": (lambda p: p.append(EnterStage(0)), "enters stage 0"),
    "stage repeated": (lambda p: p.insert(9, EnterStage(4)), "$.program[9]: "),
    "does not start with a stage": (lambda p: p.pop(0), "$.program[0]: comes before the first stage"),
    "ends early": (lambda p: p.pop(), "expected the end of stage 1 with all backward nodes run"),
    "nothing at all": (lambda p: p.clear(), "$.program: ends in stage"),
}


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_corrupted_programs_are_rejected_at_the_spot(plan, name):
    edit, message = CORRUPTIONS[name]
    findings = check(edited(plan, edit))
    assert any(message in finding for finding in findings), findings


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"objective_ns": 14}, "$.objective_ns: found 14, expected 15"),
        ({"exact_peak_bytes": 5}, "$.exact_peak_bytes: found 5, expected 6"),
        ({"bound_peak_bytes": 5}, "$.bound_peak_bytes: found 5, expected between the peak 6 and the budget 6"),
        ({"bound_peak_bytes": 7}, "$.bound_peak_bytes: found 7"),
        ({"store_all_ns": 13}, "$.store_all_ns: found 13, expected 12"),
        ({"store_all_peak_bytes": 11}, "$.store_all_peak_bytes: found 11, expected 10"),
    ],
)
def test_recorded_figures_are_recomputed(plan, fields, message):
    assert any(finding.startswith(message) for finding in check(replace(plan, **fields)))


def with_problem(plan: MemoryDecisions, **fields) -> MemoryDecisions:
    return replace(plan, problem=replace(plan.problem, **fields))


def test_a_lowered_budget_is_broken_where_the_peak_is(plan):
    findings = check(with_problem(plan, budget_bytes=5))
    assert findings[0] == "$.program[9]: 6 bytes in use, 1 over the budget of 5"


def test_what_the_problem_says_counts(plan):
    fwd, bwd = plan.problem.fwd, plan.problem.bwd
    bigger = replace(fwd[1], out_bytes=3)
    assert any("over the budget" in f for f in check(with_problem(plan, fwd=(fwd[0], bigger, *fwd[2:]))))
    heavier = replace(bwd[0], live_grad_bytes=3)
    assert any("over the budget" in f for f in check(with_problem(plan, bwd=(heavier, *bwd[1:]))))
    assert any("over the budget" in f for f in check(with_problem(plan, base={"parameters": 1})))
    fixed = replace(fwd[0], recomputable=False)
    assert any("runs again, but it must not" in f for f in check(with_problem(plan, fwd=(fixed, *fwd[1:]))))
    broken = replace(fwd[0], inputs=(3,))
    assert check(with_problem(plan, fwd=(broken, *fwd[1:])))[0].startswith("$.problem.fwd[0].inputs[0]: found 3")


def test_an_intermediate_needs_its_creator_in_the_stage():
    problem = cases.c(33, conv=True, out=True, intermediate=True)
    decisions = plan_memory(problem).decisions
    assert check(decisions) == []
    later = first(decisions, EnterStage, 1)
    bad = edited(decisions, lambda p: p.insert(later + 1, RunForward(4)))
    assert any("its creator 3 did not run in this stage" in finding for finding in check(bad))


def test_in_place_ends_what_it_overwrites():
    decisions = plan_memory(cases.d(12)).decisions
    assert check(decisions) == []
    place = next(i for i, s in enumerate(decisions.program) if isinstance(s, RunForward) and s.inplace)
    bad = edited(decisions, lambda p: p.insert(place + 1, Drop(0)))
    assert check(bad) == [f"$.program[{place + 1}]: drops forward node 0, which is not live"]


@given(problems(max_nodes=6))
@settings(max_examples=40)
def test_store_all_passes_once_the_budget_allows_it(problem):
    decisions = decide(problem, store_all(problem))
    roomy = replace(decisions, problem=replace(problem, budget_bytes=max(1, decisions.bound_peak_bytes)))
    assert check(roomy) == []
    assert decisions.objective_ns == decisions.store_all_ns
    assert decisions.exact_peak_bytes == decisions.store_all_peak_bytes
