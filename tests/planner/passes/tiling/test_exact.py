"""The exact method against enumeration, and the construction that proves the problem hard."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from random import Random

import pytest

from tests.planner.passes.tiling.published_programs import Program
from tests.planner.passes.tiling.random_graphs import random_graph, random_program
from treadle.planner.errors import InfeasibleError
from treadle.planner.passes.tiling.capacity import fits
from treadle.planner.passes.tiling.contract import contract
from treadle.planner.passes.tiling.exact import TilingLimits, dearest, exactly, least_capacity
from treadle.planner.passes.tiling.exhaustive import enumerated
from treadle.planner.passes.tiling.graph import TilingGraph, cost_of
from treadle.planner.passes.tiling.published import published_graph
from treadle.planner.passes.tiling.sweeps import swept

Clause = tuple[int, int, int]


def agree(seed: int, backend: str = "cp_sat") -> None:
    """The search of graph `seed` finds what enumeration finds."""
    graph, capacities = random_graph(seed)
    try:
        best = enumerated(graph, capacities)
    except InfeasibleError:
        with pytest.raises(InfeasibleError):
            exactly(graph, capacities)
        return
    found = exactly(graph, capacities, limits=TilingLimits(backend=backend))  # type: ignore[arg-type]
    if best is None:
        assert (found.choice, found.infeasible) == (None, True)
        return
    assert found.choice is not None
    assert fits(capacities, found.choice)
    assert (cost_of(graph, found.choice), found.bound) == (best.cost, best.cost)


def test_the_exact_method_agrees_with_enumeration() -> None:
    for seed in range(40):
        agree(seed)


@pytest.mark.slow
def test_the_exact_method_agrees_with_enumeration_on_500_graphs() -> None:
    for seed in range(500):
        agree(seed)


def test_the_second_solver_agrees_too() -> None:
    for seed in range(4):
        agree(seed, "highs")


def by_hand(graph: TilingGraph) -> int | None:
    """The least cost, by Python loops over all labels of all groups."""
    costs = (cost_of(graph, choice) for choice in product(*(range(len(group.labels)) for group in graph.groups)))
    return min((cost for cost in costs if cost is not None), default=None)


def test_enumeration_agrees_with_plain_loops() -> None:
    for seed in (1, 2, 4, 5, 7, 8, 10, 11):
        graph, _ = random_graph(seed)
        try:
            best = enumerated(graph)
        except InfeasibleError:
            best = None
        assert (best and best.cost) == by_hand(graph)


def test_sweeps_end_where_no_single_group_gains() -> None:
    for seed in range(40):
        graph, capacities = random_graph(3 * seed + 1)
        try:
            small = contract(graph, capacities)
        except InfeasibleError:
            continue
        start = (0,) * len(small.graph.groups)
        found = swept(small.graph, start)
        cost = cost_of(small.graph, found)
        assert cost is None or cost <= (cost_of(small.graph, start) or cost)
        for place, group in enumerate(small.graph.groups):
            for label in range(len(group.labels)):
                other = cost_of(small.graph, (*found[:place], label, *found[place + 1 :]))
                assert other is None or cost is None or other >= cost


def test_the_dearest_tilings_cost_most() -> None:
    made = published_graph(random_program(3, 5).problem(4))
    found = exactly(dearest(made.graph)).choice
    assert found is not None
    labels = [range(len(group.labels)) for group in made.graph.groups]
    costs = (cost_of(made.graph, choice) for choice in product(*labels))
    assert cost_of(made.graph, found) == max(cost for cost in costs if cost is not None)


def test_the_least_memory_is_the_least_of_all_choices() -> None:
    for seed in range(0, 30, 3):
        graph, capacities = random_graph(seed)
        try:
            small = contract(graph)
        except InfeasibleError:
            continue
        choices = product(*(range(len(group.labels)) for group in small.graph.groups))
        valid = (small.expanded(choice) for choice in choices if cost_of(small.graph, choice) is not None)
        uses = [capacities[0].used(choice) for choice in valid if cost_of(graph, choice) is not None]
        assert least_capacity(graph, capacities, (), TilingLimits()) == min(uses, default=None)


def formula(clauses: list[Clause], variables: int) -> Program:
    """Six maps for each clause: arrays of one element are variables, cut by rows where true; negation is swapaxis."""
    program = Program()
    plain = [program.new(1, 1, name=f"x{number}") for number in range(1, variables + 1)]
    negated = [program.transposed(name) for name in plain]
    for clause in clauses:
        literals = [plain[number - 1] if number > 0 else negated[-number - 1] for number in clause]
        opposite = [negated[number - 1] if number > 0 else plain[-number - 1] for number in clause]
        for one, other in ((0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)):
            program.map(opposite[one], literals[other])
    return program


def rows_and_columns(program: Program) -> TilingGraph:
    """The graph of the construction, which has no blocks."""
    problem = program.problem(2)
    graph = published_graph(problem).graph
    groups = tuple(replace(group, labels=group.labels[:2], own=group.own[:2]) for group in graph.groups)
    return TilingGraph(groups, tuple(replace(edge, costs=edge.costs[:2, :2]) for edge in graph.edges))


def satisfiable(clauses: list[Clause], variables: int) -> bool:
    """Whether some assignment gives no clause three equal literals."""
    for values in product((False, True), repeat=variables):
        if all(len({values[abs(number) - 1] == (number > 0) for number in clause}) == 2 for clause in clauses):
            return True
    return False


def test_a_clause_costs_2_if_its_literals_differ_and_6_if_not() -> None:
    graph = rows_and_columns(formula([(1, 2, 3)], 3))
    sources = [place for place, group in enumerate(graph.groups) if group.name.startswith("x")]
    least: dict[tuple[int, ...], int] = {}
    small = contract(graph)
    for choice in product(range(2), repeat=len(small.graph.groups)):
        whole = small.expanded(choice)
        values = tuple(whole[place] for place in sources)
        least[values] = min(least.get(values, 99), cost_of(graph, whole) or 0)
    assert least == {values: 6 if len(set(values)) == 1 else 2 for values in product(range(2), repeat=3)}


def test_an_unsatisfiable_formula_costs_more_than_2_for_each_clause() -> None:
    clauses = [(1, 2, 3), (-1, 2, 3), (1, -2, 3), (1, 2, -3)]
    assert not satisfiable(clauses, 3)
    assert exactly(rows_and_columns(formula(clauses, 3))).bound == 12


@pytest.mark.parametrize("count", [8, pytest.param(200, marks=pytest.mark.slow)])
def test_tilings_are_cheap_if_and_only_if_the_formula_is_satisfiable(count: int) -> None:
    kinds = set()
    for seed in range(count):
        random = Random(seed)
        clauses = [
            tuple(number * random.choice((-1, 1)) for number in random.sample((1, 2, 3, 4), 3))
            for _ in range(random.randint(4, 12))
        ]
        cost = exactly(rows_and_columns(formula(clauses, 4))).bound  # type: ignore[arg-type]
        kinds.add(satisfiable(clauses, 4))  # type: ignore[arg-type]
        assert (cost <= 2 * len(clauses)) == satisfiable(clauses, 4)  # type: ignore[arg-type]
    assert kinds == {False, True}
