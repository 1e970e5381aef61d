"""The plan that needs least memory: all inputs are copied in before each operator, and all its tensors leave after it.

The operator's tensors are adjacent from address 0. No tensor stays between operators, so this fits wherever each single
operator fits, without fragmentation.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from treadle.planner.passes.swap.arrays import Arrays, Ints, Nodes
from treadle.planner.passes.swap.timed_residencies import Addresses, Ending, TimedResidency, nodes_of

IN, RUN, LEAVE, END, NEXT = range(5)
"""Moments of an operator's turn."""


def evict_all(arrays: Arrays, order: Sequence[int] | Ints) -> Nodes:
    """The nodes of this plan for all operators in `order`, which must be topological, with allocator `offset`."""
    uses = np.bincount(arrays.use, minlength=len(arrays.bytes))
    valid = arrays.on_host.copy()
    stays: list[TimedResidency] = []
    space = Addresses([], [])
    before: list[int] = []
    starts = np.zeros(len(order), np.int64)
    for j, op in enumerate(map(int, order)):
        turn = j * NEXT
        starts[op] = turn + RUN
        first, made = int(arrays.use_ptr[op]), int(arrays.made_ptr[op])
        address, here = 0, []
        for k in range(first, int(arrays.use_ptr[op + 1])):
            t = int(arrays.use[k])
            uses[t] -= 1
            if not arrays.bytes[t]:
                continue
            valid[t] &= k < made and not arrays.writes[k]
            ends: Ending = "dead"
            if uses[t] or arrays.kept[t]:
                ends = "drop" if valid[t] else "out"
                valid[t] = True
            times = (turn + IN, turn + RUN, turn + LEAVE, turn + END if ends == "out" else turn + LEAVE)
            here.append(len(stays))
            stays.append(TimedResidency(t, "in" if k < made else "made", ends, *times, (op,)))
            space.at.append(address)
            space.after.append(list(before))
            address += int(arrays.bytes[t])
        before = here or before
    return nodes_of(arrays, [*map(int, order)], starts.tolist(), stays, space)
