"""The fast evaluator gives the times of the simulator, and lists every option once."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace

from tests.planner.passes.compression.instances import random_groups, random_problem
from treadle.planner.errors import InputError
from treadle.planner.passes.compression import evaluator as evaluator_file
from treadle.planner.passes.compression.candidates import named_options
from treadle.planner.passes.compression.decisions import GradientGroup
from treadle.planner.passes.compression.espresso_device import with_option
from treadle.planner.passes.compression.evaluator import Evaluator
from treadle.planner.passes.compression.payload import works
from treadle.planner.passes.compression.problem import CompressionProblem, Gradient
from treadle.planner.passes.compression.timeline_of import tasks_of, time_ns
from treadle.planner.timeline.simulator import simulate


@pytest.mark.parametrize("seed", range(40))
def test_the_time_is_that_of_the_simulator(seed: int) -> None:
    """With ties and steps of zero length, from any groups held before, and up to any time."""
    assert_times(Random(seed))


def test_the_time_is_the_same_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluator_file, "COMPILES", False)
    monkeypatch.setattr(evaluator_file, "run", getattr(evaluator_file.run, "py_func", evaluator_file.run))
    for seed in range(5):
        assert_times(Random(seed))


def assert_times(random: Random) -> None:
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
            assert (evaluator.bubble_ns, evaluator.ended_ns()) == bubble_and_ends(problem, groups)
        above = expected + random.randrange(-300, 300)
        assert evaluator.time(groups, above=above) == min(expected, above)


def bubble_and_ends(problem: CompressionProblem, groups: tuple[GradientGroup, ...]) -> tuple[int, list[int]]:
    """The same from the simulator's schedule."""
    tasks, resources = tasks_of(problem, groups)
    schedule = simulate(tasks, resources)
    busy = bubble = 0
    begun: set[str] = set()
    idle = (0, 0)
    for start, end, task in sorted(zip(schedule.start, schedule.end, tasks, strict=True), key=lambda each: each[:2]):
        if {"intra", "inter"} & set(task.resources):
            group = task.name.split()[-1]
            if 0 < busy < start:
                idle = busy, start
            if start == idle[1] and group not in begun:
                bubble = idle[0]
            begun.add(group)
            busy = max(busy, end)
    steps = list(zip(tasks, schedule.end, strict=True))[len(problem.gradients) :]
    ends = {int(task.name.split()[-1]): end for task, end in steps}
    return bubble, [ends[place] for place in range(len(groups))]


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


@pytest.mark.parametrize("seed", range(12))
def test_the_best_option_is_the_first_of_the_least_time(seed: int) -> None:
    """Though options are cut short, tried in another order, and those that take the same are tried once."""
    random = Random(seed)
    problem = random_problem(random, random.randint(1, 6))
    evaluator = Evaluator(problem)
    everything = tuple(named_options(problem))
    options = tuple(random.sample(everything, min(40, len(everything))))
    for _ in range(4):
        groups = random_groups(random, problem)
        now = evaluator.hold(groups)
        place = random.randrange(len(groups))
        times = [time_ns(problem, with_option(groups, place, named)) for named in options]
        for below in (now, min(times), min(times) + 1, now + 1000):
            expected = (min(times), times.index(min(times))) if min(times) < below else None
            assert evaluator.improved(place, options, below) == expected


def test_options_of_identical_work_are_listed_once() -> None:
    """And every other one is there, in its order."""
    problem = random_problem(Random(3), 2)
    found = Evaluator(problem).candidates(25)
    assert len({option.timing for option in found}) == len(found)
    everything = [(name, steps, works(problem, name, steps, 25)) for name, steps in named_options(problem)]
    assert {tuple((work.resources, work.ns) for work in each[2]) for each in everything} == {
        option.timing for option in found
    }
    order = [each[:2] for each in everything]
    places = [order.index((option.compressor, option.steps)) for option in found]
    assert places == sorted(places)


def test_an_iteration_that_is_too_long_to_be_counted_is_refused() -> None:
    problem = replace(random_problem(Random(0), 1), gradients=(Gradient(name="g", elements=1, backward_ns=2**61),))
    with pytest.raises(InputError, match=r"ns of work in an iteration, expected at most \d+"):
        Evaluator(problem).hold(random_groups(Random(0), problem))
