"""One pass of the planner over memory without classes: one count of bytes, or addresses.

As treadle.planner.passes.swap.scan, but a tensor takes its own bytes and no whole object, and several may have to leave
for one.

* bytes: arriving tensors take unused bytes, then those free longest; an output, which cannot arrive early, first takes
  what dead tensors freed last, and leaves the others to copies in. Victims are those of the furthest next use (Belady),
  as many as necessary; of these the ones of the nearest next use stay if the others free enough.
* offset: arriving tensors take the smallest fitting hole, an initial resident the place it started at if that is free.
  Without a hole the victims are the window of neighbours whose copies cost least per operator until their next use.

After its last use in an iteration, the next use of a persistent tensor is its first one in the next iteration.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from treadle.planner.passes.swap.arrays import COMPUTE, DROP, IN, OUT, Arrays, Flags, Ints, Nodes
from treadle.planner.passes.swap.blocks import Blocks, best_hole, cheapest_window, empty, give_back, hole_at, take
from treadle.planner.passes.swap.heap import pop, push, rank
from treadle.planner.search.compiled import compiled

FINE = 1000
"""Units of a window's cost per ns."""
LATE = 2**44
"""Additional cost of a tensor that was used too recently: it leaves only if no other can."""


class SpanScanResult(NamedTuple):
    """As treadle.planner.passes.swap.scan.ScanResult; `at`: the last address of each tensor."""

    feasible: bool
    nodes: Nodes
    at: Ints
    pressure: Flags
    removed: Flags
    resident: Flags


@compiled
def span_scan(
    a: Arrays,
    order: Ints,
    following: Ints,
    first: Ints,
    bias: Ints,
    room: int,
    addressed: bool,
    threshold: int,
    initial: Ints,
    initial_at: Ints,
    known: Flags,
    removing: bool,
) -> SpanScanResult:
    """Plan `order` in `room` bytes; `addressed`: with addresses. bias: per use, added to the next use of the tensor
    where victims are compared. All else as for treadle.planner.passes.swap.scan.scan."""
    n, tensors = len(order), len(a.bytes)
    most = 2 * len(a.use) + n + tensors
    kind, item, serves = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.int64)
    after_ptr, after = np.zeros(most + 1, np.int64), np.empty(8 * most, np.int64)
    at_ptr, at = np.zeros(most + 1, np.int64), np.empty(len(a.use) * 2, np.int64)
    nodes, edges, places = 0, 0, 0
    node_of = np.empty(n, np.int64)
    sources = np.empty(tensors + len(a.use) + 2, np.int64)
    wait = np.empty(most, np.int64)

    resident, removed = np.zeros(tensors, np.bool_), np.zeros(tensors, np.bool_)
    valid = a.on_host.copy()
    last, mark = np.full(tensors, -1, np.int64), np.full(tensors, -1, np.int64)
    left, place = np.full(tensors, -1, np.int64), np.zeros(tensors, np.int64)
    home = np.full(tensors, -1, np.int64)
    reach = np.zeros(tensors, np.int64)  # the next use, as victims are compared
    pressure = np.zeros(len(a.use), np.bool_)
    cursor, frozen = 0, False

    fresh, loose = room, 0  # unused bytes, and freed ones
    ring_node, ring_bytes = np.empty(most, np.int64), np.empty(most, np.int64)
    head, tail = 0, 0
    heap, aside = np.empty(len(a.use) + tensors + 1, np.int64), np.empty(len(a.use) + tensors + 1, np.int64)
    held = 0
    chosen, needed = np.empty(tensors + 1, np.int64), np.empty(tensors + 1, np.int64)

    blocks = empty(len(a.use) + 2 * tensors if addressed else 0, room)
    block_of = np.full(tensors, -1, np.int64)
    cost, pinned = np.zeros(tensors, np.int64), np.zeros(tensors, np.bool_)

    for i in range(len(initial)):
        t = initial[i]
        resident[t], place[t], home[t], valid[t] = True, initial_at[i], initial_at[i], not a.written[t]
        reach[t] = first[t]
        fresh -= a.bytes[t]
        if a.bytes[t] == 0:
            continue
        if addressed:
            block_of[t], _ = take(blocks, blocks.above[0], initial_at[i], a.bytes[t], t, sources)
        else:
            push(heap, 0, held, rank(reach[t], valid[t], -1, t, n, tensors))
            held += 1

    feasible = True
    for j in range(n):
        op = order[j]
        begin, made, end = a.use_ptr[op], a.made_ptr[op], a.use_ptr[op + 1]
        for k in range(begin, end):
            mark[a.use[k]] = j
        waits = 0
        for k in range(begin, end):
            t = a.use[k]
            need = a.bytes[t]
            if need == 0 or resident[t]:
                continue
            address, hole, victims = -1, -1, 0
            while True:  # until there is room, or none can be made
                if addressed:
                    hole = hole_at(blocks, home[t], need) if home[t] >= 0 else -1
                    address = home[t]
                    if hole < 0:
                        hole = best_hole(blocks, need)
                        address = blocks.at[hole] if hole >= 0 else -1
                elif fresh + loose >= need:
                    address = 0
                if address >= 0:
                    break
                pressure[k] = True
                if removing and not known[k] and not frozen and cursor < len(initial):
                    v = initial[cursor]
                    cursor += 1
                    removed[v] = True
                    if resident[v] and last[v] < 0 and mark[v] != j:
                        resident[v], valid[v] = False, True
                        fresh += a.bytes[v]
                        if addressed and a.bytes[v]:
                            give_back(blocks, block_of[v], -1, kind)
                    else:
                        frozen = True
                    continue
                if addressed:
                    victims = _window(a, blocks, need, j, threshold, n, reach, valid, last, mark, cost, pinned, chosen)
                else:
                    victims, held = _victims(
                        a, heap, held, need - fresh - loose, j, threshold, n, tensors, resident, last, mark, aside,
                        chosen, needed,
                    )  # fmt: skip
                if victims == 0:
                    break
                for i in range(victims):
                    v = chosen[i]
                    kind[nodes], item[nodes], serves[nodes] = DROP if valid[v] else OUT, v, j
                    if last[v] >= 0:
                        after[edges] = node_of[last[v]]
                        edges += 1
                    resident[v], valid[v], left[v] = False, True, nodes
                    if addressed:
                        give_back(blocks, block_of[v], nodes, kind)
                    else:
                        ring_node[tail], ring_bytes[tail] = nodes, a.bytes[v]
                        tail += 1
                        loose += a.bytes[v]
                    nodes += 1
                    after_ptr[nodes], at_ptr[nodes] = edges, places
            if address < 0:
                feasible = False
                break
            count = 0
            if addressed:
                block_of[t], count = take(blocks, hole, address, need, t, sources)
            else:
                used = 0
                while k >= made and used < need and tail > head and kind[ring_node[tail - 1]] == COMPUTE:
                    part = min(need - used, ring_bytes[tail - 1])
                    used += part
                    loose -= part
                    ring_bytes[tail - 1] -= part
                    if ring_bytes[tail - 1] == 0:
                        tail -= 1
                part = min(need - used, fresh)
                fresh -= part
                used += part
                while used < need:
                    part = min(need - used, ring_bytes[head])
                    sources[count] = ring_node[head]
                    count += 1
                    used += part
                    loose -= part
                    ring_bytes[head] -= part
                    if ring_bytes[head] == 0:
                        head += 1
            if k < made:
                kind[nodes], item[nodes], serves[nodes] = IN, t, j
                if left[t] >= 0:
                    sources[count] = left[t]
                    count += 1
                edges = _edges(after, edges, sources, count)
                at[places] = address
                places += 1
                wait[waits] = nodes
                waits += 1
                nodes += 1
                after_ptr[nodes], at_ptr[nodes] = edges, places
            else:
                for i in range(count):
                    if kind[sources[i]] != COMPUTE:
                        wait[waits] = sources[i]
                        waits += 1
            resident[t], place[t] = True, address
        if not feasible:
            break
        kind[nodes], item[nodes], serves[nodes] = COMPUTE, op, j
        if j:
            wait[waits] = node_of[j - 1]
            waits += 1
        edges = _edges(after, edges, wait, waits)
        for k in range(made, end):
            at[places] = place[a.use[k]]
            places += 1
        node_of[j] = nodes
        nodes += 1
        after_ptr[nodes], at_ptr[nodes] = edges, places
        for k in range(begin, end):
            t = a.use[k]
            last[t] = j
            if a.writes[k] or k >= made:
                valid[t] = False
            if a.bytes[t] == 0:
                continue
            if following[k] == n and not a.kept[t]:
                resident[t] = False
                if addressed:
                    give_back(blocks, block_of[t], node_of[j], kind)
                else:
                    ring_node[tail], ring_bytes[tail] = node_of[j], a.bytes[t]
                    tail += 1
                    loose += a.bytes[t]
                continue
            later = following[k]
            if later == n:
                later = n + first[t] if a.persistent[t] else 2 * n
            reach[t] = min(2 * n, max(j + 1, later + bias[k]))
            if not addressed:
                push(heap, 0, held, rank(reach[t], valid[t], j, t, n, tensors))
                held += 1

    stays = np.zeros(tensors, np.bool_)
    for t in initial:
        stays[t] = not removed[t]
    for t in range(tensors):
        if feasible and resident[t] and a.persistent[t] and a.bytes[t] and not stays[t]:
            kind[nodes], item[nodes], serves[nodes] = DROP if valid[t] else OUT, t, n
            after[edges] = node_of[last[t]]
            edges += 1
            nodes += 1
            after_ptr[nodes], at_ptr[nodes] = edges, places
    start = np.sort(initial)
    start_at = np.zeros(len(start), np.int64)
    for i in range(len(start)):
        start_at[i] = home[start[i]]
    found = Nodes(
        kind[:nodes].copy(),
        item[:nodes].copy(),
        serves[:nodes].copy(),
        after_ptr[: nodes + 1].copy(),
        after[:edges].copy(),
        at_ptr[: nodes + 1].copy(),
        at[:places].copy(),
        start,
        start_at,
        start_at,
    )
    return SpanScanResult(feasible, found, place, pressure, removed, resident)


@compiled
def _edges(after: Ints, edges: int, sources: Ints, count: int) -> int:
    """Write the first `count` of `sources`, ascending, each once; return the number of edges."""
    sources[:count].sort()
    for i in range(count):
        if i == 0 or sources[i] != sources[i - 1]:
            after[edges] = sources[i]
            edges += 1
    return edges


@compiled
def _victims(
    a: Arrays,
    heap: Ints,
    held: int,
    short: int,
    j: int,
    threshold: int,
    n: int,
    tensors: int,
    resident: Flags,
    last: Ints,
    mark: Ints,
    aside: Ints,
    chosen: Ints,
    keys: Ints,
) -> tuple[int, int]:
    """(number of victims, entries left in the heap): victims of at least `short` bytes are written to `chosen`; 0 if
    there are none. Tensors used at most `threshold` operators ago leave only if the others are too few."""
    skipped, late, count, freed = 0, 0, 0, 0
    recent = len(aside)  # recently used ones are kept at the end of `aside`
    while held and freed < short:
        key = pop(heap, 0, held)
        held -= 1
        t = key % tensors
        used = key // tensors % (n + 1) - 1
        if not resident[t] or last[t] != used:
            continue
        if mark[t] == j:
            aside[skipped] = key
            skipped += 1
        elif used >= 0 and used >= j - threshold:
            recent -= 1
            late += 1
            aside[recent] = key
        else:
            chosen[count], keys[count] = t, key
            count += 1
            freed += a.bytes[t]
    for i in range(len(aside) - 1, recent - 1, -1):
        if freed < short:
            t = aside[i] % tensors
            chosen[count], keys[count] = t, aside[i]
            count += 1
            freed += a.bytes[t]
        else:
            push(heap, 0, held, aside[i])
            held += 1
    for i in range(skipped):
        push(heap, 0, held, aside[i])
        held += 1
    kept = 0
    for i in range(count - 1, -1, -1):  # the nearest next use first
        if freed - a.bytes[chosen[i]] >= short or freed < short:
            freed -= a.bytes[chosen[i]] if freed >= short else 0
            push(heap, 0, held, keys[i])
            held += 1
            chosen[i] = -1
    for i in range(count):
        if chosen[i] >= 0:
            chosen[kept] = chosen[i]
            kept += 1
    return kept, held


@compiled
def _window(
    a: Arrays,
    blocks: Blocks,
    need: int,
    j: int,
    threshold: int,
    n: int,
    reach: Ints,
    valid: Flags,
    last: Ints,
    mark: Ints,
    cost: Ints,
    pinned: Flags,
    chosen: Ints,
) -> int:
    """The number of victims, which are written to `chosen` by address; 0 if no window can be cleared."""
    block = blocks.above[0]
    while block >= 0:
        t = blocks.tensor[block]
        if t >= 0:
            pinned[t] = mark[t] == j
            if not pinned[t]:
                work = (0 if valid[t] else a.out_ns[t]) + (a.in_ns[t] if reach[t] < 2 * n else 0)
                cost[t] = work * FINE // max(1, reach[t] - j + 1) + 1
                if last[t] >= 0 and last[t] >= j - threshold:
                    cost[t] += LATE
        block = blocks.above[block]
    block = cheapest_window(blocks, need, cost, pinned)
    count, size = 0, 0
    while block >= 0 and size < need:
        size += blocks.bytes[block]
        if blocks.tensor[block] >= 0:
            chosen[count] = blocks.tensor[block]
            count += 1
        block = blocks.above[block]
    return count
