"""Early write-back: copies out that begin when their tensor was last written, while operators still read it.

SwapAdvisor (section 4.3) copies a victim out after its last user. No operator writes the tensor after its last write,
so the copy may overlap with the readers; the place is free when both have ended. A copy out then is two nodes, an early
copy that waits for the last write, and a drop that waits for the last user and for the copy. An early copy may delay
another one on its stream, so every choice is simulated, first with all copies early and then one after another, and
kept where the iteration takes less time.
"""

from __future__ import annotations

import numpy as np

from treadle.planner.passes.swap.arrays import COMPUTE, DROP, IN, OUT, Arrays, Nodes, ints, rows
from treadle.planner.passes.swap.evaluate import time_ns

TRIES = 64
"""Copies that are tried one after another, at most."""


def write_back_early(arrays: Arrays, nodes: Nodes) -> tuple[Nodes, tuple[int, ...]]:
    """The nodes with some copies out early, where that saves time, and the places of these copies."""
    written = last_writes(arrays, nodes)
    best_ns = time_ns(arrays, nodes)
    best: tuple[Nodes, tuple[int, ...]] = (nodes, ())
    chosen = frozenset[int]()
    candidates = sorted(written)
    if best_ns is None or best_ns <= int(arrays.time.sum()) or not candidates:
        return best
    for trial in (frozenset(candidates), *(frozenset({node}) for node in candidates[:TRIES])):
        changed = chosen ^ trial
        found = split(nodes, {node: written[node] for node in changed})
        ns = time_ns(arrays, found[0])
        if ns is not None and ns < best_ns:
            best, best_ns, chosen = found, ns, changed
    return best


def last_writes(arrays: Arrays, nodes: Nodes) -> dict[int, int]:
    """For each copy out whose tensor is read after it was last written: the node that writes it, -1 for one of an
    iteration before."""
    written: dict[int, int] = {}
    used: dict[int, int] = {}
    found: dict[int, int] = {}
    for node, (kind, item) in enumerate(zip(nodes.kind.tolist(), nodes.item.tolist(), strict=True)):
        if kind == COMPUTE:
            begin, end = int(arrays.use_ptr[item]), int(arrays.use_ptr[item + 1])
            for use, tensor in enumerate(arrays.use[begin:end].tolist(), begin):
                used[tensor] = node
                if use >= arrays.made_ptr[item] or arrays.writes[use]:
                    written[tensor] = node
        elif kind == IN:
            used[item] = written[item] = node
        else:
            if kind == OUT and used.get(item, -1) != written.get(item, -1):
                found[node] = written.get(item, -1)
            used.pop(item, None)
            written.pop(item, None)
    return found


def split(nodes: Nodes, early: dict[int, int]) -> tuple[Nodes, tuple[int, ...]]:
    """The nodes with each copy out in `early` replaced by a copy that waits for the node that `early` names, and a drop
    that waits for the copy and for all that the copy waited for; and the new places of these copies."""
    count = len(nodes.kind)
    wide = np.ones(count, np.int64)
    wide[ints(early)] = 2
    ends = np.cumsum(wide) - 1  # of each node the new place at which its tensor has left
    old = np.repeat(np.arange(count), wide)
    copies = ends[ints(sorted(early))] - 1
    kind = nodes.kind[old]
    kind[copies + 1] = DROP
    after: list[list[int]] = []
    at: list[list[int]] = []
    for node in range(count):
        waits = ends[nodes.after[nodes.after_ptr[node] : nodes.after_ptr[node + 1]]].tolist()
        if node in early:
            after += [[int(ends[early[node]])] if early[node] >= 0 else [], [*waits, int(ends[node]) - 1]]
            at += [[], []]
        else:
            after.append(waits)
            at.append(nodes.at[nodes.at_ptr[node] : nodes.at_ptr[node + 1]].tolist())
    after_ptr, after_flat = rows(after)
    at_ptr, at_flat = rows(at)
    found = nodes._replace(
        kind=kind, item=nodes.item[old], serves=nodes.serves[old],
        after_ptr=after_ptr, after=after_flat, at_ptr=at_ptr, at=at_flat,
    )  # fmt: skip
    return found, tuple(map(int, copies))
