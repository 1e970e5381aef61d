"""Algorithm 4.1 against all choices, and its order."""

from __future__ import annotations

from random import Random

from tests.planner.passes.compression.instances import random_problem
from tests.planner.passes.compression.one_link import DEVICE, groups_of, letters_of, problem_of, random_case
from tests.planner.passes.compression.test_espresso import OFFLOAD
from treadle.planner.passes.compression.decided import plain_groups
from treadle.planner.passes.compression.espresso_device import (
    greedily,
    in_order,
    options_on,
    published_options,
)
from treadle.planner.passes.compression.evaluator import Evaluator


def test_equal_gradients_are_compressed_from_the_last_on() -> None:
    evaluator = Evaluator(problem_of(OFFLOAD))
    assert in_order(evaluator.problem, groups_of("nnnn")) == [3, 2, 1, 0]
    found = greedily(evaluator, groups_of("nnnn"), (DEVICE,))
    assert (letters_of(found.groups), found.ns) == ("gggg", 14)


def test_it_is_never_better_than_the_best_choice_and_mostly_as_good() -> None:
    random = Random(4)
    optimal = 0
    for _ in range(200):
        case = random_case(random, random.randint(3, 6))
        evaluator = Evaluator(problem_of(case))
        start = groups_of("n" * len(case.raw))
        found = greedily(evaluator, start, (DEVICE,))
        assert case.time(letters_of(found.groups)) == found.ns
        best = case.best("ng")
        assert best <= found.ns <= case.time("n" * len(case.raw))
        optimal += found.ns == best
    assert 100 < optimal < 200


def test_the_options_of_the_published_form_are_165_on_nodes_of_several_ranks() -> None:
    random = Random(0)
    problem = random_problem(random, 2)
    while problem.machines == 1 or problem.devices == 1:
        problem = random_problem(random, 2)
    assert len(published_options(problem)) == 165
    assert len(options_on(problem, "device")) >= 174


def test_every_option_counts_as_an_evaluation() -> None:
    """Besides, each decision holds its groups, which is one more."""
    case = random_case(Random(1), 5)
    evaluator = Evaluator(problem_of(case))
    options = published_options(evaluator.problem)
    start = plain_groups(evaluator.problem)
    greedily(evaluator, start, options, bubble_pruning=False)
    more = evaluator.evaluations - len(options) * 5
    assert 1 <= more <= 6
