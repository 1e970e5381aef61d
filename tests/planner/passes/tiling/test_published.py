"""The published graph and its greedy search, on the programs of Spartan whose figures are printed or follow from it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.planner.passes.tiling.published_programs import Program, failure
from treadle.planner.errors import InfeasibleError, InputError
from treadle.planner.passes.tiling.contract import contract
from treadle.planner.passes.tiling.exhaustive import enumerated
from treadle.planner.passes.tiling.graph import cost_of
from treadle.planner.passes.tiling.greedy import greedy
from treadle.planner.passes.tiling.planning import plan_tiling
from treadle.planner.passes.tiling.problem import TilingProblem
from treadle.planner.passes.tiling.published import PublishedGraph, published_graph
from treadle.planner.passes.tiling.published_costs import PublishedCosts
from treadle.planner.passes.tiling.sweeps import swept
from treadle.planner.passes.tiling.tile_maps import TileMaps, missing, tiles


def figures(problem: TilingProblem) -> tuple[int | None, int | None, int, int]:
    """Cost by the greedy search, after sweeps, the least, and how many choices have that."""
    made = published_graph(problem)
    found, best = greedy(made.graph, made.second).choice, enumerated(made.graph, made.capacities)
    assert best is not None
    small = contract(made.graph, made.capacities)
    after = small.expanded(swept(small.graph, small.contracted(found), small.capacities))
    return cost_of(made.graph, found), cost_of(made.graph, after), best.cost, best.optimal


def two_tilings(problem: TilingProblem) -> PublishedGraph:
    """The graph without blocks, as the figures of the thesis are drawn."""
    made = published_graph(problem)
    groups = [
        replace(group, labels=group.labels[:2], own=group.own[:2]) if "B" in group.labels else group
        for group in made.graph.groups
    ]
    sizes = [len(group.labels) for group in groups]
    edges = [replace(edge, costs=edge.costs[: sizes[edge.one], : sizes[edge.other]]) for edge in made.graph.edges]
    return PublishedGraph(type(made.graph)(tuple(groups), tuple(edges)), made.places, (), ())


@pytest.mark.parametrize(
    ("sizes", "each", "together", "exact"),
    [((8, 4, 2), 32, 64, (24, 48)), ((4, 8, 2), 64, 32, None), ((4, 4, 2), 32, 32, None)],
    ids=str,
)
def test_both_variants_of_a_product_move_what_the_formulas_say(
    sizes: tuple[int, int, int], each: int, together: int, exact: tuple[int, int] | None
) -> None:
    n, k, m = sizes
    moved = {}
    for variant in "ab":
        program = Program()
        x, y = program.new(n, k), program.new(k, m)
        program.dot(x, y, variant)
        node = program.nodes[-1]
        costs = PublishedCosts(TileMaps(program.problem(4)))
        reads = [costs.join_read(node, place, f"S{max(axis, 0)}") for place, axis in enumerate(node.axes)]
        update = costs.update(node, "S0")
        moved[variant] = (reads, update)
    (_, y_read), a_update = moved["a"]
    b_reads, b_update = moved["b"]
    assert (y_read.seed, b_update.seed) == (each, together)
    assert [read.seed for read in b_reads] == [0, 0]
    assert a_update.exact == 0
    if exact:
        assert (y_read.exact, b_update.exact) == exact
        assert [read.exact for read in b_reads] == [0, 0]


def test_the_greedy_search_fails_where_the_thesis_shows_it() -> None:
    made = two_tilings(failure().problem(4))
    found = greedy(made.graph)
    labels = dict(zip(names(made), (group.labels for group in made.graph.groups), strict=True))
    trace = [(step.group, step.costs, labels[step.group][step.choice]) for step in found.steps]
    n = 100
    assert trace == [
        ("C", (0, 0), "S0"),
        ("D", (0, 0), "S0"),
        ("A", (n, n), "S0"),
        ("B", (n, n), "S0"),
        ("A'", (None, n), "S1"),
        ("B'", (None, n), "S1"),
        ("E", (0, 2 * n), "S0"),
    ]
    best = enumerated(made.graph)
    assert best is not None
    assert (cost_of(made.graph, found.choice), best.cost, best.optimal) == (2 * n, n, 4)
    small = contract(made.graph)
    after = small.expanded(swept(small.graph, small.contracted(found.choice)))
    assert cost_of(made.graph, after) == n
    changed = [name for name, one, two in zip(names(made), found.choice, after, strict=True) if one != two]
    assert changed == ["D"]


def names(made: PublishedGraph) -> list[str]:
    return [group.name for group in made.graph.groups]


def test_blocks_do_not_save_the_greedy_search_from_its_failure() -> None:
    assert figures(failure().problem(4))[:3] == (200, 100, 0), "a block's mirror image is a block, by the estimate"
    assert figures(failure(8).problem(4, "exact"))[:3] == (96, 48, 48), "two of four blocks are at other workers"


@pytest.mark.parametrize(("observed", "cost"), [(None, 500), (100, 200)], ids=["all", "observed"])
def test_a_sum_less_a_product_has_four_best_choices(observed: int | None, cost: int) -> None:
    program = Program()
    x, y = program.new(10, 10), program.new(10, 10)
    added = program.map(x, y)
    product = program.dot(x, y, "b", observed_update=observed)
    program.map(added, product)
    made = two_tilings(program.problem(4))
    best = enumerated(made.graph)
    assert best is not None
    assert cost_of(made.graph, greedy(made.graph).choice) == cost == best.cost
    assert best.optimal == 4


@pytest.mark.parametrize(("iterations", "cost", "copy"), [(1, 100, False), (2, 100, True), (3, 100, True)])
def test_alternating_reads_are_worth_a_second_copy(iterations: int, cost: int, copy: bool) -> None:
    program = alternating(iterations)
    assert figures(program.problem(4))[:3] == (100 * iterations,) * 3
    assert figures(program.problem(4, dup_bytes=99))[0] == 100 * iterations
    rich = program.problem(4, dup_bytes=100)
    assert figures(rich)[:3] == (cost, cost, cost)
    made = published_graph(rich)
    assert made.tilings(greedy(made.graph, made.second).choice)[0] == (("D0",) if copy else ("S0",))


def alternating(iterations: int) -> Program:
    """An array of 100 elements read by rows and by columns in each iteration, as ALS does."""
    program = Program()
    a = program.new(10, 10, name="A")
    for _ in range(iterations):
        program.fold(a, 1)
        program.fold(a, 0)
    return program


def test_contradictory_views_are_settled_by_propagation() -> None:
    program = Program()
    a = program.new(2, 5, name="A")
    one, two = program.transposed(a, name="V1"), program.transposed(a, name="V2")
    for view, axis in ((one, 1), (one, 1), (two, 0), (two, 0)):
        program.fold(view, axis)
    made = two_tilings(program.problem(2))
    found = greedy(made.graph).choice
    labels = {group.name: group.labels[label] for group, label in zip(made.graph.groups, found, strict=True)}
    assert (labels["V1"], labels["A"], labels["V2"]) == ("S0", "S1", "S0")
    assert figures(program.problem(2))[:3] == (20, 20, 20)


@pytest.mark.parametrize(
    ("shape", "workers", "before", "after", "moved"),
    [((4, 6), 2, "S0", "S1", 12), ((8, 8), 4, "S0", "S1", 48), ((8, 8), 4, "S0", "B", 32), ((5, 7), 4, "S1", "S1", 0)],
    ids=str,
)
def test_retiling_moves_what_workers_lack(
    shape: tuple[int, ...], workers: int, before: str, after: str, moved: int
) -> None:
    assert missing(tiles(shape, after, workers), (tiles(shape, before, workers),)) == moved


@pytest.mark.parametrize(
    ("shape", "workers", "axis", "label", "moved"),
    [
        ((4, 6), 2, 0, "S0", 6),
        ((4, 6), 2, 1, "S0", 0),
        ((4, 6), 2, 0, "S1", 0),
        ((4, 6), 2, 1, "S1", 4),
        ((8, 4), 4, 0, "S0", 12),
        ((8, 4), 4, 0, "S1", 0),
    ],
    ids=str,
)
def test_folds_move_their_partial_results(
    shape: tuple[int, int], workers: int, axis: int, label: str, moved: int
) -> None:
    program = Program()
    program.fold(program.new(*shape), axis)
    costs = PublishedCosts(TileMaps(program.problem(workers)))
    assert costs.fold(program.nodes[-1], label, "S0", "exact").moved.exact == moved


def test_every_element_has_one_place_whatever_the_number_of_workers() -> None:
    for workers in (1, 3, 4, 5, 12):
        for label in ("S0", "S1", "S2", "B"):
            counts = np.zeros((5, 7, 2), dtype=int)
            for box in tiles((5, 7, 2), label, workers):
                counts[tuple(slice(*row) for row in box)] += 1
            assert (counts == 1).all()


def test_a_slice_is_where_its_source_is() -> None:
    program = Program()
    a = program.new(8, 3)
    view = program.slice(a, (1, 8, 3), (0, 2, 1))
    maps = TileMaps(program.problem(4))
    assert maps.first(view, "S0")[:, 0].tolist() == [[0, 1], [1, 1], [1, 2], [2, 3]]
    assert maps.first(view, "S1")[:, 1].tolist() == [[0, 1], [1, 2], [2, 2], [2, 2]]


def test_fixed_tilings_that_contradict_each_other_are_named() -> None:
    program = Program()
    a = program.new(4, 4, name="A", fixed=("S0",))
    program.transposed(program.transposed(a), name="W", fixed=("S1",))
    with pytest.raises(InfeasibleError, match="S0 of A excludes S1 of W"):
        greedy(published_graph(program.problem(2)).graph)
    with pytest.raises(InfeasibleError, match="S0 of A excludes S1 of W"):
        contract(published_graph(program.problem(2)).graph)


def test_fixed_tilings_that_an_array_cannot_have_are_refused() -> None:
    program = Program()
    program.new(4, name="A", fixed=("S1",))
    with pytest.raises(InputError, match="A: found fixed S1, expected one of S0"):
        published_graph(program.problem(2))


def test_views_are_offered_only_tilings_that_have_a_name_at_their_source() -> None:
    """Blocks cut axes 0 and 1; after axes 0 and 2 are swapped they would cut 1 and 2."""
    program = Program()
    a = program.new(4, 4, 2)
    program.add("swapaxis", (a,), (2, 4, 4), name="V", axes=(0, 2))
    made = published_graph(program.problem(4, dup_bytes=99))
    assert made.graph.groups[-1].labels == ("S0", "S1", "S2")
    assert plan_tiling(program.problem(4, dup_bytes=99)).decisions.cost == 0
