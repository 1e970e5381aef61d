"""The fast evaluator gives the times of the simulator, and lists every option once."""

from __future__ import annotations

from random import Random

import pytest

from tests.planner.passes.compression.instances import random_groups, random_problem
from treadle.planner.passes.compression.decisions import GradientGroup
from treadle.planner.passes.compression.evaluator import Evaluator
from treadle.planner.passes.compression.timeline_of import time_ns


@pytest.mark.parametrize("seed", range(60))
def test_the_time_is_that_of_the_simulator(seed: int) -> None:
    """With ties and steps of zero length, from any groups held before, and up to any time."""
    random = Random(seed)
    problem = random_problem(random, random.choice((1, 3, 7, 12, 30)), longest=random.choice((2, 4, 40)))
    evaluator = Evaluator(problem)
    held: tuple[GradientGroup, ...] = ()
    for _ in range(12):
        groups = random_groups(random, problem)
        if held and random.random() < 0.6:
            groups = mixed(random, held, groups)
        expected = time_ns(problem, groups)
        assert evaluator.time(groups) == expected
        if random.random() < 0.5:
            held = groups
            assert evaluator.hold(groups) == expected
        above = expected + random.randrange(-300, 300)
        assert evaluator.time(groups, above=above) == min(expected, above)


def mixed(
    random: Random, held: tuple[GradientGroup, ...], fresh: tuple[GradientGroup, ...]
) -> tuple[GradientGroup, ...]:
    """The first groups of `held`, then those of `fresh`, which begin where these end; or `held` with another option."""
    cuts = [group.last for group in held if group.last in {group.last for group in fresh}]
    cut = random.choice(cuts)
    if random.random() < 0.5:
        place = random.randrange(len(held))
        other = random.choice(fresh)
        replaced = GradientGroup(
            first=held[place].first, last=held[place].last, compressor=other.compressor, steps=other.steps
        )
        return (*held[:place], replaced, *held[place + 1 :])
    return (*(group for group in held if group.last <= cut), *(group for group in fresh if group.first > cut))
