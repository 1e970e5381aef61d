"""Which engine sends its first result when: one key of four chunks, worked by hand, in quarters of a unit of time."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.planner.passes.server.server_plans import PROBLEM, decided, two_levels
from treadle.planner.passes.server.event_order import (
    ArrivingChunk,
    Results,
    followed_key,
    results,
    tall_tasks,
)
from treadle.planner.passes.server.timeline_of import MOST_TASKS, exchange_of
from treadle.planner.timeline.simulator import Resource, simulate

QUARTERS = 4


def oracle(core: int = 0) -> list[ArrivingChunk]:
    """Chunk j of both workers arrives at time j; adding a copy takes a quarter, and so does optimizing a chunk."""
    return [ArrivingChunk(core, (QUARTERS * number,) * 2, 1, 1) for number in (1, 2, 3, 4)]


def test_tall_sends_the_first_result_before_the_last_chunk_has_arrived() -> None:
    assert results("tall", oracle(), 1) == Results(7, 19)  # 1.75 and 4.75
    schedule = simulate(tall_tasks(oracle()), [Resource("core 0")])
    assert [end / QUARTERS for end in schedule.end[2::3]] == [1.75, 2.75, 3.75, 4.75]


@pytest.mark.parametrize(("cores", "end"), [(1, 28), (4, 19)])
def test_wide_sends_nothing_before_the_whole_key_is_there(cores: int, end: int) -> None:
    assert results("wide", oracle(), cores) == Results(end, end)  # 7 and 4.75


def test_each_chunk_is_added_and_optimized_by_its_core_alone() -> None:
    tasks = tall_tasks([ArrivingChunk(number % 2, (0, 5, 9), 2, 3) for number in range(5)])
    for number in range(5):
        own = [task for task in tasks if task.name.split()[1] == str(number)]
        assert [task.resources for task in own] == [(f"core {number % 2}",)] * 4
        assert [task.name.split()[0] for task in own] == ["add"] * 3 + ["optimize"]


def test_a_key_of_a_plan_is_followed_chunk_by_chunk() -> None:
    plan = decided(policy="key-by-interface")
    name, chunks = followed_key(plan) or ("", [])
    assert name == "head"
    assert [chunk.core for chunk in chunks] == [*plan.places[0]]
    assert [len(chunk.arrivals) for chunk in chunks] == [PROBLEM.workers] * 4
    tall, wide = (results(engine, chunks, len(plan.slots)) for engine in ("tall", "wide"))
    assert tall.first < chunks[-1].arrivals[0] < wide.first == wide.last


def test_a_large_model_has_a_small_timeline() -> None:
    keys = tuple(replace(PROBLEM.keys[0], name=f"k{number}", elements=100) for number in range(5000))
    tasks, _ = exchange_of(decided(replace(PROBLEM, keys=keys)))
    assert len(tasks) <= MOST_TASKS
    assert sum("and" in task.name for task in tasks) > 100


def test_two_levels_have_sums_and_values_between_racks_after_everything_else() -> None:
    tasks, resources = exchange_of(two_levels())
    schedule = simulate(tasks, resources)
    place = next(number for number, task in enumerate(tasks) if task.resources == ("between racks",))
    assert schedule.start[place] >= max(schedule.end[:place])
    assert tasks[place].duration == 688_008
