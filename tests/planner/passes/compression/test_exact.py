"""Branch and bound over groups and options against enumeration, and the lower bounds against both."""

from __future__ import annotations

import random

import pytest

from tests.planner.passes.compression.small_problems import FLAT, every_plan, random_problem
from treadle.planner.passes.compression.candidates import Named, PricedOption
from treadle.planner.passes.compression.decided import plain_groups
from treadle.planner.passes.compression.evaluator import Evaluator
from treadle.planner.passes.compression.exact import ExactGroups, exact
from treadle.planner.passes.compression.payload import works
from treadle.planner.passes.compression.problem import CompressionProblem
from treadle.planner.passes.compression.timeline_of import time_ns


def solved(problem: CompressionProblem, options: tuple[Named, ...], node_limit: int = 10**6) -> ExactGroups:
    def choices(first: int, last: int) -> list[PricedOption]:
        elements = sum(gradient.elements for gradient in problem.gradients[first : last + 1])
        return [
            PricedOption(name, steps, works(problem, name, steps, elements, last - first + 1))
            for name, steps in options
        ]

    return exact(problem, Evaluator(problem), choices, plain_groups(problem), node_limit=node_limit)


def agree(number: int, options: tuple[Named, ...], most: int) -> None:
    rng = random.Random(number)
    problem = random_problem(rng, rng.randint(1, most))
    evaluator = Evaluator(problem)
    least = min(evaluator.time(groups) for groups in every_plan(len(problem.gradients), options))
    found = solved(problem, options)
    assert found.complete
    assert found.ns == least == time_ns(problem, found.groups)


def test_it_agrees_with_enumeration() -> None:
    for number in range(700):
        agree(number, FLAT[:2], 4)
    for number in range(700, 960):
        agree(number, FLAT, 3)
    for number in range(960, 1000):
        agree(number, FLAT[:2], 5)


@pytest.mark.slow
def test_it_agrees_with_enumeration_of_more_options() -> None:
    for number in range(1000):
        agree(number, FLAT, 5)


def test_a_limit_of_nodes_leaves_it_unproved() -> None:
    problem = random_problem(random.Random(1), 5)
    found = solved(problem, FLAT, node_limit=3)
    assert not found.complete
    assert found.nodes == 3
    assert found.ns <= time_ns(problem, plain_groups(problem))
