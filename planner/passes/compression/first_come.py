"""The loop of the evaluator: tasks on resources that serve first come, first served.

Nothing overtakes, so a task starts when it is ready or when what came before it on its resources has ended, whichever
is later, and one heap of ready times suffices. Only ties with tasks of zero length need care. A time therefore has
rounds, as in the simulator: what a task of zero length makes ready is ready one round later at the same time. A task
that has to wait while others are ready at the same time is put back, to the round in which its resource becomes idle or
to the end of that time, since a lower group may still come before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

STRIDE = 16
"""Places for a group's steps; the longest option has 12, the copy into one buffer comes on top."""
DEVICE, INTRA, INTER, HOST = range(4)
"""Resources; the workers of the host have the numbers from HOST on."""


def run(
    heap: list[int],
    idle: list[int],
    gaps: list[int],
    held: list[int],
    first: Sequence[int],
    second: Sequence[int],
    ns: Sequence[int],
    backward: Sequence[int],
    released: Sequence[int],
    limits: Sequence[int],
    round_bits: int,
    task_bits: int,
    until: int,
) -> bool:
    """Runs tasks until there are none, or none before the backward pass of gradient `until`; False as soon as a
    resource has been idle between tasks for longer than its limit.

    heap: when tasks are ready: time, round and task, from the highest bits to the lowest. idle: time and round from
    which each resource is idle. gaps: how long each has been idle before a task. held:
    until when a task that waits for both links lets no higher one take one of them, and that task. All four are changed
    in place.
    first, second, ns: for the steps of group g from g * STRIDE on, the resources that they hold (twice the same for
    one) and their length, negative after the last. backward: length of the backward pass of each gradient, whose tasks
    have the numbers after those of the steps. released: the group that each gradient completes, -1 for none.
    """
    time_bits = round_bits + task_bits
    late = (1 << round_bits) - 1
    tasks = (1 << task_bits) - 1
    passes = len(ns)
    stop = passes + until
    end_of_passes = passes + len(backward)
    while heap:
        key = heap[0]
        task = key & tasks
        if task == stop:
            return True
        heappop(heap)
        ready = start = key >> task_bits
        if task >= passes:
            one = two = DEVICE
            length = backward[task - passes]
        else:
            one, two, length = first[task], second[task], ns[task]
        if idle[one] > start:
            start = idle[one]
        if idle[two] > start:
            start = idle[two]
        if held[0] > ready and held[1] < task and INTRA <= two <= INTER:
            start = max(start, held[0])
        if start > ready and heap and heap[0] >> time_bits == ready >> round_bits and ready & late != late:
            start = min(start, ready | late)
            if one != two and (held[0] <= ready or task < held[1]):
                held[0], held[1] = start, task
            heappush(heap, start << task_bits | task)
            continue
        for resource in (one, two) if one != two else (one,):
            gap = (start >> round_bits) - (idle[resource] >> round_bits)
            if gap:
                gaps[resource] += gap
                if gaps[resource] > limits[resource]:
                    return False
        end = ((start >> round_bits) + length) << round_bits if length else start + 1
        idle[one] = idle[two] = end
        if task < passes:
            if ns[task + 1] >= 0:
                heappush(heap, end << task_bits | task + 1)
            continue
        group = released[task - passes]
        if group >= 0 and ns[group * STRIDE] >= 0:
            heappush(heap, end << task_bits | group * STRIDE)
        if task + 1 < end_of_passes:
            heappush(heap, end << task_bits | task + 1)
    return True
