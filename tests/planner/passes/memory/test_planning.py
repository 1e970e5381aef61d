"""The whole pass: budgets, certificates, provenance, determinism, errors."""

from __future__ import annotations

import re
import signal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from tests.planner.passes.memory import cases
from tests.planner.passes.memory.dynamic import optimum
from tests.planner.passes.memory.extract.test_problem import perceptron
from tests.planner.passes.memory.formulation.test_checkpoint import long_chain
from tests.planner.passes.memory.strategies import problems
from tests.planner.plans import memory_plan
from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan
from treadle.planner.errors import CheckFailed, InfeasibleError, InputError, LimitError
from treadle.planner.passes.memory import planning
from treadle.planner.passes.memory.check import check, check_against_trace
from treadle.planner.passes.memory.lower import lower, store_all
from treadle.planner.passes.memory.minimum import Minimum
from treadle.planner.passes.memory.plain import plain_peak
from treadle.planner.passes.memory.planning import MemoryOptions, parse_budget, plan_memory, with_budget
from treadle.planner.passes.memory.problem import Forward, ForwardNode, MemoryProblem
from treadle.planner.passes.memory.search import attempts as methods
from treadle.planner.passes.memory.search import rounds
from treadle.planner.passes.memory.search.sweep import sweep
from treadle.planner.passes.memory.simulate import simulate
from treadle.planner.solver import Progress, Solution, Status


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("8GiB", 8 * 2**30),
        ("4096", 4096),
        (" 1.5 MB ", 1_500_000),
        ("1.5M", 3 * 2**19),
        ("0.6x", Fraction(3, 5)),
        ("1X", Fraction(1)),
        ("3/4x", Fraction(3, 4)),
    ],
)
def test_budgets_as_people_write_them(text, budget):
    assert parse_budget(text) == budget


@pytest.mark.parametrize("text", ["", "x", "abc", "-1", "-0.5x", "0", "0x", "0GiB", "1/0x", "nanx", "infx", "8 GiBx"])
def test_budgets_that_are_none(text):
    with pytest.raises(InputError, match=f"^--budget: found {re.escape(repr(text))}(, which is negative)?, expected"):
        parse_budget(text)


def test_a_share_is_of_the_store_all_peak():
    assert with_budget(cases.a(1), Fraction(3, 5)).budget_bytes == 6
    assert with_budget(cases.a(1), Fraction(69, 100)).budget_bytes == 6
    assert with_budget(cases.a(1), 7).budget_bytes == 7


def test_a_plan_from_a_trace():
    plan = memory_plan(perceptron(), Fraction(1))
    assert plan.inputs["trace"].digest == store.digest(perceptron())
    assert plan.prediction.peak_bytes == plan.decisions.exact_peak_bytes == plan.decisions.store_all_peak_bytes
    assert plan.prediction.time_us == plan.decisions.objective_ns / 1000 == 0.038
    assert plan.certificate.optimal
    assert plan.certificate.argument.startswith("every forward and every backward operator runs at least once")


def test_a_reserve_is_left_alone():
    """In the base, so that a plan within 8 bytes of which 2 are reserved is one within 6."""
    smaller = plan_memory(cases.a(6), options=MemoryOptions(gap=0.0))
    plan = plan_memory(cases.a(8), options=MemoryOptions(gap=0.0, reserve_bytes=2))
    assert check(plan.decisions) == []
    assert plan.decisions.program == smaller.decisions.program
    assert plan.decisions.exact_peak_bytes == smaller.decisions.exact_peak_bytes + 2
    options = MemoryOptions(reserve_bytes=2)
    share = plan_memory(with_budget(cases.a(1), Fraction(1), options), options=options).decisions
    assert share.problem.budget_bytes == share.store_all_peak_bytes == 12
    held = replace(cases.a(8), base={"reserve": 1})
    assert plan_memory(held, options=MemoryOptions(reserve_bytes=1)).decisions.problem.base == {"reserve": 2}
    points = sweep(cases.a(1), [Fraction(1)], MemoryOptions(reserve_bytes=2))
    assert [point.plan.decisions.problem.base["reserve"] for point in points] == [2]
    assert points[0].budget_bytes == 12


def test_a_plan_with_a_reserve_is_that_of_its_trace():
    decisions = memory_plan(perceptron(), Fraction(1), options=MemoryOptions(reserve_bytes=100)).decisions
    assert check_against_trace(decisions, perceptron()) == []


@pytest.mark.parametrize(
    ("method", "recompute", "scope"),
    [("full", True, "forward order"), ("heuristic", True, "any order"), ("full", False, "no recomputation")],
)
def test_a_certificate_says_which_plans_its_bound_speaks_of(method, recompute, scope):
    options = MemoryOptions(method=method, recompute=recompute, gap=0.0)
    assert plan_memory(cases.a(6 if recompute else 10), options=options).certificate.scope == scope


def test_an_optimal_plan_says_so_and_why():
    plan = plan_memory(cases.a(6), options=MemoryOptions(gap=0.0))
    proof = plan.certificate
    assert (proof.objective, proof.lower_bound, proof.gap, proof.optimal, proof.unit) == (15, 15, 0, True, "ns")
    assert (
        proof.argument
        == "the solver proved that no solution of the 0-1 program (MONeT, equations 4.1 to 4.15) is below it"
    )
    assert (plan.provenance.method, plan.provenance.solver_status) == ("heuristic", "optimal")
    assert not plan.provenance.limit_fired
    assert not plan.provenance.interrupted


@given(problems())
@settings(max_examples=30)
def test_plans_are_optimal_within_their_gap_and_least_budgets_are_right(problem):
    best = optimum(problem)
    if best is None:
        with pytest.raises(InfeasibleError) as caught:
            plan_memory(problem, options=MemoryOptions(solver="cp_sat"))
        least = int(re.search(r"least feasible [^(]*\((\d+) bytes", str(caught.value))[1])
        assert optimum(replace(problem, budget_bytes=least)) is not None
        assert optimum(replace(problem, budget_bytes=least - 1)) is None
        return
    plan = plan_memory(problem, options=MemoryOptions(gap=0.0, solver="cp_sat"))
    assert plan.certificate.optimal
    assert plan.decisions.objective_ns == plan.certificate.objective == best
    assert plan.decisions.exact_peak_bytes <= plan.decisions.bound_peak_bytes <= problem.budget_bytes


def test_equal_inputs_give_equal_bytes(tmp_path):
    texts = set()
    for name in ("one", "two"):
        store.save(plan_memory(long_chain(12, 12), options=MemoryOptions(gap=0.0)), tmp_path / name)
        texts.add((tmp_path / name).read_bytes())
    assert len(texts) == 1
    again = store.load(tmp_path / "one", Plan)
    assert check(again.decisions) == []


def test_a_hopeless_budget_is_answered_with_the_least_feasible():
    message = r"budget 5 B \(5 bytes, 0.5x of plain PyTorch\) is below the least feasible 6 B \(6 bytes, 0.6x of plain"
    with pytest.raises(InfeasibleError, match=message):
        plan_memory(cases.a(5))


def test_a_budget_below_the_base_is_infeasible():
    problem = replace(cases.a(100), base={"parameters": 200})
    with pytest.raises(InfeasibleError, match=r"least feasible 206 B \(206 bytes, 0.981x of plain PyTorch\)"):
        plan_memory(problem)


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (replace(cases.a(6), bwd=()), r"\$.bwd: found no node, expected at least one backward node"),
        (replace(cases.a(6), fwd=()), r"\$.fwd: found no node"),
        (replace(cases.a(6), base={"parameters": -1}), r"\$.base.parameters: found -1"),
        (cases.a(0), "found a budget of 0 bytes, expected more than nothing"),
        (
            replace(cases.a(6), fwd=(replace(cases.a(6).fwd[0], inputs=(2,)), *cases.a(6).fwd[1:])),
            "found 2, expected an earl",
        ),
    ],
)
def test_unsound_problems_are_refused(problem, message):
    with pytest.raises(InputError, match=message):
        plan_memory(problem)


def no_answer(status: Status = Status.UNKNOWN, **fields) -> Solution:
    defaults = {"objective": None, "bound": None, "gap": None, "values": (), "wall_s": 1.0, "backend": "highs"}
    return Solution(**{**defaults, "status": status, "limit_fired": "time", "interrupted": False, **fields})


def test_a_limit_without_any_plan_is_exit_4(monkeypatch):
    monkeypatch.setattr(methods, "solve", lambda *args, **options: no_answer())
    monkeypatch.setattr(methods, "solve_quick", lambda problem, on_better: None)
    monkeypatch.setattr(rounds, "solve_checkpoints", store_all)
    monkeypatch.setattr(rounds, "least_budget", lambda *args, **options: Minimum(8, 6, None))
    said = r"no plan within 6 B \(6 bytes\) was found in .* s; 8 B \(8 bytes\) would be enough; raise --time-limit or"
    with pytest.raises(LimitError, match=said):
        plan_memory(cases.a(6), options=MemoryOptions(time_limit_s=2.0))


def test_a_limit_with_a_heuristic_plan_gives_that_plan_and_says_so(monkeypatch):
    monkeypatch.setattr(methods, "solve", lambda *args, **options: no_answer(bound=12))
    plan = plan_memory(cases.a(8))
    assert (plan.provenance.method, plan.provenance.limit_fired) == ("heuristic", True)
    assert (plan.certificate.objective, plan.certificate.lower_bound, plan.certificate.optimal) == (13, 12, False)
    assert plan.certificate.gap == pytest.approx(1 / 13)


def test_an_interrupt_keeps_the_best_plan(monkeypatch):
    def interrupted(*args, **options):
        signal.raise_signal(signal.SIGINT)
        raise LimitError("interrupted before a solution was found")

    monkeypatch.setattr(methods, "solve", interrupted)
    assert plan_memory(cases.a(8)).provenance.interrupted
    monkeypatch.setattr(methods, "solve_quick", lambda problem, on_better: None)
    monkeypatch.setattr(rounds, "solve_checkpoints", store_all)
    with pytest.raises(LimitError, match="interrupted"):
        plan_memory(cases.a(6))


def test_a_plan_that_fails_its_check_is_not_returned(monkeypatch):
    monkeypatch.setattr(planning, "row_peak", lambda problem, schedule: 10**9)
    with pytest.raises(CheckFailed, match="the memory plan fails its check") as caught:
        plan_memory(cases.a(8))
    assert any("$.bound_peak_bytes: found 1000000000" in finding for finding in caught.value.findings)


def test_progress_is_in_ns_and_counts_the_heuristic_plan():
    seen: list[Progress] = []
    problem = long_chain(16, 16)
    slow = replace(problem, fwd=tuple(replace(n, impls=(replace(n.impls[0], time_ns=10**9),)) for n in problem.fwd))
    plan = plan_memory(slow, options=MemoryOptions(gap=0.0), on_progress=seen.append)
    assert seen
    assert all(p.incumbent is None or p.incumbent >= 0.999 * plan.decisions.objective_ns for p in seen)
    assert all(p.bound is None or p.bound <= 1.001 * plan.decisions.objective_ns for p in seen)


def test_the_bound_never_exceeds_the_plan_in_leaving_mode():
    problem: MemoryProblem = cases.c(48, conv=True)
    plan = plan_memory(problem, options=MemoryOptions(dependency_set="leaving", gap=0.0))
    assert plan.certificate.lower_bound <= plan.certificate.objective == 26
    assert not plan.certificate.optimal


def test_a_restricted_plan_is_fresh_for_its_trace():
    options = MemoryOptions(families=("conv",), recompute=False)
    decisions = memory_plan(perceptron(), Fraction(1), options=options).decisions
    assert (decisions.families, decisions.recompute) == (("conv",), False)
    assert check_against_trace(decisions, perceptron()) == []
    assert check_against_trace(replace(decisions, recompute=True), perceptron())


@pytest.mark.parametrize("form", ["exact_local", "literal_products"])
def test_long_forms_of_the_program_have_the_same_optima(form):
    for case, budget, best in ((cases.b, 8, 17), (cases.d, 12, 29)):
        plan = plan_memory(case(budget), options=MemoryOptions(method="full", gap=0.0, **{form: True}))
        assert (plan.decisions.objective_ns, plan.certificate.optimal) == (best, True)
        assert plan.provenance.options[form]


def test_plans_are_told_before_the_search_ends():
    reported: list[Plan] = []
    plan = memory_plan(perceptron(), Fraction(1), on_plan=reported.append)
    assert reported[0].provenance.interrupted
    assert reported[0].inputs == plan.inputs
    assert not plan.provenance.interrupted


def test_a_bound_in_leaving_mode_says_that_it_holds_for_the_narrower_rule():
    plan = plan_memory(cases.a(8), options=MemoryOptions(dependency_set="leaving", gap=0.0))
    if plan.certificate.optimal:
        assert plan.certificate.scope == "forward order, reads left"
        assert "--as-published" in plan.certificate.argument
    assert plan_memory(cases.a(8), options=MemoryOptions(gap=0.0)).certificate.scope == "forward order"


def test_a_problem_of_a_newer_version_is_refused_inside_a_plan_too():
    plan = plan_memory(cases.a(8))
    newer = replace(plan.decisions, problem=replace(plan.decisions.problem, version=2))
    assert check(newer)[0].startswith("$.problem.version: found 2, expected at most 1")


def test_own_calls_keep_the_intermediates_that_they_read():
    """The statistics of a normalisation are such."""
    statistics = ForwardNode(
        op="mean", out_bytes=3, inputs=(3,), impls=(Forward(time_ns=1),), kind="intermediate", creator=3
    )
    problem = cases.a(40)
    bwd = tuple(
        replace(node, impls=(replace(node.impls[0], name="default", needs=(*node.impls[0].needs, 4)),))
        for node in problem.bwd
    )
    with_mean = replace(problem, fwd=(*problem.fwd, statistics), bwd=bwd)
    without = replace(problem, bwd=tuple(replace(n, impls=(replace(n.impls[0], name="default"),)) for n in problem.bwd))
    assert plain_peak(with_mean) == plain_peak(without) + 3


def test_own_calls_are_those_named_default():
    """The fast implementation needs 20 bytes of workspace, the model's own call none."""
    assert plain_peak(cases.a(8)) is None or plain_peak(cases.a(8)) >= 10
    ways = (Forward(time_ns=2), Forward(name="fast", time_ns=1, workspace_bytes=20))
    problem = replace(cases.a(40), fwd=tuple(replace(node, impls=ways) for node in cases.a(40).fwd))
    problem = replace(
        problem,
        bwd=tuple(
            replace(node, impls=tuple(replace(impl, name="default") for impl in node.impls[:1])) for node in problem.bwd
        ),
    )
    whole = simulate(problem, lower(problem, store_all(problem))).peak_bytes
    assert plain_peak(problem) <= whole - 10
    gone = replace(problem, fwd=tuple(replace(node, impls=ways[1:]) for node in problem.fwd))
    assert plain_peak(gone) is None
