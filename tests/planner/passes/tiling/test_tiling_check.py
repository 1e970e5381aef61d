"""The checker of tiling plans: it accepts those of the planner, and refuses what was made wrong in any part of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from tests.planner.passes.tiling.random_problems import published, ruled
from tests.planner.passes.tiling.tiling_plans import by_hand, greedy_plan, layer_plan
from treadle.planner.errors import InfeasibleError
from treadle.planner.passes.tiling.check import check
from treadle.planner.passes.tiling.check_bound import least_ns
from treadle.planner.passes.tiling.decided import decided
from treadle.planner.passes.tiling.decisions import TilingDecisions, TransferStep
from treadle.planner.passes.tiling.planning import TilingOptions, plan_tiling
from treadle.planner.passes.tiling.problem import TilingProblem
from treadle.planner.passes.tiling.room import PASS

Change = Callable[[TilingDecisions], TilingDecisions]


def test_a_plan_worked_by_hand_is_accepted() -> None:
    assert check(by_hand()) == []


def fields(**changes: Any) -> Change:
    return lambda decisions: replace(decisions, **changes)


def at(place: str, number: int, **changes: Any) -> Change:
    """One entry of a list with other fields."""

    def changed(decisions: TilingDecisions) -> TilingDecisions:
        entries = list(getattr(decisions, place))
        entries[number] = replace(entries[number], **changes)
        return replace(decisions, **{place: tuple(entries)})

    return changed


def tiling(array: str, *words: str) -> Change:
    def changed(decisions: TilingDecisions) -> TilingDecisions:
        tilings = list(decisions.tilings)
        tilings[[each.id for each in decisions.problem.arrays].index(array)] = words
        return replace(decisions, tilings=tuple(tilings))

    return changed


def without(place: str, number: int) -> Change:
    def changed(decisions: TilingDecisions) -> TilingDecisions:
        entries = getattr(decisions, place)
        return replace(decisions, **{place: entries[:number] + entries[number + 1 :]})

    return changed


def twice(place: str) -> Change:
    return lambda decisions: replace(decisions, **{place: (*getattr(decisions, place), getattr(decisions, place)[-1])})


def swapped(place: str, one: int, other: int) -> Change:
    def changed(decisions: TilingDecisions) -> TilingDecisions:
        entries = list(getattr(decisions, place))
        entries[one], entries[other] = entries[other], entries[one]
        return replace(decisions, **{place: tuple(entries)})

    return changed


def problem(**changes: Any) -> Change:
    return lambda decisions: replace(decisions, problem=replace(decisions.problem, **changes))


def entry(place: str, number: int, **changes: Any) -> Change:
    """One array or operator of the problem with other fields."""

    def changed(decisions: TilingDecisions) -> TilingDecisions:
        entries = list(getattr(decisions.problem, place))
        entries[number] = replace(entries[number], **changes)
        return replace(decisions, problem=replace(decisions.problem, **{place: tuple(entries)}))

    return changed


PROGRAM_CHANGES: dict[str, tuple[Change, str]] = {
    "an array cut otherwise": (tiling("z", "S1"), "nodes[9].reads"),
    "an array whole on every worker": (tiling("y", "R"), "tilings[7]: found R"),
    "two placements on one axis": (tiling("y", "S0", "S0"), "tilings[7]"),
    "an axis that is not there": (tiling("rows", "S1"), "tilings[3]"),
    "a view cut otherwise than its source": (tiling("t", "D1"), "tilings[2]: found D1"),
    "a fixed tiling left": (tiling("k", "S1"), "tilings[1]"),
    "second copies beyond the budget": (problem(dup_bytes=191), "tilings[0]: found D1"),
    "second copies unaccounted for": (fields(dup_bytes=0), "dup_bytes: found 0, expected 192"),
    "a tiling too few": (without("tilings", 9), "tilings: found 9"),
    "an operator too few": (without("nodes", 9), "nodes: found 9"),
    "operators in another order": (swapped("nodes", 3, 4), "nodes[3].node"),
    "an input read otherwise": (at("nodes", 8, reads=(("S1",), ("R",))), "nodes[8].reads"),
    "a whole line taken for partial sums": (at("nodes", 3, makes=(("P",),)), "nodes[3].makes"),
    "partial sums taken for the result": (at("nodes", 9, makes=(("S0",),)), "nodes[9].makes"),
    "a move left out": (without("edges", 3), "edges[3].array"),
    "the last move left out": (without("edges", 4), "edges: found 4 moves"),
    "a move made twice": (twice("edges"), "edges: found 6 moves"),
    "moves in another order": (swapped("edges", 1, 2), "edges[1].array"),
    "another array moved": (at("edges", 3, array="z"), "edges[3].array"),
    "moved to another operator": (at("edges", 3, node="y.map"), "edges[3].node"),
    "moved as another input": (at("edges", 3, reading=0), "edges[3].reading"),
    "another transfer": (at("edges", 1, steps=(TransferStep(transfer="broadcast", tiling=("S0",)),)), "edges[1].steps"),
    "another tiling after a move": (at("edges", 4, steps=()), "edges[4].steps"),
    "fewer bytes": (at("edges", 0, bytes=64), "edges[0].bytes: found 64, expected 128"),
    "a lower cost": (at("edges", 0, cost=16), "edges[0].cost: found 16, expected 32"),
    "a lower sum": (fields(cost=63), "cost: found 63, expected 64"),
    "fewer bytes in all": (fields(moved_bytes=252), "moved_bytes: found 252"),
    "less memory": (fields(memory_bytes=200), "memory_bytes: found 200, expected 208"),
    "less time": (fields(time_ns=85), "time_ns: found 85, expected 86"),
    "memory beyond the limit": (problem(memory_bytes=207), "memory_bytes: found 208, expected at most 207"),
    "a greedy step with another cost": (at("steps", 0, costs=(0, 0, 0)), "steps[0].costs"),
    "a greedy step with another choice": (at("steps", 1, choice=1), "steps[1].choice"),
    "greedy steps in another order": (swapped("steps", 0, 1), "steps[0].group"),
    "a greedy step left out": (without("steps", 5), "steps[5].group"),
    "no greedy steps": (fields(steps=()), "steps: found 0 steps"),
    "more workers": (problem(mesh=()), "problem.mesh: found no axis"),
    "a fold of another shape": (entry("arrays", 3, shape=(7,)), "problem.nodes[3]"),
    "a slice beyond its source": (
        entry("nodes", 5, params={"region": [[3, 10, 2], [0, 3, 1]]}),
        "problem.nodes[5]: found a result",
    ),
    "a slice without a region": (entry("nodes", 5, params={}), "problem.nodes[5]"),
    "a join of an axis that is not there": (entry("nodes", 8, axes=(2, -1)), "problem.nodes[8]"),
    "matrices that do not multiply": (entry("nodes", 8, function="matmul"), "a product of shapes [(8, 6), (4, 3)]"),
    "a fold of one axis twice": (entry("nodes", 9, axes=(0, 1, -1)), "problem.nodes[9]: found axes"),
    "inputs that do not broadcast": (entry("arrays", 6, shape=(2, 3)), "problem.nodes[7]"),
    "an output that nothing makes": (problem(outputs=("m",)), "problem.outputs"),
    "an array of itself": (entry("arrays", 3, shares="rows"), "problem.arrays[3].shares"),
}


@pytest.mark.parametrize("name", PROGRAM_CHANGES)
def test_a_plan_of_a_program_that_was_changed_is_refused(name: str) -> None:
    change, expected = PROGRAM_CHANGES[name]
    findings = check(change(greedy_plan().decisions))
    assert any(expected in finding for finding in findings), findings


def steps(number: int, *chosen: tuple[Any, int, tuple[str, ...]]) -> Change:
    return at("edges", number, steps=tuple(TransferStep(transfer=t, axis=axis, tiling=to) for t, axis, to in chosen))


LAYER_CHANGES: dict[str, tuple[Change, str]] = {
    "a placement too few": (tiling("h", "S0"), "tilings[2]: found 1 placement"),
    "an axis that is not there": (tiling("loss", "S0", "R"), "tilings[4]"),
    "a cut that does not divide": (entry("arrays", 0, shape=(7, 8)), "tilings[0]: found S0, R"),
    "a fixed tiling left": (tiling("x", "R", "R"), "tilings[0]: found R, R, expected the fixed S0, R"),
    "a gradient cut otherwise than its weight": (tiling("dw", "S0", "S1"), "tilings[6]"),
    "an output left partial": (tiling("loss", "P", "R"), "tilings[4]"),
    "an input fixed to partial results": (
        lambda decisions: tiling("x", "P", "R")(entry("arrays", 0, fixed=("P", "R"))(decisions)),
        "tilings[0]: found P, R, expected no partial result",
    ),
    "a weight left partial": (tiling("w", "P", "S1"), "tilings[1]"),
    "blocks on two axes": (tiling("h", "B", "R"), "tilings[2]: found B, R, expected placements"),
    "what no rule lets it read": (at("nodes", 2, reads=(("S0", "R"), ("S0", "S1"))), "nodes[2]: found S0, S0 -> S0"),
    "what no rule lets it make": (at("nodes", 6, makes=(("R", "S1"),)), "nodes[6]: found S0, S0 -> R"),
    "an input too few": (at("nodes", 2, reads=(("S0", "R"),)), "nodes[2]: found 1 reads"),
    "another operator": (at("nodes", 3, node="mm"), "nodes[3].node"),
    "a move left out": (without("edges", 0), "edges[0].array"),
    "a step left out": (steps(0, ("allreduce", 1, ("R", "R"))), "edges[0].steps"),
    "steps of equal cost in another order": (
        steps(0, ("allreduce", 1, ("P", "R")), ("allreduce", 0, ("R", "R"))),
        "edges[0].steps",
    ),
    "a dearer path": (
        steps(1, ("reduce-scatter", 0, ("S0", "S1")), ("allgather", 0, ("R", "S1"))),
        "edges[1].steps",
    ),
    "fewer bytes": (at("edges", 1, bytes=256), "edges[1].bytes: found 256, expected 512"),
    "a lower cost": (at("edges", 1, cost=100), "edges[1].cost: found 100, expected 138"),
    "work left out": (fields(cost=166, time_ns=166), "cost: found 166, expected 2213"),
    "less memory": (fields(memory_bytes=700), "memory_bytes: found 700, expected 708"),
    "memory beyond the limit": (problem(memory_bytes=707), "memory_bytes: found 708, expected at most 707"),
    "greedy steps": (lambda plan: replace(plan, steps=greedy_plan().decisions.steps), "steps: found"),
    "second copies": (fields(dup_bytes=4), "dup_bytes"),
    "a rule of other operators": (entry("nodes", 3, rules=(0,)), "problem.nodes[3].rules"),
    "a later array's tiling": (entry("arrays", 1, like="dw"), "problem.arrays[1].like"),
    "no price for a transfer": (
        lambda plan: replace(
            plan, problem=replace(plan.problem, mesh=tuple(replace(a, costs=()) for a in plan.problem.mesh))
        ),
        "nodes[4]: found P, P of loss",
    ),
}


@pytest.mark.parametrize("name", LAYER_CHANGES)
def test_a_plan_of_a_layer_that_was_changed_is_refused(name: str) -> None:
    change, expected = LAYER_CHANGES[name]
    findings = check(change(layer_plan().decisions))
    assert any(expected in finding for finding in findings), findings


def test_a_certificate_that_claims_more_than_the_checker_finds_is_refused() -> None:
    plan = plan_tiling(replace(greedy_plan().decisions.problem, dup_bytes=0))
    assert PASS.rebound(plan, {}) == ([], plan.decisions.time_ns)
    claim = plan.decisions.time_ns + 1
    lied = replace(plan, certificate=replace(plan.certificate, lower_bound=float(claim)))
    findings, bound = PASS.rebound(lied, {})
    assert findings == [f"certificate: lower bound {claim} ns, the problem proves only {bound} ns"]


def agreed(problem: TilingProblem, seed: int) -> str:
    """Plan it; the planner runs the checker, and raises where that has findings. The optimum must be that of the
    checker's own search, where its tables are small enough and nothing is limited."""
    try:
        plan = plan_tiling(problem)
    except InfeasibleError:
        return "contradictory"
    assert check(plan.decisions) == []
    found = least_ns(problem)
    if found is None or problem.dup_bytes:
        return "checked"
    if plan.certificate.optimal:
        assert found == plan.decisions.time_ns, seed
    return "equal"


def test_planner_and_checker_count_the_same_on_random_problems() -> None:
    found = [agreed(published(seed, length=5), seed) for seed in range(1000, 1012)]
    found += [agreed(ruled(seed, length=4), seed) for seed in range(2000, 2006)]
    assert found.count("equal") >= 8


@pytest.mark.slow
def test_planner_and_checker_count_the_same_for_every_method() -> None:
    for seed in range(3000, 3030):
        problem = published(seed, length=9)
        for method in ("greedy", "sweep", "row", "column", "worst"):
            try:
                plan = plan_tiling(problem, options=TilingOptions(method=method))
            except InfeasibleError:
                continue
            assert check(plan.decisions) == [], (seed, method)
            if method == "greedy":
                assert check(decided(problem, plan.decisions.tilings, method="exact")) == []
    for seed in range(4000, 4020):
        agreed(ruled(seed, length=8), seed)
