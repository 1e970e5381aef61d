"""Algorithm 4.2: its choices are counted, its limit is known, and its repairs find what it misses."""

from __future__ import annotations

from math import prod
from random import Random

import pytest

from tests.planner.passes.compression.one_link import groups_of, letters_of, problem_of, random_case
from tests.planner.passes.compression.test_espresso import MIDDLE, OFFLOAD
from treadle.planner.passes.compression import espresso_host
from treadle.planner.passes.compression.espresso_host import alike, any_subset, movable, offload
from treadle.planner.passes.compression.evaluator import Evaluator


def test_the_first_of_equal_gradients_move_to_the_host() -> None:
    found = offload(Evaluator(problem_of(OFFLOAD)), groups_of("gggg"))
    assert (letters_of(found.groups), found.ns, found.tried, found.whole) == ("ccgg", 12, 5, True)
    assert OFFLOAD.best("ngc") == 12


def test_a_middle_gradient_may_be_the_better_one_to_move() -> None:
    """Lemma 4.1 of the paper does not hold."""
    evaluator = Evaluator(problem_of(MIDDLE))
    found = offload(evaluator, groups_of("ggg"))
    assert (letters_of(found.groups), found.ns, found.tried) == ("ggg", 12, 4)
    repaired = any_subset(evaluator, groups_of("ggg"), found.groups)
    assert letters_of(repaired) == "gcg"
    assert evaluator.time(repaired) == 11 == MIDDLE.best("ngc")


def test_all_prefixes_are_tried_and_no_subset_is_better_than_the_best_of_all() -> None:
    random = Random(2)
    for number in range(120):
        case = random_case(random, random.randint(2, 5), equal=number % 2 == 0)
        choice = "".join(random.choice("gggn") for _ in case.raw)
        groups = groups_of(choice)
        evaluator = Evaluator(problem_of(case))
        sets = alike(evaluator, groups, movable(evaluator, groups))
        found = offload(evaluator, groups)
        assert found.tried == prod(len(places) + 1 for places in sets)
        subsets = [other for other in case.choices("ngc") if other.replace("c", "g") == choice]
        best = min(map(case.time, subsets))
        assert best <= found.ns <= case.time(choice)
        assert evaluator.time(any_subset(evaluator, groups, found.groups)) == best


def test_of_too_many_choices_one_set_after_the_other_is_tried() -> None:
    evaluator = Evaluator(problem_of(OFFLOAD))
    found = offload(evaluator, groups_of("gggg"), most=4)
    assert (found.ns, found.whole) == (12, False)


def test_more_gradients_than_all_subsets_take_are_changed_one_by_one_and_swapped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(espresso_host, "MOST_SUBSETS_OF", 0)
    evaluator = Evaluator(problem_of(MIDDLE))
    assert letters_of(any_subset(evaluator, groups_of("ggg"), groups_of("ggg"))) == "gcg"
    assert letters_of(any_subset(evaluator, groups_of("ggg"), groups_of("cgg"))) == "gcg"
