"""The front of states and the options that it chooses from."""

from __future__ import annotations

import random

from msgspec.structs import replace

from tests.planner.passes.compression.small_problems import FLAT, every_plan, random_problem
from treadle.planner.passes.compression.candidates import inter_allgather, named_options
from treadle.planner.passes.compression.decided import plain_groups, plain_option
from treadle.planner.passes.compression.evaluator import Evaluator
from treadle.planner.passes.compression.front import BOUNDARIES, boundaries, through_boundaries
from treadle.planner.passes.compression.palette import MOST, palette


def test_one_gradient_gets_its_best_option() -> None:
    for number in range(60):
        problem = random_problem(random.Random(number), 1)
        evaluator = Evaluator(problem)
        first = next(through_boundaries(problem, plain_groups(problem), FLAT, lambda: False))
        assert evaluator.time(first) == min(evaluator.time(groups) for groups in every_plan(1, FLAT))


def test_few_gradients_get_groups_near_the_best() -> None:
    exact = 0
    for number in range(60):
        problem = random_problem(random.Random(number), 4)
        evaluator = Evaluator(problem)
        found = min(
            evaluator.time(groups) for groups in through_boundaries(problem, plain_groups(problem), FLAT, lambda: False)
        )
        least = min(evaluator.time(groups) for groups in every_plan(4, FLAT))
        assert least <= found <= 1.3 * least
        exact += found == least
    assert exact >= 20


def test_groups_cover_the_gradients_within_the_limit_of_bytes() -> None:
    problem = replace(random_problem(random.Random(2), 100), group_bytes=300)
    for groups in through_boundaries(problem, plain_groups(problem), FLAT, lambda: False):
        assert [group.first for group in groups] == [0, *(group.last + 1 for group in groups[:-1])]
        assert groups[-1].last == 99
        for group in groups:
            inside = problem.gradients[group.first : group.last + 1]
            assert len(inside) == 1 or 4 * sum(gradient.elements for gradient in inside) <= 300


def test_a_stopped_front_has_no_plan() -> None:
    problem = random_problem(random.Random(2), 5)
    assert list(through_boundaries(problem, plain_groups(problem), FLAT, lambda: True)) == []


def test_boundaries_are_few_and_end_with_the_last_gradient() -> None:
    problem = random_problem(random.Random(3), 200)
    ends = boundaries(problem, plain_groups(problem)[::3])
    assert len(ends) <= BOUNDARIES + 1
    assert ends == sorted({*ends})
    assert ends[-1] == 199


def test_the_palette_has_the_options_of_both_papers_and_few_others() -> None:
    problem = random_problem(random.Random(4), 6, machines=2, devices=2)
    problem = replace(problem, compressors=problem.compressors[:1])
    found = palette(problem, Evaluator(problem))
    assert {(None, plain_option(problem)), ("tiny", inter_allgather(problem, "device"))} <= {*found}
    assert {*found} <= {*named_options(problem)}
    assert len(found) == len({*found}) <= MOST + 2
    assert found == palette(problem, Evaluator(problem))


def test_nothing_is_compressed_where_that_is_forbidden() -> None:
    problem = replace(random_problem(random.Random(4), 6), compressions=0)
    assert {name for name, _ in palette(problem, Evaluator(problem))} == {None}
