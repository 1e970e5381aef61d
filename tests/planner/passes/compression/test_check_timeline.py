"""The checker's event loop against the simulator."""

from __future__ import annotations

import random

from treadle.planner.passes.compression.check_timeline import Timed, starts
from treadle.planner.timeline.simulator import Resource, Task, simulate


def test_it_starts_every_task_when_the_simulator_does() -> None:
    rng = random.Random(0)
    names = ("device", "host 0", "intra", "inter")
    for _ in range(300):
        tasks = [
            Timed(
                rng.choice([0, 0, 1, 2, 5]),
                tuple(rng.sample(names, rng.choice([1, 1, 1, 2]))),
                rng.choice([None, *range(at)]),
                rng.randint(0, 1),
            )
            for at in range(rng.randint(1, 14))
        ]
        theirs = [
            Task(str(at), task.ns, task.holds, () if task.after is None else (task.after,), priority=task.rank)
            for at, task in enumerate(tasks)
        ]
        assert starts(tasks) == simulate(theirs, [Resource(name) for name in names]).start
