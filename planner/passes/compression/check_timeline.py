"""When each task of an iteration starts, by an event loop of its own.

A task is ready when the one that it waits for has ended. It starts when it is first in the queues of all that it holds
and all of that is idle; a queue is in the order of (ready time, rank, number). At one time tasks end, then others
become ready, then some start; again while some of no length have started.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple


class Timed(NamedTuple):
    """One task. `after` is the number of the task that it waits for; a lower rank goes first."""

    ns: int
    holds: tuple[str, ...]
    after: int | None
    rank: int = 0


def starts(tasks: Sequence[Timed]) -> list[int]:
    """When each task starts. `tasks` wait for earlier ones."""
    start = [-1] * len(tasks)
    waiting: dict[int | None, list[int]] = defaultdict(list)
    for number, task in enumerate(tasks):
        waiting[task.after].append(number)
    queues: dict[str, list[tuple[int, int, int]]] = {name: [] for task in tasks for name in task.holds}
    busy: set[str] = set()
    ends: list[tuple[int, int]] = []
    now, ready = 0, waiting[None]
    while True:
        for number in ready:
            for name in tasks[number].holds:
                heapq.heappush(queues[name], (now, tasks[number].rank, number))
        for number in {queue[0][2] for queue in queues.values() if queue}:
            holds = tasks[number].holds
            if all(name not in busy and queues[name][0][2] == number for name in holds):
                for name in holds:
                    heapq.heappop(queues[name])
                busy.update(holds)
                start[number] = now
                heapq.heappush(ends, (now + tasks[number].ns, number))
        if not ends:
            return start
        now, ready = ends[0][0], []
        while ends and ends[0][0] == now:
            ended = heapq.heappop(ends)[1]
            busy.difference_update(tasks[ended].holds)
            ready += waiting[ended]
