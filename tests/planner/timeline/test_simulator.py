"""The simulator: cases worked by hand, and what every schedule must satisfy."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.planner.errors import InputError
from treadle.planner.timeline.simulator import Resource, Task, simulate


def spans(tasks: list[Task], resources: list[Resource]) -> list[tuple[int, int]]:
    schedule = simulate(tasks, resources)
    return list(zip(schedule.start, schedule.end, strict=True))


def test_nothing_to_do() -> None:
    schedule = simulate([])
    assert (schedule.makespan, schedule.start, schedule.memory) == (0, [], {})


def test_a_chain_and_a_free_task() -> None:
    tasks = [Task("a", 3), Task("b", 4, after=(0,)), Task("c", 5), Task("d", 1, after=(1, 2), release=20)]
    assert spans(tasks, []) == [(0, 3), (3, 7), (0, 5), (20, 21)]


def test_first_come_first_served_then_priority_then_index() -> None:
    gpu = [Resource("gpu")]
    tasks = [
        Task("late", 2, ("gpu",), release=1, priority=-9),
        Task("low", 2, ("gpu",), priority=1),
        Task("high", 2, ("gpu",)),
        Task("high too", 2, ("gpu",)),
    ]
    assert spans(tasks, gpu) == [(6, 8), (4, 6), (0, 2), (2, 4)]


def test_nothing_overtakes_a_task_that_waits_for_two_ports() -> None:
    ports = [Resource("out"), Resource("in")]
    tasks = [Task("a", 5, ("out",)), Task("both", 1, ("out", "in")), Task("c", 1, ("in",))]
    assert spans(tasks, ports) == [(0, 5), (5, 6), (6, 7)]


def test_what_fits_passes_a_task_that_waits_for_another_port() -> None:
    resources = [Resource("a", first="fits"), Resource("b", first="fits")]
    tasks = [Task("one", 10, ("a",)), Task("two", 10, ("a", "b")), Task("three", 5, ("b",)), Task("four", 1, ("b",))]
    found = simulate(tasks, resources)
    assert found.start == [0, 10, 0, 5]
    later = simulate([*tasks, Task("five", 5, ("b",), release=5)], resources)
    assert later.start == [0, 11, 0, 5, 6]
    with pytest.raises(InputError, match="of which only some let others pass"):
        simulate([Task("x", 1, ("a", "c"))], [*resources, Resource("c")])


def test_a_resource_that_is_held_for_less_than_the_task_serves_the_next_one_sooner() -> None:
    resources = [Resource(name, first="fits") for name in ("a", "b", "uplink")]
    tasks = [
        Task("one", 10, ("a", "uplink"), held=(("uplink", 3),)),
        Task("two", 10, ("b", "uplink"), held=(("uplink", 3),)),
        Task("three", 2, ("uplink",), held=(("uplink", 5),)),
        Task("four", 1, ("a",)),
    ]
    assert spans(tasks, resources) == [(0, 10), (3, 13), (6, 8), (10, 11)]


def test_a_given_order_is_kept_even_if_the_resource_idles() -> None:
    tasks = [Task("a", 2, ("link",)), Task("b", 3, ("link",), release=10), Task("c", 1, ("link",))]
    assert spans(tasks, [Resource("link", order=(2, 1, 0))]) == [(13, 15), (10, 13), (0, 1)]


def test_zero_durations_run_through_at_one_time() -> None:
    """All are ready at 0, so the index decides: c goes before d although d was there first."""
    tasks = [Task("a", 0, ("r",)), Task("b", 0, ("r",), after=(0,)), Task("c", 2, ("r",), after=(1,))]
    tasks.append(Task("d", 0, ("r",)))
    assert spans(tasks, [Resource("r")]) == [(0, 0), (0, 0), (0, 2), (2, 2)]


def test_equal_sharing() -> None:
    """4 and 10 units of work on one bus: halves until 8, when the short one is done and the other has 6 left."""
    tasks = [Task("a", 4, ("bus",)), Task("b", 10, ("bus",))]
    assert spans(tasks, [Resource("bus", shared=True)]) == [(0, 8), (0, 14)]


def test_duplex_copies_share_what_exceeds_the_bus() -> None:
    """Each direction moves 12 GB/s in isolation, both together 16: each runs at 2/3, so 20 units take 30."""
    tasks = [
        Task("in", 20, ("h2d",), shares=(("pcie", 12),)),
        Task("out", 20, ("d2h",), shares=(("pcie", 12),)),
        Task("in again", 20, ("h2d",), shares=(("pcie", 12),)),
    ]
    resources = [Resource("h2d"), Resource("d2h"), Resource("pcie", shared=True, capacity=16)]
    assert spans(tasks, resources) == [(0, 30), (0, 30), (30, 50)]


def test_a_demand_that_fits_costs_nothing_and_one_above_capacity_slows_down() -> None:
    bus = [Resource("bus", shared=True, capacity=10)]
    assert spans([Task("a", 7, shares=(("bus", 4),)), Task("b", 9, shares=(("bus", 6),))], bus) == [(0, 7), (0, 9)]
    assert spans([Task("a", 7, shares=(("bus", 20),))], bus) == [(0, 14)]


def test_max_min_fairness_gives_away_what_a_task_cannot_use() -> None:
    """y holds x to 1/2 on slow, so x leaves 3/2 of fast to z and w, which run at 3/4 instead of 2/3."""
    tasks = [
        Task("x", 10, shares=(("slow", 1), ("fast", 1))),
        Task("y", 10, shares=(("slow", 1),)),
        Task("z", 10, shares=(("fast", 1),)),
        Task("w", 10, shares=(("fast", 1),)),
    ]
    slow, fast = Resource("slow", shared=True), Resource("fast", shared=True, capacity=2)
    assert spans(tasks, [slow, fast]) == [(0, 20), (0, 20), (0, 14), (0, 14)]


def test_thirds_are_exact() -> None:
    tasks = [Task(f"t{i}", 3, ("bus",)) for i in range(3)] + [Task("after", 1, after=(0, 1, 2))]
    assert spans(tasks, [Resource("bus", shared=True)]) == [(0, 9), (0, 9), (0, 9), (9, 10)]


def test_memory_curve_by_hand() -> None:
    tasks = [
        Task("make", 2, ("gpu",), alloc=(("hbm", 100),)),
        Task("use", 3, ("gpu",), after=(0,), alloc=(("hbm", 50),), free=(("hbm", 100), ("host", 7))),
        Task("reuse", 1, ("gpu",), after=(1,), alloc=(("hbm", 60),)),
    ]
    schedule = simulate(tasks, [Resource("gpu")], {"host": 7})
    assert schedule.memory == {"host": [(0, 7), (5, 0)], "hbm": [(0, 0), (0, 100), (2, 150), (5, 110)]}
    assert schedule.peak == {"host": 7, "hbm": 150}


def test_frees_come_before_allocations_at_one_time() -> None:
    tasks = [
        Task("a", 5, alloc=(("m", 10),), free=(("m", 10),)),
        Task("b", 5, release=5, alloc=(("m", 10),), free=(("m", 10),)),
    ]
    assert simulate(tasks).peak == {"m": 10}


@pytest.mark.parametrize(
    ("tasks", "resources", "message"),
    [
        ([Task("a", -1)], [], r"task 0 \(a\) has duration -1"),
        ([Task("a", 1, ("gpu",))], [], r"task 0 \(a\) uses the unknown resource gpu"),
        ([Task("a", 1, shares=(("gpu", 1),))], [Resource("gpu")], r"task 0 \(a\) shares gpu, which is not a shared"),
        ([Task("a", 1, shares=(("b", 0),))], [Resource("b", shared=True)], r"task 0 \(a\) demands 0 of b"),
        ([Task("a", 1, ("g", "g"))], [Resource("g")], r"task 0 \(a\) names a resource twice"),
        ([Task("a", 1, after=(3,))], [], r"task 0 \(a\) comes after task 3, expected 0..0"),
        ([Task("a", 1, alloc=(("m", -4),))], [], r"task 0 \(a\) has -4 bytes of m"),
        ([Task("a", 1, free=(("m", 4),))], [], r"task 0 \(a\) frees 4 bytes of m, more than it holds"),
        ([], [Resource("g"), Resource("g")], "resource g is given twice"),
        ([], [Resource("g", capacity=0)], "resource g has capacity 0"),
        (
            [Task("a", 1, ("g",)), Task("b", 1, ("g",))],
            [Resource("g", order=(0,))],
            "each of its 2 tasks once; look at task 1",
        ),
        ([Task("a", 1, ("g",))], [Resource("g", shared=True, order=(0,))], "expected none, it is shared"),
        ([Task("a", 1, after=(0,))], [], r"task 0 \(a\) waits for itself: 0 \(a\) -> 0 \(a\)"),
        (
            [
                Task("a", 1),
                Task("b", 1, after=(0, 3)),
                Task("c", 1, after=(1,)),
                Task("d", 1, after=(2,)),
                Task("e", 1, after=(3,)),
            ],
            [],
            r"task 1 \(b\) waits for itself: 1 \(b\) -> 2 \(c\) -> 3 \(d\) -> 1 \(b\)",
        ),
        (
            [Task("a", 1, ("g",), after=(1,)), Task("b", 1, ("g",))],
            [Resource("g", order=(0, 1))],
            r"waits for itself: 0 \(a\) -> 1 \(b\) -> 0 \(a\)",
        ),
    ],
)
def test_input_errors_name_the_task(tasks: list[Task], resources: list[Resource], message: str) -> None:
    with pytest.raises(InputError, match=message):
        simulate(tasks, resources)


RESOURCES = [Resource("p"), Resource("q"), Resource("r"), Resource("bus", shared=True, capacity=3)]


@st.composite
def task_lists(draw: st.DrawFn, shared: bool = True, least: int = 0) -> list[Task]:
    tasks = []
    for i in range(draw(st.integers(1, 12))):
        tasks.append(
            Task(
                f"t{i}",
                draw(st.integers(least, 9)),
                tuple(draw(st.lists(st.sampled_from("pqr"), unique=True, max_size=3))),
                tuple(draw(st.lists(st.integers(0, i - 1), unique=True, max_size=3))) if i else (),
                shares=(("bus", draw(st.integers(1, 4))),) if shared and draw(st.booleans()) else (),
                alloc=(("m", 5 * i),),
                free=(("m", 5 * i),) if draw(st.booleans()) else (),
                priority=draw(st.integers(0, 2)),
                release=draw(st.integers(0, 9)),
            )
        )
    return tasks


@given(task_lists())
def test_every_schedule_is_feasible(tasks: list[Task]) -> None:
    schedule = simulate(tasks, RESOURCES)
    for i, task in enumerate(tasks):
        assert schedule.start[i] >= task.release
        assert schedule.start[i] >= max((schedule.end[j] for j in task.after), default=0)
        assert schedule.end[i] - schedule.start[i] >= task.duration
        if not task.shares:
            assert schedule.end[i] - schedule.start[i] == task.duration
    for name in "pqr":
        users = sorted((schedule.start[i], schedule.end[i]) for i, t in enumerate(tasks) if name in t.resources)
        assert all(end <= start for (_, end), (start, _) in pairwise(users))
    assert schedule.makespan == max(schedule.end)


@given(task_lists())
def test_makespan_is_at_least_the_critical_path_and_each_resources_work(tasks: list[Task]) -> None:
    schedule = simulate(tasks, RESOURCES)
    longest: list[int] = []
    for task in tasks:
        longest.append(task.duration + max([task.release, *(longest[j] for j in task.after)]))
    assert schedule.makespan >= max(longest)
    for name in "pqr":
        assert schedule.makespan >= sum(t.duration for t in tasks if name in t.resources)
    assert 3 * schedule.makespan >= sum(t.duration * d for t in tasks for _, d in t.shares)


@given(task_lists(shared=False, least=1))
def test_no_task_waits_without_a_reason(tasks: list[Task]) -> None:
    """A task that starts later than it is ready has, until then, another before it in the queue of a resource.

    Durations are 1 at least: what follows a task of no duration is ready at the time of tasks that have started.
    """
    schedule = simulate(tasks, RESOURCES)
    ready = [max([t.release, *(schedule.end[j] for j in t.after)]) for t in tasks]
    key = [(ready[i], tasks[i].priority, i) for i in range(len(tasks))]
    for i, task in enumerate(tasks):
        if schedule.start[i] > ready[i]:
            ends = [
                schedule.end[j]
                for j, other in enumerate(tasks)
                if set(other.resources) & set(task.resources) and key[j] < key[i]
            ]
            assert schedule.start[i] == max(ends)


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 5), st.integers(0, 20)), min_size=1, max_size=7))
def test_a_shared_resource_neither_loses_nor_invents_work(jobs: list[tuple[int, int, int]]) -> None:
    """Demands above capacity keep the bus full, so it is done when all its work is: within a unit per task."""
    tasks = [Task(f"t{i}", work, shares=(("bus", 3 + demand),)) for i, (work, demand, _) in enumerate(jobs)]
    schedule = simulate(tasks, RESOURCES)
    exact = Fraction(sum(work * (3 + demand) for work, demand, _ in jobs), 3)
    assert exact <= schedule.makespan < exact + len(jobs) + 1
    assert schedule.start == [0] * len(jobs)


@given(task_lists())
def test_memory_adds_up(tasks: list[Task]) -> None:
    schedule = simulate(tasks, RESOURCES)
    levels = [level for _, level in schedule.memory["m"]]
    times = [at for at, _ in schedule.memory["m"]]
    freed = sum(size for t in tasks for _, size in t.free)
    assert levels[-1] == sum(size for t in tasks for _, size in t.alloc) - freed
    assert schedule.peak["m"] == max(levels)
    assert times == sorted(times)
    for at in range(schedule.makespan + 1):
        held = sum(
            5 * i for i, t in enumerate(tasks) if schedule.start[i] <= at and not (t.free and schedule.end[i] <= at)
        )
        assert held == [level for when, level in schedule.memory["m"] if when <= at][-1]


@given(task_lists())
def test_same_input_same_schedule(tasks: list[Task]) -> None:
    assert simulate(tasks, RESOURCES) == simulate(list(tasks), list(RESOURCES))


def test_a_hundred_thousand_tasks() -> None:
    """Scale only: speed is printed by benchmarks/timeline.py."""
    n = 100_000
    tasks = [
        Task(f"t{i}", 1 + i % 7, (f"link{i % 32}", f"port{i * 7 % 16}"), (i - 40, i - 33) if i >= 40 else ())
        for i in range(n)
    ]
    resources = [Resource(f"link{k}") for k in range(32)] + [Resource(f"port{k}") for k in range(16)]
    schedule = simulate(tasks, resources)
    assert min(schedule.end) > 0
    per_port = [sum(t.duration for t in tasks if t.resources[1] == f"port{k}") for k in range(16)]
    assert max(per_port) <= schedule.makespan <= sum(t.duration for t in tasks)
