"""The timeline of an iteration: backward pass, encodings and decodings, links (Espresso, section 4.3.2).

A resource runs one task at a time, in the order in which they become ready; of those that become ready together steps
of groups go before the backward pass, and a lower group before a higher one. An encoding on the device therefore delays
what follows in the backward pass, one on the host does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from treadle.planner.passes.compression.decisions import GradientGroup, Sent
from treadle.planner.passes.compression.payload import works_of
from treadle.planner.passes.compression.problem import CompressionProblem
from treadle.planner.timeline.simulator import Resource, Schedule, Task, simulate


def tasks_of(
    problem: CompressionProblem, groups: Sequence[GradientGroup]
) -> tuple[tuple[Task, ...], tuple[Resource, ...]]:
    """The tasks of one iteration from the start of the backward pass on, and the resources that they hold.

    The backward pass comes first, a task for each gradient; then each group's steps in order.
    """
    hosts = tuple(f"host {worker}" for worker in range(problem.host_workers))
    tasks = [
        Task(f"backward {gradient.name}", gradient.backward_ns, ("device",), (place - 1,) if place else (), priority=1)
        for place, gradient in enumerate(problem.gradients)
    ]
    for number, group in enumerate(groups):
        before = group.last
        for work in works_of(problem, group):
            held = tuple(hosts[number % len(hosts)] if name == "host" else name for name in work.resources)
            what = work.word if work.step is None else group.steps[work.step]
            tasks.append(Task(f"{what} {number}", work.ns, held, (before,)))
            before = len(tasks) - 1
    return tuple(tasks), tuple(Resource(name) for name in ("device", *hosts, "intra", "inter"))


def iteration_of(
    problem: CompressionProblem, groups: Sequence[GradientGroup]
) -> tuple[tuple[Task, ...], tuple[Resource, ...]]:
    """The tasks of a whole iteration, and the resources that they hold: as `tasks_of`, after all that comes before the
    backward pass, which is the last of the tasks and on the device too."""
    tasks, resources = tasks_of(problem, groups)
    if not problem.forward_ns:
        return tasks, resources
    later = tuple(task if task.after else replace(task, release=problem.forward_ns) for task in tasks)
    return (*later, Task("forward", problem.forward_ns, ("device",))), resources


def order_of(groups: Sequence[GradientGroup], tasks: Sequence[Task], schedule: Schedule) -> tuple[Sent, ...]:
    """The collectives by the time at which they start, then by their place among the tasks."""
    names = {
        f"{step} {number}": Sent(group=number, step=place)
        for number, group in enumerate(groups)
        for place, step in enumerate(group.steps)
        if "compress@" not in step
    }
    sent = [place for place, task in enumerate(tasks) if task.name in names]
    return tuple(names[tasks[place].name] for place in sorted(sent, key=lambda place: (schedule.start[place], place)))


def time_ns(problem: CompressionProblem, groups: Sequence[GradientGroup]) -> int:
    """ns of one iteration."""
    tasks, resources = tasks_of(problem, groups)
    return problem.forward_ns + simulate(tasks, resources).makespan
