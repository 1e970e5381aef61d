"""The time of a plan: three streams that each run one node at a time (SwapAdvisor, section 4.4), compiled.

It is `treadle.planner.timeline.simulator.simulate` on the tasks of `treadle.planner.passes.swap.timeline_of`, to the
bit, for the search's inner loop. A stream takes the ready node with the lowest (serves, node): of those that are ready
when it becomes idle, before nodes of no length (drops) that start in the same instant release others. While copies run
in both directions each progresses at `together` of its speed; work left is kept in whole parts of a nanosecond, so that
nothing is rounded but the ends. Drops take no time and no stream.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from treadle.planner.errors import InputError
from treadle.planner.passes.swap.arrays import COMPUTE, DROP, IN, OUT, Arrays, Ints, Nodes
from treadle.planner.passes.swap.heap import pop, push
from treadle.planner.search.compiled import compiled


class Replay(NamedTuple):
    """Start and end per node; idle time of the compute stream."""

    makespan_ns: int
    start: Ints
    end: Ints
    idle_ns: int


def replay(arrays: Arrays, nodes: Nodes) -> Replay:
    """When each node runs, in ns. Raises InputError if nodes wait for each other."""
    makespan, start, end = _replayed(arrays, nodes)
    if makespan < 0:
        raise InputError("the nodes of the plan wait for each other")
    return Replay(int(makespan), start, end, int(makespan - arrays.time.sum()))


@compiled
def _replayed(a: Arrays, nodes: Nodes) -> tuple[int, Ints, Ints]:
    n = len(nodes.kind)
    slow, whole = a.together
    work, waiting = np.zeros(n, np.int64), np.zeros(n, np.int64)
    room = np.zeros(4, np.int64)
    follow_ptr = np.zeros(n + 2, np.int64)
    for i in range(n):
        kind, item = nodes.kind[i], nodes.item[i]
        room[kind] += 1
        if kind == COMPUTE:
            work[i] = a.time[item]
        elif kind == IN:
            work[i] = a.in_ns[item]
        elif kind == OUT:
            work[i] = a.out_ns[item]
        waiting[i] = nodes.after_ptr[i + 1] - nodes.after_ptr[i]
        for e in range(nodes.after_ptr[i], nodes.after_ptr[i + 1]):
            follow_ptr[nodes.after[e] + 2] += 1
    for i in range(n):
        follow_ptr[i + 2] += follow_ptr[i + 1]
    follow = np.empty(len(nodes.after), np.int64)
    for i in range(n):
        for e in range(nodes.after_ptr[i], nodes.after_ptr[i + 1]):
            before = nodes.after[e] + 1
            follow[follow_ptr[before]] = i
            follow_ptr[before] += 1

    start, end = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
    base = np.array([0, room[COMPUTE], room[COMPUTE] + room[IN]])
    ready, held = np.empty(n, np.int64), np.zeros(3, np.int64)  # one heap per stream
    running, finish = np.full(3, -1, np.int64), np.zeros(3, np.int64)
    left = np.zeros(3, np.int64)  # of a running copy, in 1/whole ns
    arrived, instant = np.empty(n, np.int64), np.empty(n, np.int64)  # instant: drops that end where they start
    arrivals, instants = 0, 0
    for i in range(n):
        if waiting[i] == 0:
            arrived[arrivals] = i
            arrivals += 1
    now, done = 0, 0
    while True:
        for w in range(arrivals):
            i = arrived[w]
            kind = nodes.kind[i]
            if kind == DROP:
                start[i] = now
                instant[instants] = i
                instants += 1
            else:
                push(ready, base[kind], held[kind], nodes.serves[i] * n + i)
                held[kind] += 1
        for s in range(3):
            if running[s] < 0 and held[s]:
                i = pop(ready, base[s], held[s]) % n
                held[s] -= 1
                running[s], start[i] = i, now
                left[s] = work[i] * whole
                finish[s] = now + work[i]
        speed = slow if running[IN] >= 0 and running[OUT] >= 0 else whole
        for s in (IN, OUT):
            finish[s] = now - (-left[s] // speed)
        later = -1 if not instants else now
        for s in range(3):
            if running[s] >= 0 and (later < 0 or finish[s] < later):
                later = finish[s]
        if later < 0:
            break
        for s in (IN, OUT):
            left[s] -= speed * (later - now)
        now = later
        arrivals = 0
        for s in range(3):
            if running[s] >= 0 and finish[s] == now:
                instant[instants] = running[s]
                instants += 1
                running[s] = -1
        for w in range(instants):
            i = instant[w]
            end[i] = now
            done += 1
            for e in range(follow_ptr[i], follow_ptr[i + 1]):
                j = follow[e]
                waiting[j] -= 1
                if waiting[j] == 0:
                    arrived[arrivals] = j
                    arrivals += 1
        instants = 0
    return (now if done == n else -1), start, end
