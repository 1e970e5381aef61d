"""The best plans of each allocator and part of the search, measured with times that are made up."""

from __future__ import annotations

import random
from dataclasses import replace

from msgspec import structs

from tests.planner.passes.swap import cases
from treadle.check.plan import check_plan
from treadle.planner.passes.swap.check import check
from treadle.planner.passes.swap.planning import SwapOptions, SwapTask, plan_swap, time_of
from treadle.planner.passes.swap.search.options import BOTH
from treadle.planner.search.clock import Clock
from treadle.planner.search.in_turns import Measuring
from treadle.planner.search.top import Outcome

OPTIONS = SwapOptions(population=12, generations=6, allocators=BOTH)
PROBLEM = cases.random_problem(random.Random(3), ops=24)


class Made:
    """Measurements in which what is predicted worst is the fastest."""

    def __init__(self, top: int, most: int | None = None) -> None:
        self.seen, self.most = [], most
        self.measuring = Measuring(top, self.run)

    def run(self, rows):
        [self.seen] = rows
        return [{at: Outcome(1000 - at) for at in range(len(self.seen))[: self.most]}]


def test_each_allocator_and_part_of_the_search_has_its_best_plan_measured():
    made = Made(100)
    plan = plan_swap(SwapTask(PROBLEM), options=replace(OPTIONS, measuring=made.measuring))
    (tuned,) = plan.provenance.tuned
    assert (tuned.what, tuned.model) == ("swap plan", "simulator of iterations")
    assert {each.name.split(", ")[0] for each in tuned.ranked} == set(BOTH)
    assert [each.predicted_ns for each in tuned.ranked] == [time_of(one) for one in made.seen]
    assert len({(one.decisions.order, one.decisions.initial, one.decisions.nodes) for one in made.seen}) == len(
        made.seen
    )
    assert all(check(one.decisions) == [] for one in made.seen)
    assert plan.decisions == made.seen[-1].decisions
    assert tuned.chosen == tuned.ranked[-1].name == f"{plan.decisions.allocator}, {plan.provenance.method}"
    assert plan.provenance.options["allocator"] == plan.decisions.allocator
    assert plan.provenance.options["allocators"] == list(BOTH)
    assert check_plan(plan) == []


def test_the_best_predicted_is_the_plan_that_no_measurement_would_make():
    plain = plan_swap(SwapTask(PROBLEM), options=OPTIONS)
    made = Made(1)
    plan = plan_swap(SwapTask(PROBLEM), options=replace(OPTIONS, measuring=made.measuring))
    assert plan.decisions == plain.decisions == made.seen[0].decisions
    assert plain.provenance.tuned == ()
    assert plain.provenance == structs.replace(plan.provenance, tuned=())


def test_one_allocator_has_the_parts_of_its_search_compared():
    made = Made(100)
    options = replace(OPTIONS, allocator="pool", allocators=(), measuring=made.measuring)
    (tuned,) = plan_swap(SwapTask(PROBLEM), options=options).provenance.tuned
    assert {each.name.split(", ")[0] for each in tuned.ranked} == {"pool"}


def test_a_measurement_that_the_limit_cut_is_recorded_as_that():
    plan = plan_swap(SwapTask(PROBLEM), options=replace(OPTIONS, measuring=Made(2, most=1).measuring))
    assert plan.provenance.limit_fired


def test_ctrl_c_while_plans_are_measured_leaves_the_best_predicted():
    def interrupted(rows):
        raise KeyboardInterrupt

    plan = plan_swap(SwapTask(PROBLEM), options=replace(OPTIONS, measuring=Measuring(2, interrupted)))
    assert (plan.provenance.interrupted, plan.provenance.tuned) == (True, ())
    assert plan.decisions == plan_swap(SwapTask(PROBLEM), options=OPTIONS).decisions


def test_a_search_that_took_all_the_time_is_not_measured():
    clock = Clock.of(1000.0)
    made = Made(2)
    found = plan_swap(
        SwapTask(PROBLEM),
        options=replace(OPTIONS, measuring=made.measuring),
        clock=clock,
        on_plan=lambda _: clock.stop.set(),
    )
    assert found.provenance.interrupted
    assert made.seen == []
    assert found.provenance.tuned == ()
