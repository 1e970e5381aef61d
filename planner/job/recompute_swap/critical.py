"""Which copies of a swap plan compute waits for, and for how long."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from treadle.planner.job.recompute_swap.scoring import QuickPlan
from treadle.planner.passes.swap.arrays import COMPUTE, IN, OUT, Ints
from treadle.planner.passes.swap.replay import replay


def delays(plan: QuickPlan) -> dict[str, int]:
    """By tensor id the ns for which compute waits on a chain of copies that its copies are part of.

    From every operator that starts late one walks back over what ended just when the next began: copies in that the
    operator waited for, copies before them on their stream or that made room for them, until compute was busy.
    """
    nodes, tensors = plan.nodes, plan.problem.tensors
    timed = replay(plan.arrays, nodes)
    start, end = timed.start, timed.end
    kind, item = nodes.kind, nodes.item
    on_stream = {stream: _by_start(np.flatnonzero(kind == stream), start) for stream in (COMPUTE, IN, OUT)}
    before = {int(b): int(a) for order in on_stream.values() for a, b in pairwise(order)}
    found: dict[str, int] = {}
    for node in map(int, on_stream[COMPUTE]):
        previous = before.get(node)
        free = int(end[previous]) if previous is not None else 0
        idle = int(start[node]) - free
        if idle <= 0:
            continue
        chain: dict[int, None] = {}
        at = node
        while at >= 0 and start[at] > free:
            waited = nodes.after[nodes.after_ptr[at] : nodes.after_ptr[at + 1]].tolist()
            if at in before and kind[at] != COMPUTE:
                waited.append(before[at])
            blockers = [other for other in waited if end[other] == start[at] and other not in chain]
            at = max(blockers, key=lambda other: (kind[other] != COMPUTE, other), default=-1)
            if at >= 0:
                chain[at] = None
        for other in chain:
            if kind[other] in (IN, OUT):
                tensor = tensors[int(item[other])].id
                found[tensor] = found.get(tensor, 0) + idle
    return found


def _by_start(nodes: Ints, start: Ints) -> list[int]:
    return [int(node) for node in sorted(nodes, key=lambda node: (start[node], node))]
