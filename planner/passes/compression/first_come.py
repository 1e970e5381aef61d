"""The loop of the evaluator: tasks on resources that serve first come, first served.

Nothing overtakes, so a task starts when it is ready or when what came before it on its resources has ended, whichever
is later, and one heap of ready times suffices. Only ties with tasks of zero length need care. A time therefore has
rounds, as in the simulator: what a task of zero length makes ready is ready one round later at the same time. A task
that has to wait while others are ready at the same time is put back, to the round in which its resource becomes idle or
to the end of that time, since a lower group may still come before it.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any

from treadle.planner.search.compiled import compiled

STRIDE = 20
"""Places for a group's steps; the longest option has 12, of which 4 are collectives with an issue each, and the copy
into one buffer comes on top."""
DEVICE, INTRA, INTER, HOST = range(4)
"""Resources; the workers of the host have the numbers from HOST on."""
HELD_UNTIL, HELD_BY, IDLE_FROM, IDLE_UNTIL, BUBBLE = range(5)
"""Places in `marks`: until when a task that waits for both links lets no higher one have one of them, that task; the
last time at which no link was busy, and when the last such time began that ended with the first collective of a
group."""
NEVER = -1

Values = Any
"""A list of integers, or an array where loops are compiled."""


@compiled
def run(
    begin: Values,
    idle: Values,
    gaps: Values,
    marks: Values,
    first: Values,
    second: Values,
    ns: Values,
    backward: Values,
    released: Values,
    limits: Values,
    ends: Values,
    saved: Values,
    round_bits: int,
    until: int,
) -> int:
    """Runs tasks until there are none, or none before the backward pass of gradient `until` (NEVER for all); the number
    of entries in `saved`, or -1 as soon as a resource has been idle between tasks for longer than its limit.

    begin: a heap of tasks, for each in turn when it is ready, a time with its round in the lowest bits, and its number.
    idle: time and round from which each resource is idle. gaps: how long each was idle before a task. idle, gaps and
    marks change in place, and `saved` becomes the heap at the end. ends: gets the time at which each step ends.
    first, second, ns: for the steps of group g from g * STRIDE on, the resources that they hold (twice the same for
    one) and their length, negative after the last. backward: length of the backward pass of each gradient, whose tasks
    have the numbers after those of the steps. released: the group that each gradient completes, -1 for none.
    """
    heap = [(begin[place], begin[place + 1]) for place in range(0, len(begin), 2)]
    late = (1 << round_bits) - 1
    passes = len(ns)
    everything = passes + len(backward)
    stop = passes + until if until >= 0 else -1
    while len(heap) > 0:
        ready, task = heap[0]
        if task == stop:
            break
        heappop(heap)
        start = ready
        if task >= passes:
            one = two = DEVICE
            length = backward[task - passes]
        else:
            one, two, length = first[task], second[task], ns[task]
        if idle[one] > start:
            start = idle[one]
        if idle[two] > start:
            start = idle[two]
        if marks[HELD_UNTIL] > ready and marks[HELD_BY] < task and INTRA <= two <= INTER:
            start = max(start, marks[HELD_UNTIL])
        if start > ready and len(heap) > 0 and heap[0][0] >> round_bits == ready >> round_bits and ready & late != late:
            start = min(start, ready | late)
            if one != two and (marks[HELD_UNTIL] <= ready or task < marks[HELD_BY]):
                marks[HELD_UNTIL], marks[HELD_BY] = start, task
            heappush(heap, (start, task))
            continue
        now = start >> round_bits
        if INTRA <= two <= INTER:
            busy = max(idle[INTRA], idle[INTER]) >> round_bits
            if 0 < busy < now:
                marks[IDLE_FROM], marks[IDLE_UNTIL] = busy, now
            before = task
            while before % STRIDE > 0 and not INTRA <= second[before - 1] <= INTER:
                before -= 1
            if now == marks[IDLE_UNTIL] and before % STRIDE == 0:  # the first collective of its group
                marks[BUBBLE] = marks[IDLE_FROM]
        gap = now - (idle[one] >> round_bits)
        if gap > 0:
            gaps[one] += gap
            if gaps[one] > limits[one]:
                return -1
        if one != two:
            gap = now - (idle[two] >> round_bits)
            if gap > 0:
                gaps[two] += gap
                if gaps[two] > limits[two]:
                    return -1
        end = (now + length) << round_bits if length > 0 else start + 1
        idle[one] = idle[two] = end
        if task < passes:
            ends[task] = end >> round_bits
            if ns[task + 1] >= 0:
                heappush(heap, (end, task + 1))
            continue
        group = released[task - passes]
        if group >= 0 and ns[group * STRIDE] >= 0:
            heappush(heap, (end, group * STRIDE))
        if task + 1 < everything:
            heappush(heap, (end, task + 1))
    for place in range(len(heap)):
        saved[2 * place], saved[2 * place + 1] = heap[place]
    return 2 * len(heap)
