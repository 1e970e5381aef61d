"""Ruled problems: the graph of rules, its best choice with a bound, and memory."""

from __future__ import annotations

from itertools import accumulate, product
from random import Random

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from tests.planner.passes.tiling.random_graphs import random_graph
from tests.planner.passes.tiling.ruled_programs import RuledProgram, random_ruled, transformer
from treadle.planner.errors import InfeasibleError, InputError
from treadle.planner.passes.tiling import ascent, dual
from treadle.planner.passes.tiling.exhaustive import enumerated
from treadle.planner.passes.tiling.frontier import Excess, explored
from treadle.planner.passes.tiling.graph import cost_of
from treadle.planner.passes.tiling.large import free_best, tables
from treadle.planner.passes.tiling.live_memory import live_memory, memory_at
from treadle.planner.passes.tiling.planning import plan_tiling
from treadle.planner.passes.tiling.problem import MeshAxis, TilingProblem
from treadle.planner.passes.tiling.ruled import array_labels, priced, ruled_graph
from treadle.planner.search.clock import never


def test_no_choice_of_a_random_graph_is_better() -> None:
    for seed in range(100):
        graph, _ = random_graph(seed)
        try:
            least = enumerated(graph)
        except InfeasibleError:
            continue
        if least is not None:
            found = free_best(graph, (0,) * len(graph.groups), never)
            assert (found.cost, found.bound) == (least.cost, least.cost), seed
            assert cost_of(graph, found.choice) == least.cost, seed


def test_random_ruled_problems_are_planned_at_the_least_cost() -> None:
    for seed in range(12):
        problem = random_ruled(seed, calls=3)
        least = enumerated(ruled_graph(problem).graph)
        assert least is not None
        plan = plan_tiling(problem)
        assert (plan.decisions.cost, plan.certificate.optimal) == (least.cost, True), seed


def test_costs_and_memory_of_choices_are_sums_over_the_graph() -> None:
    random = Random(1)
    for seed in range(10):
        problem = random_ruled(seed, mesh=(2, 2), calls=5)
        ruled = ruled_graph(problem)
        memory = live_memory(problem, ruled)
        for _ in range(5):
            choice = tuple(random.randrange(len(group.labels)) for group in ruled.graph.groups)
            labels = ruled.node_labels(choice)
            placed = ruled.tilings(choice), [label.reads for label in labels], [label.makes for label in labels]
            if (cost := cost_of(ruled.graph, choice)) is not None:
                assert priced(problem, *placed)[1] == cost
            changes = [0] * (memory.moments + 1)
            for each in memory.groups:
                changes[each.first] += int(each.bytes[choice[each.at]])
                changes[each.last + 1] -= int(each.bytes[choice[each.at]])
            for each in memory.edges:
                edge = ruled.graph.edges[each.at]
                changes[each.first] += int(each.bytes[choice[edge.one], choice[edge.other]])
                changes[each.last + 1] -= int(each.bytes[choice[edge.one], choice[edge.other]])
            assert memory_at(problem, *placed) == list(accumulate(changes[:-1]))


def test_a_choice_costs_the_bound_and_its_excess() -> None:
    """What the frontier rests on: nothing of a pass is lost, and no excess is negative."""
    for seed in range(20):
        graph, _ = random_graph(seed)
        own, edges = tables(graph)
        capped = [(one, other, np.minimum(table, 1000)) for one, other, table in edges]
        flat = dual.flat(own, capped)
        choice = np.zeros(len(own), dtype=np.int64)
        for forward in (True, False, True, False):
            bound = dual.plain(dual.passed)(flat, choice, forward)
        excess, random = Excess(flat), Random(seed)
        for _ in range(5):
            labels = [random.randrange(len(each)) for each in own]
            parts = [int(excess.own(at)[label]) for at, label in enumerate(labels)]
            for one, other, _ in edges:
                table = excess.between(one, other)
                assert table is not None
                parts.append(int(table[labels[one], labels[other]]))
            assert min(parts) >= 0
            assert bound + sum(parts) == dual.plain(dual.flat_cost)(flat, np.array(labels))


def test_states_of_the_frontier_find_the_best_behind_one_weak_pass() -> None:
    for seed in range(30):
        graph, _ = random_graph(seed)
        own, edges = tables(graph)
        flat = dual.flat(own, [(one, other, np.minimum(table, 1000)) for one, other, table in edges])
        bound = dual.plain(dual.passed)(flat, np.zeros(len(own), dtype=np.int64), False)
        found = explored(flat, 2000, never)
        least = (
            min(dual.plain(dual.flat_cost)(flat, np.array(labels)) for labels in product(*(range(len(o)) for o in own)))
            if np.prod([len(each) for each in own]) < 3000
            else bound + found.least
        )
        assert found.choice is not None
        assert bound + found.least == least == dual.plain(dual.flat_cost)(flat, found.choice), seed


@pytest.mark.slow
def test_compiled_loops_give_what_plain_ones_do(monkeypatch: pytest.MonkeyPatch) -> None:
    ruled = ruled_graph(transformer(2))
    first, _ = ascent.first_choice(*tables(ruled.graph))
    plain = free_best(ruled.graph, first, never)
    monkeypatch.setattr(dual, "SMALL", 0)
    assert free_best(ruled.graph, first, never) == plain


def test_layers_are_planned_at_the_proved_least_cost_and_the_same_twice() -> None:
    problem = transformer(3)
    plan = plan_tiling(problem)
    assert plan.certificate.optimal
    assert plan.decisions.method == "exact"
    assert msgspec.json.encode(plan_tiling(problem).decisions) == msgspec.json.encode(plan.decisions)


def test_gradients_have_the_tilings_of_their_weights() -> None:
    problem = transformer(2)
    tilings = dict(zip((array.id for array in problem.arrays), plan_tiling(problem).decisions.tilings, strict=True))
    assert all(tilings[array.id] == tilings[array.like] for array in problem.arrays if array.like)


def test_plans_within_a_memory_fit_and_are_not_below_their_bound() -> None:
    problem = transformer(1, mesh=(4,))
    free = plan_tiling(problem).decisions
    words = str(_refusal(replace(problem, memory_bytes=1000)))
    least = int(words.split(" bytes) suffice")[0].rsplit("(", 1)[1])
    assert least < free.memory_bytes
    plan = plan_tiling(replace(problem, memory_bytes=least))
    assert plan.decisions.memory_bytes == least
    assert free.cost <= plan.certificate.lower_bound <= plan.decisions.cost
    ample = replace(problem, memory_bytes=free.memory_bytes)
    assert plan_tiling(ample).decisions == replace(free, problem=ample)


def _refusal(problem: TilingProblem) -> InfeasibleError:
    with pytest.raises(InfeasibleError, match=r"no tilings fit into 1000 B .* at each worker; .* suffice") as refused:
        plan_tiling(problem)
    return refused.value


def test_small_problems_within_a_memory_against_enumeration() -> None:
    for seed in range(2):
        problem = random_ruled(seed, calls=2)
        ruled = ruled_graph(problem)
        choices = product(*(range(len(group.labels)) for group in ruled.graph.groups))
        known = []
        for choice in choices:
            if (cost := cost_of(ruled.graph, choice)) is not None:
                labels = ruled.node_labels(choice)
                placed = [label.reads for label in labels], [label.makes for label in labels]
                known.append((max(memory_at(problem, ruled.tilings(choice), *placed)), cost))
        lowest = min(peak for peak, _ in known)
        plan = plan_tiling(replace(problem, memory_bytes=lowest))
        least = min(cost for peak, cost in known if peak <= lowest)
        assert plan.decisions.memory_bytes == lowest
        assert plan.certificate.lower_bound <= least <= plan.decisions.cost, seed
        with pytest.raises(InfeasibleError, match=r"suffice"):
            plan_tiling(replace(problem, memory_bytes=lowest - 1))


def test_fixed_tilings_that_exclude_each_other_are_named() -> None:
    program = RuledProgram()
    weight = program.source(8, 8)
    gradient = program.source(8, 8, like=weight)
    problem = program.problem((2,), (gradient,))
    one, other = problem.arrays
    both = (replace(one, fixed=("S0",)), replace(other, fixed=("R",)))
    with pytest.raises(InfeasibleError, match="'source0' is fixed to S0 and 'source1' to R, but they must"):
        plan_tiling(replace(problem, arrays=both))
    with pytest.raises(InputError, match=r"array 'source0': S0 on a mesh of 3 does not divide the shape \(8, 8\)"):
        plan_tiling(replace(problem, arrays=(both[0], other), mesh=(replace(problem.mesh[0], size=3),)))


def test_partial_results_are_no_tilings_of_what_the_problem_returns() -> None:
    program = RuledProgram()
    inner = program.matmul(program.source(8, 8), program.source(8, 8))
    outer = program.matmul(inner, inner)
    labels = dict(zip(program.shapes, array_labels(program.problem((2,), (outer,))), strict=True))
    assert labels[inner] == (("S0",), ("S1",), ("R",), ("P",))
    assert labels[outer] == (("S0",), ("S1",), ("R",))


def test_rules_of_another_arity_are_refused() -> None:
    program = RuledProgram()
    program.call("odd", (program.source(8),), (8,), [(("S0", "S0"), ("S0",))])
    with pytest.raises(
        InputError, match=r"node 'odd1\.call': found a rule of 2 inputs and 1 outputs, expected 1 and 1"
    ):
        plan_tiling(program.problem((2,), ("odd1",)))


def test_array_programs_on_two_axes_have_rules() -> None:
    """x y with x cut by rows along one axis and y by columns along the other moves nothing."""
    arrays = [
        {"id": "x", "fixed": ["S0", "R"]},
        {"id": "y", "fixed": ["R", "S1"]},
        {"id": "z", "fixed": ["S0", "S1"]},
    ]
    nodes = [
        {"id": "a", "operator": "newarray", "function": "ones", "outputs": ["x"]},
        {"id": "b", "operator": "newarray", "function": "ones", "outputs": ["y"]},
        {
            "id": "c",
            "operator": "join_update",
            "function": "matmul",
            "inputs": ["x", "y"],
            "outputs": ["z"],
            "axes": [0, -1],
        },
    ]
    problem = msgspec.convert(
        {
            "kind": "tiling-problem",
            "version": 1,
            "name": "product",
            "model": "exact",
            "mesh": [{"name": "rows", "size": 2}, {"name": "columns", "size": 2}],
            "arrays": [{"shape": [8, 8], "dtype": "float32", "item_bytes": 4, **array} for array in arrays],
            "nodes": nodes,
            "outputs": ["z"],
        },
        TilingProblem,
    )
    plan = plan_tiling(problem)
    assert plan.decisions.cost == 0
    assert plan.decisions.nodes[2].reads == (("S0", "R"), ("R", "S1"))
    gathered = replace(problem, mesh=(*problem.mesh[:1], MeshAxis(name="columns", size=2, alltoall="gathered")))
    assert plan_tiling(gathered).decisions.cost == 0


def test_arrays_of_other_item_sizes_leave_a_plan_of_moved_bytes_proved() -> None:
    arrays = [
        {"id": "mask", "shape": [8, 8], "dtype": "bool", "item_bytes": 1, "fixed": ["S0", "R"]},
        {"id": "x", "shape": [8, 8], "dtype": "float32", "item_bytes": 4, "fixed": ["S1", "R"]},
        {"id": "y", "shape": [8, 8], "dtype": "float32", "item_bytes": 4},
    ]
    nodes = [
        {"id": "a", "operator": "newarray", "function": "ones", "outputs": ["mask"]},
        {"id": "b", "operator": "newarray", "function": "ones", "outputs": ["x"]},
        {"id": "c", "operator": "map", "function": "multiply", "inputs": ["mask", "x"], "outputs": ["y"]},
    ]
    mesh = [{"name": "rows", "size": 2}, {"name": "columns", "size": 2}]
    given = {"kind": "tiling-problem", "version": 1, "name": "masked", "model": "exact", "mesh": mesh}
    problem = msgspec.convert({**given, "arrays": arrays, "nodes": nodes, "outputs": ["y"]}, TilingProblem)
    plan = plan_tiling(problem)
    assert plan.certificate.optimal
    assert plan.certificate.lower_bound == plan.decisions.time_ns > 0
    assert {edge.array for edge in plan.decisions.edges if edge.bytes} == {"mask"}
