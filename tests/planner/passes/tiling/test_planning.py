"""Plans of published problems: figures that follow from their parts, limits, and what is refused."""

from __future__ import annotations

import re
from threading import Event
from typing import Any

import pytest
from msgspec.structs import replace

from tests.planner.passes.tiling.published_programs import Program, failure
from tests.planner.passes.tiling.random_graphs import random_program
from tests.planner.passes.tiling.tiling_plans import by_hand
from treadle.planner.errors import InfeasibleError, InputError
from treadle.planner.passes.tiling.decided import decided
from treadle.planner.passes.tiling.exhaustive import enumerated
from treadle.planner.passes.tiling.graph import cost_of
from treadle.planner.passes.tiling.planning import TilingOptions, plan_tiling
from treadle.planner.passes.tiling.problem import MeshAxis, TilingProblem
from treadle.planner.passes.tiling.published import published_graph
from treadle.planner.passes.tiling.published_moves import PublishedMoves
from treadle.planner.search.clock import Clock


def test_decisions_are_those_worked_by_hand() -> None:
    wanted = by_hand()
    assert decided(wanted.problem, wanted.tilings, method="exact") == wanted


def test_edges_of_a_plan_cost_what_the_graph_says() -> None:
    for seed in range(12):
        problem = random_program(seed).problem(4, "seed" if seed % 2 else "exact", dup_bytes=200)
        made = published_graph(problem)
        for start in range(3):
            choice = tuple((start * place) % len(group.labels) for place, group in enumerate(made.graph.groups))
            if (cost := cost_of(made.graph, choice)) is not None:
                assert sum(edge.cost for edge in PublishedMoves(problem, made.tilings(choice)).edges()) == cost


def test_no_method_beats_the_exact_one_and_none_costs_more_than_the_worst() -> None:
    for seed in range(6):
        problem = random_program(seed).problem(4, "exact")
        costs = {
            method: plan_tiling(problem, options=TilingOptions(method=method)).decisions.cost  # type: ignore[arg-type]
            for method in ("exact", "sweep", "greedy", "row", "column", "worst")
        }
        assert costs["exact"] <= costs["sweep"] <= costs["greedy"] <= costs["worst"]
        assert costs["exact"] <= min(costs["row"], costs["column"])
        assert max(costs["row"], costs["column"]) <= costs["worst"]


def test_a_greedy_plan_has_its_steps_and_the_bound_of_the_exact_search() -> None:
    plan = plan_tiling(failure(8).problem(4, "exact"), options=TilingOptions(method="greedy"))
    assert [step.group for step in plan.decisions.steps] == ["C", "D", "A", "B", "A'", "B'", "E"]
    assert (plan.decisions.cost, plan.certificate.objective, plan.certificate.lower_bound) == (96, 24, 12)
    assert not plan.certificate.optimal


def test_the_exact_plan_is_proved_optimal() -> None:
    plan = plan_tiling(failure(8).problem(4, "exact"))
    assert (plan.decisions.method, plan.decisions.cost) == ("exact", 48)
    assert plan.provenance.method == "elimination, array by array"
    assert plan.certificate.argument.startswith("all tilings were compared, array by array")
    assert plan.certificate.optimal


def test_equal_problems_give_equal_plans() -> None:
    problem = random_program(5).problem(6, "exact", dup_bytes=500)
    assert plan_tiling(problem) == plan_tiling(problem)


def wide() -> Program:
    """Two matrices of 256 bytes and their sum."""
    program = Program()
    a, b = program.new(8, 8, name="A", item_bytes=4), program.new(8, 8, name="B", item_bytes=4)
    program.map(a, b, name="C", item_bytes=4)
    return program


def test_too_little_memory_names_the_least_that_suffices() -> None:
    with pytest.raises(
        InfeasibleError, match=r"fit into 191 B \(191 bytes\) at each worker; the least that suffices is 192 B"
    ):
        plan_tiling(wide().problem(4, memory_bytes=191))
    assert plan_tiling(wide().problem(4, memory_bytes=192)).decisions.memory_bytes == 192


def test_memory_changes_the_choice() -> None:
    """3 workers hold at most 3 of 7 rows, or 2 of 5 columns, as blocks: those need less memory, rows move less."""
    program = Program()
    a = program.new(7, 5, name="A")
    program.fold(a, 1, name="s")
    problem = program.problem(3, "exact", outputs=("s",))
    free = plan_tiling(problem).decisions
    assert (free.tilings[0], free.cost, free.memory_bytes) == (("S0",), 0, 18)
    tight = plan_tiling(program.problem(3, "exact", outputs=("s",), memory_bytes=17)).decisions
    assert tight.tilings[0] in (("S1",), ("B",))
    assert (tight.memory_bytes, tight.cost) == (17, 14)


def test_fixed_second_copies_above_their_budget_are_refused() -> None:
    program = Program()
    program.fold(program.new(4, 4, name="A", fixed=("D0",)), 0)
    with pytest.raises(InfeasibleError, match="16 bytes of second copies, of 15"):
        plan_tiling(program.problem(2, dup_bytes=15))
    assert plan_tiling(program.problem(2, dup_bytes=16)).decisions.dup_bytes == 16


def test_an_interrupted_search_ends_in_the_best_plan_so_far() -> None:
    stop = Event()
    stop.set()
    plan = plan_tiling(random_program(8).problem(4, "exact"), clock=Clock(stop=stop))
    assert plan.provenance.interrupted


UNSOUND: dict[str, tuple[Any, str]] = {
    "axes": (lambda p: p.add("join_update", ("A", "B"), (4, 6), axes=(0,)), "1 axes, expected 2, one for each input"),
    "axis": (lambda p: p.add("join_update", ("A", "B"), (4, 6), axes=(0, 2)), "axis 2 of shape"),
    "inputs": (lambda p: p.add("join_update", ("A",), (4, 6), axes=(0, -1)), "2 axes, expected 1"),
    "broadcast": (lambda p: p.map("A", "B"), "an input of shape (6, 4), expected one that broadcasts to (4, 6)"),
    "fold": (lambda p: p.add("fold", ("A",), (4,), axes=(0,)), "a result of shape (4,), expected (6,) or (1, 6)"),
    "scan": (lambda p: p.add("scan", ("A",), (4, 6), axes=(2,)), "axes (2,) of an array of rank 2"),
    "region": (lambda p: p.add("slice", ("A",), (4, 6)), "no region of [start, stop, step] for each axis"),
    "outside": (lambda p: p.slice("A", (0, 5, 1), (0, 6, 1)), "a result of shape (5, 6), expected (4, 6)"),
    "beyond": (lambda p: p.slice("A", (0, 5, 3), (0, 6, 1)), "found a region that ends at (5, 6)"),
    "product": (lambda p: p.dot("A", "A", function="matmul"), "a matrix product of shapes [(4, 6), (4, 6)]"),
    "folded": (lambda p: p.add("fold", ("A",), (6,), axes=(0, -2)), "axes (0, -2) of an array of rank 2"),
    "swap": (lambda p: p.add("swapaxis", ("A",), (4, 6), axes=(0, 1)), "a result of shape (4, 6), expected (6, 4)"),
    "mask": (lambda p: p.add("filter", ("A", p.new(6)), (4, 6)), "a mask of shape (6,), expected (4,)"),
    "rank": (lambda p: p.new(*[1] * 11), "11 axes, expected at most 10"),
    "fixed": (lambda p: p.new(4, fixed=("R",)), "fixed R, expected one of S0"),
    "elements": (lambda p: p.new(2**30, 2**30), "expected a product below"),
    "twice": (lambda p: p.new(4, name="A"), "found A, expected an array of the problem, made once"),
}


OF_ONE_AXIS = ("rank", "fixed", "elements")
"""What a graph of rules can have."""


@pytest.mark.parametrize("name", UNSOUND)
def test_what_the_model_does_not_cover_is_refused(name: str) -> None:
    program = Program()
    program.new(4, 6, name="A"), program.new(6, 4, name="B")
    add, message = UNSOUND[name]
    add(program)
    problem = program.problem(2)
    with pytest.raises(InputError, match=re.escape(message)):
        plan_tiling(problem)
    if name not in OF_ONE_AXIS:
        with pytest.raises(InputError, match=re.escape(message)):
            plan_tiling(on_two_axes(problem))


def on_two_axes(problem: TilingProblem) -> TilingProblem:
    return replace(problem, model="exact", mesh=(MeshAxis(name="x", size=2), MeshAxis(name="y", size=2)))


def test_partial_results_are_not_fixed_where_none_may_be_left() -> None:
    problem = wide().problem(2)
    arrays = (*problem.arrays[:-1], replace(problem.arrays[-1], fixed=("P", "R")))
    with pytest.raises(InputError, match="P,R of an array that may not be left as partial results"):
        plan_tiling(replace(on_two_axes(problem), arrays=arrays))


def test_names_that_do_not_fit_together_are_refused() -> None:
    problem = wide().problem(2)
    for change, message in (
        ({"arrays": problem.arrays * 2}, "A twice"),
        ({"mesh": (MeshAxis(name="x", size=2**40),)}, f"found {2**40}, expected at most 65536 workers"),
        ({"mesh": (MeshAxis(name="x", size=2),) * 2}, "found x twice"),
        ({"outputs": ("Z",)}, "found Z, expected an array that a node makes"),
        ({"nodes": problem.nodes[:2]}, "found C, expected an array that a node makes"),
        ({"arrays": (replace(problem.arrays[0], like="C"), *problem.arrays[1:])}, "found C, expected an earlier array"),
    ):
        with pytest.raises(InputError, match=message):
            plan_tiling(replace(problem, **change))


def test_the_seed_model_is_for_one_axis_only() -> None:
    program = Program()
    program.new(4, 4)
    problem = program.problem(2)
    with pytest.raises(InputError, match="found model seed, expected exact or time"):
        plan_tiling(replace(on_two_axes(problem), model="seed"))


def test_plans_of_random_programs_cost_what_enumeration_finds() -> None:
    """With budgets that bind: less than all second copies, and less memory than the best plan without a limit takes."""
    for seed in range(8):
        program, model = random_program(seed, 4), "seed" if seed % 2 else "exact"
        free = plan_tiling(program.problem(3, model, dup_bytes=70)).decisions
        for memory in (None, free.memory_bytes, free.memory_bytes - 1):
            problem = program.problem(3, model, dup_bytes=70, memory_bytes=memory)
            made = published_graph(problem)
            best = enumerated(made.graph, made.capacities)
            if best is None:
                with pytest.raises(InfeasibleError, match="the least that suffices"):
                    plan_tiling(problem)
                continue
            plan = plan_tiling(problem)
            assert plan.certificate.optimal
            assert plan.decisions.cost == best.cost
            assert plan.decisions.dup_bytes <= 70
