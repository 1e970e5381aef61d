"""One pass of the swap planner over a fixed order (SwapAdvisor, section 4.3).

The scan tracks the residents and free objects of each class. An arriving tensor takes a free object: an unused one,
else the one whose dead tensor was used longest ago. With `newest` an output, which cannot arrive early, takes the one
whose dead tensor was used last, and leaves the others to copies in. If no object is free, the victim is the resident of
the furthest next use (Belady) among those last used at least `threshold` operators before; ties prefer one with a valid
copy on the host, then the least recently used, then the lowest number. Edges that others imply are left out: to later
users of a copy, from the arrival of a victim (its last user came later), and from the last user of a dead tensor to an
operator that makes another in its place.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from treadle.planner.passes.swap.arrays import COMPUTE, DROP, IN, OUT, Arrays, Flags, Ints, Nodes
from treadle.planner.passes.swap.heap import pop, push, rank
from treadle.planner.search.compiled import compiled


class ScanResult(NamedTuple):
    """feasible: whether all of the order is planned. pressure: per use, whether the class of the tensor was full.
    removed, resident: per tensor, whether it was removed from the initial residents, and whether it is on the device
    after the last operator, before the final copies out."""

    feasible: bool
    nodes: Nodes
    pressure: Flags
    removed: Flags
    resident: Flags


@compiled
def next_uses(a: Arrays, order: Ints) -> tuple[Ints, Ints]:
    """Per use the place in `order` of the next operator that reads the tensor, per tensor the first such place; the
    number of operators if there is no such place."""
    n = len(order)
    following = np.full(len(a.use), n, np.int64)
    first = np.full(len(a.bytes), n, np.int64)
    for j in range(n - 1, -1, -1):
        op = order[j]
        for k in range(a.use_ptr[op], a.use_ptr[op + 1]):
            following[k] = first[a.use[k]]
        for k in range(a.use_ptr[op], a.made_ptr[op]):
            first[a.use[k]] = j
    return following, first


@compiled
def scan(
    a: Arrays,
    order: Ints,
    following: Ints,
    first: Ints,
    class_of: Ints,
    counts: Ints,
    sizes: Ints,
    base: Ints,
    bias: Ints,
    threshold: int,
    newest: bool,
    initial: Ints,
    known: Flags,
    removing: bool,
) -> ScanResult:
    """Plan `order` with `counts[q]` objects of `sizes[q]` bytes from address `base[q]` on for class q.

    class_of: per tensor. bias: per use, added to the next use of the tensor where victims are compared. newest: an
    output takes the object that was freed last. initial: the initial residents, the furthest first use first. known:
    per use, pressure that removes no initial resident; with `removing` any other pressure takes the object of the
    initial resident of the class with the furthest first use, if any, instead of evicting. Once that resident's first
    use has passed, the class only evicts.
    """
    n, tensors, classes = len(order), len(a.bytes), len(counts)
    most = 2 * len(a.use) + n + tensors
    kind, item, serves = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.int64)
    after_ptr, after = np.zeros(most + 1, np.int64), np.empty(3 * most, np.int64)
    at_ptr, at = np.zeros(most + 1, np.int64), np.empty(len(a.use) * 2, np.int64)
    nodes, edges, places = 0, 0, 0
    node_of = np.empty(n, np.int64)
    wait = np.empty(2 * len(a.use) + 1, np.int64)

    resident, removed = np.zeros(tensors, np.bool_), np.zeros(tensors, np.bool_)
    valid = a.on_host.copy()
    last, mark = np.full(tensors, -1, np.int64), np.full(tensors, -1, np.int64)
    left, place = np.full(tensors, -1, np.int64), np.zeros(tensors, np.int64)
    pressure = np.zeros(len(a.use), np.bool_)

    untouched, fresh = counts.copy(), base.copy()
    head, tail = np.full(classes, -1, np.int64), np.full(classes, -1, np.int64)  # dead tensors whose objects are free
    behind, ahead = np.full(tensors, -1, np.int64), np.full(tensors, -1, np.int64)
    cursor, frozen = np.zeros(classes, np.int64), np.zeros(classes, np.bool_)
    tight, heap_at = _heaps(a, class_of, counts, initial)
    heap, held = np.empty(heap_at[classes], np.int64), np.zeros(classes, np.int64)
    aside = np.empty(tensors + 1, np.int64)

    for i in range(len(initial)):
        t = initial[i]
        q = class_of[t]
        resident[t], place[t], valid[t] = True, fresh[q], not a.written[t]
        if q >= 0:
            untouched[q] -= 1
            fresh[q] += sizes[q]
            if tight[q]:
                push(heap, heap_at[q], held[q], rank(first[t], valid[t], -1, t, n, tensors))
                held[q] += 1

    initial_at = place[initial]

    feasible = True
    for j in range(n):
        op = order[j]
        begin, made, end = a.use_ptr[op], a.made_ptr[op], a.use_ptr[op + 1]
        for k in range(begin, end):
            mark[a.use[k]] = j
        waits = 0
        for k in range(begin, end):
            t = a.use[k]
            q = class_of[t]
            if q < 0 or resident[t]:
                continue
            room = -1  # the node whose end makes room; -1 for none
            address = -1
            if newest and k >= made and head[q] >= 0:
                dead = tail[q]
                tail[q] = ahead[dead]
                if tail[q] < 0:
                    head[q] = -1
                else:
                    behind[tail[q]] = -1
                address = place[dead]
            elif untouched[q] > 0:
                untouched[q] -= 1
                address = fresh[q]
                fresh[q] += sizes[q]
            elif head[q] >= 0:
                dead = head[q]
                head[q] = behind[dead]
                if head[q] >= 0:
                    ahead[head[q]] = -1
                address = place[dead]
                if k < made:
                    room = node_of[last[dead]]
            else:
                pressure[k] = True
                if removing and not known[k] and not frozen[q]:
                    c = cursor[q]
                    while c < len(initial) and class_of[initial[c]] != q:
                        c += 1
                    cursor[q] = c + 1
                    if c < len(initial):
                        v = initial[c]
                        removed[v] = True
                        if resident[v] and last[v] < 0 and mark[v] != j:
                            resident[v], valid[v] = False, True
                            address = place[v]
                        else:
                            frozen[q] = True
            if address < 0:
                v, held[q] = _victim(heap, heap_at[q], held[q], j, threshold, n, tensors, resident, last, mark, aside)
                if v < 0:
                    feasible = False
                    break
                address = place[v]
                kind[nodes], item[nodes], serves[nodes] = DROP if valid[v] else OUT, v, j
                if last[v] >= 0:
                    after[edges] = node_of[last[v]]
                    edges += 1
                resident[v], valid[v], left[v] = False, True, nodes
                room = nodes
                nodes += 1
                after_ptr[nodes], at_ptr[nodes] = edges, places
            if k < made:
                kind[nodes], item[nodes], serves[nodes] = IN, t, j
                low, high = min(room, left[t]), max(room, left[t])
                if low >= 0 and low != high:
                    after[edges] = low
                    edges += 1
                if high >= 0:
                    after[edges] = high
                    edges += 1
                at[places] = address
                places += 1
                room = nodes
                nodes += 1
                after_ptr[nodes], at_ptr[nodes] = edges, places
            if room >= 0:
                wait[waits] = room
                waits += 1
            resident[t], place[t] = True, address
        if not feasible:
            break
        kind[nodes], item[nodes], serves[nodes] = COMPUTE, op, j
        if j:
            after[edges] = node_of[j - 1]
            edges += 1
        for w in range(waits):
            after[edges] = wait[w]
            edges += 1
        for k in range(made, end):
            at[places] = place[a.use[k]]
            places += 1
        node_of[j] = nodes
        nodes += 1
        after_ptr[nodes], at_ptr[nodes] = edges, places
        for k in range(begin, end):
            t = a.use[k]
            q = class_of[t]
            last[t] = j
            if a.writes[k] or k >= made:
                valid[t] = False
            if q < 0:
                continue
            if following[k] == n and not a.kept[t]:
                resident[t] = False
                behind[t], ahead[t] = -1, -1
                if head[q] < 0:
                    head[q] = t
                else:
                    behind[tail[q]], ahead[t] = t, tail[q]
                tail[q] = t
            elif tight[q]:
                reach = min(2 * n, max(j + 1, following[k] + bias[k]))
                push(heap, heap_at[q], held[q], rank(reach, valid[t], j, t, n, tensors))
                held[q] += 1

    stays = np.zeros(tensors, np.bool_)
    for t in initial:
        stays[t] = not removed[t]
    for t in range(tensors):
        if resident[t] and a.persistent[t] and not stays[t]:
            kind[nodes], item[nodes], serves[nodes] = DROP if valid[t] else OUT, t, n
            after[edges] = node_of[last[t]]
            edges += 1
            nodes += 1
            after_ptr[nodes], at_ptr[nodes] = edges, places
    found = Nodes(
        kind[:nodes].copy(),
        item[:nodes].copy(),
        serves[:nodes].copy(),
        after_ptr[: nodes + 1].copy(),
        after[:edges].copy(),
        at_ptr[: nodes + 1].copy(),
        at[:places].copy(),
        initial,
        initial_at,
        place[initial],
    )
    return ScanResult(feasible, found, pressure, removed, resident)


@compiled
def _heaps(a: Arrays, class_of: Ints, counts: Ints, initial: Ints) -> tuple[Flags, Ints]:
    """Which classes have more tensors than objects, and where the heap of each of those starts; last, their end."""
    classes = len(counts)
    members, entries = np.zeros(classes, np.int64), np.zeros(classes, np.int64)
    for t in range(len(a.bytes)):
        if class_of[t] >= 0:
            members[class_of[t]] += 1
    for k in range(len(a.use)):
        if class_of[a.use[k]] >= 0:
            entries[class_of[a.use[k]]] += 1
    for t in initial:
        if class_of[t] >= 0:
            entries[class_of[t]] += 1
    tight = members > counts
    start = np.zeros(classes + 1, np.int64)
    for q in range(classes):
        start[q + 1] = start[q] + (entries[q] if tight[q] else 0)
    return tight, start


@compiled
def _victim(
    heap: Ints,
    at: int,
    held: int,
    j: int,
    threshold: int,
    n: int,
    tensors: int,
    resident: Flags,
    last: Ints,
    mark: Ints,
    aside: Ints,
) -> tuple[int, int]:
    """(the victim for operator j, entries left in the heap); -1 if all residents belong to the operator. Entries of
    earlier uses and residencies are discarded when they come up."""
    skipped, victim, second = 0, -1, -1
    while held:
        key = pop(heap, at, held)
        held -= 1
        t = key % tensors
        used = key // tensors % (n + 1) - 1
        if not resident[t] or last[t] != used:
            continue
        if mark[t] != j:
            if used < j - threshold:
                victim = t
                break
            if second < 0:
                second = key
                continue
        aside[skipped] = key
        skipped += 1
    if victim < 0 and second >= 0:
        victim = second % tensors
    elif second >= 0:
        push(heap, at, held, second)
        held += 1
    for i in range(skipped):
        push(heap, at, held, aside[i])
        held += 1
    return victim, held
