"""Espresso in the published form and repaired, on cases whose every choice is known."""

from __future__ import annotations

from random import Random

import pytest

from tests.oracles.exact_compression import OneLink
from tests.planner.passes.compression.instances import random_problem
from tests.planner.passes.compression.one_link import groups_of, letters_of, problem_of
from treadle.planner.passes.compression.baselines import baselines
from treadle.planner.passes.compression.espresso import espresso
from treadle.planner.passes.compression.evaluator import Evaluator
from treadle.planner.passes.compression.timeline_of import time_ns

THREE = OneLink([2, 2, 2], [3, 3, 6], [1, 1, 2], device=1, host=2)
BUBBLE = OneLink([2, 6], [3, 4], [1, 1], device=1, host=9)
OFFLOAD = OneLink([2] * 4, [8] * 4, [2] * 4, device=1, host=2)
MIDDLE = OneLink([1, 1, 4], [9] * 3, [3] * 3, device=1, host=2)
KNOWN = (
    (THREE, {"nnn": 14, "nng": 10, "ggg": 11, "ccc": 10, "ncg": 9, "ccg": 9}),
    (BUBBLE, {"nn": 12, "ng": 10, "gn": 13, "gg": 11}),
    (OFFLOAD, {"nnnn": 34, "nnng": 28, "nngg": 22, "nggg": 16, "gggg": 14, "ccgg": 12, "cccg": 12, "cccc": 12}),
    (MIDDLE, {"ggg": 12, "cgg": 12, "gcg": 11, "ggc": 13, "ccg": 12, "gcc": 12, "cgc": 12, "ccc": 12}),
)


@pytest.mark.parametrize(("case", "times"), KNOWN, ids=["three", "bubble", "offload", "middle"])
def test_known_times(case: OneLink, times: dict[str, int]) -> None:
    problem = problem_of(case)
    evaluator = Evaluator(problem)
    for choice in case.choices("ngc"):
        ns = case.time(choice)
        assert evaluator.time(groups_of(choice)) == time_ns(problem, groups_of(choice)) == ns
        assert times.get(choice, ns) == ns


def test_the_published_form_leaves_gradients_to_the_device_that_the_host_would_compress_in_time() -> None:
    assert THREE.best("ngc") == 9
    published = espresso(Evaluator(problem_of(THREE)), as_published=True)
    assert (letters_of(published.groups), published.ns, published.choices) == ("nng", 10, 2)
    repaired = espresso(Evaluator(problem_of(THREE)))
    assert (letters_of(repaired.groups), repaired.ns) == ("ncg", 9)


def test_what_is_sent_before_a_bubble_stays_uncompressed() -> None:
    result = espresso(Evaluator(problem_of(BUBBLE)), as_published=True)
    assert (letters_of(result.groups), result.ns, result.before_bubbles) == ("ng", 10, 1)
    unpruned = espresso(Evaluator(problem_of(BUBBLE)), as_published=True, bubble_pruning=False)
    assert (unpruned.groups, unpruned.before_bubbles) == (result.groups, 0)
    assert unpruned.evaluations > result.evaluations


@pytest.mark.parametrize("seed", range(5))
def test_no_baseline_is_better_and_every_option_is_one_of_the_problem(seed: int) -> None:
    """On one and two levels, with one to three compressors."""
    random = Random(seed)
    problem = random_problem(random, random.randint(2, 5))
    evaluator = Evaluator(problem)
    result = espresso(evaluator)
    assert time_ns(problem, result.groups) == result.ns
    for name in problem.names:
        for title, groups in baselines(evaluator, name).items():
            assert result.ns <= evaluator.time(groups), title
    published = espresso(evaluator, as_published=True)
    assert {group.compressor for group in published.groups} <= {None, problem.names[0]}
    assert time_ns(problem, published.groups) == published.ns


def test_without_time_nothing_is_compressed() -> None:
    result = espresso(Evaluator(problem_of(THREE)), expired=lambda: True)
    assert letters_of(result.groups) == "nnn"
    assert result.ns == 14
