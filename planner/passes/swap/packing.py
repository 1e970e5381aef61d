"""Addresses for a plan that has none: the residencies of a `bytes` plan, packed into one block of memory.

Residencies are packed in the simulated time of the plan: two that are never on the device together may have the same
bytes, and the later one waits for the earlier one. These waits hold in the simulation already, so the packed plan takes
exactly as long. This is dynamic storage allocation: residencies are placed one after another, each into a hole that
fits, in several sequences (by arrival, with the longest or the largest first of equals, and the largest first); those
beyond the end of the memory are placed earlier in the next attempt.

An initial resident is one item of two residencies, its first and its last: it ends where it starts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from treadle.planner.passes.swap.arrays import COMPUTE, IN, Arrays, Ints, Nodes, ints, rows
from treadle.planner.passes.swap.replay import replay
from treadle.planner.search.compiled import compiled

ATTEMPTS = 16
"""Attempts of each sequence, with items beyond the memory moved forward."""
MANY = 40_000
"""Items in all attempts of a sequence: many items get fewer attempts."""
FEW = 2000
"""Items up to which all sequences are tried; with more, those that are rarely best are left out."""
FULL = 64
"""Items on a shelf from which on those that have ended are removed."""
EARLIER = 0.8
"""New place of such an item in the sequence, as a share of its old one."""


class Residencies(NamedTuple):
    """Per residency its tensor, and the nodes with which it begins (-1: with the iteration) and ends (the number of
    nodes: with the iteration)."""

    tensor: Ints
    begin: Ints
    end: Ints


def packed(
    arrays: Arrays, nodes: Nodes, room: int, stop: Callable[[], bool] = lambda: False
) -> tuple[Nodes | None, int]:
    """The plan with addresses below `room`, if its residencies pack; and the height of the best packing, 2^62 if `stop`
    ended the search before there was one."""
    played = replay(arrays, nodes)
    count = len(nodes.kind)
    line = np.lexsort((np.arange(count), played.end, played.start))
    place = np.empty(count, np.int64)
    place[line] = np.arange(count)
    stays = Residencies(*_stays(arrays, nodes))
    begins, ends = _ranks(played.start, played.end, place)
    low = np.where(stays.begin < 0, -1, begins[np.maximum(stays.begin, 0)])
    high = np.where(stays.end == count, 2 * count, ends[np.minimum(stays.end, count - 1)])
    item, second = _items(stays, nodes, count)
    chosen = np.flatnonzero(item >= 0)
    size = arrays.bytes[stays.tensor]
    low2 = np.where(second >= 0, low[second], -1)
    high2 = np.where(second >= 0, high[second], -2)
    sizes, spans = size[chosen], (low[chosen], high[chosen], low2[chosen], high2[chosen])
    attempts = max(4, min(ATTEMPTS, MANY // (1 + len(sizes))))
    best, height = chosen, 2**62
    for sequence, best_fit in _sequences(sizes, spans[0], spans[1]):
        at, top = _attempts(sequence, sizes, spans, room, best_fit, attempts, stop)
        if top < height:
            best, height = at, top
        if height <= room:
            break
    if height > room:
        return None, int(height)
    address = np.zeros(len(size), np.int64)
    address[chosen] = best
    paired = np.flatnonzero(second >= 0)
    address[second[paired]] = address[paired]
    return _addressed(arrays, nodes, stays, address, low, line, place), int(height)


def _sequences(size: Ints, low: Ints, high: Ints) -> list[tuple[Ints, bool]]:
    """Item numbers in the sequences to try, and whether items take the smallest fitting hole, not the lowest."""
    longest = np.lexsort((-high, low))
    found = [(longest, False), (np.lexsort((-size, low)), False)]
    if len(size) < FEW:
        found += [(longest, True), (np.lexsort((low, -high, -size)), False)]
    return found


@compiled
def _stays(a: Arrays, nodes: Nodes) -> tuple[Ints, Ints, Ints]:
    """Tensor, first and last node of every residency, by first node."""
    count, tensors = len(nodes.kind), len(a.bytes)
    most = len(nodes.initial) + count + len(a.use)
    tensor, begin, end = np.empty(most, np.int64), np.empty(most, np.int64), np.full(most, count, np.int64)
    uses, open_ = np.zeros(tensors, np.int64), np.full(tensors, -1, np.int64)
    for k in range(len(a.use)):
        uses[a.use[k]] += 1
    stays = 0
    for t in nodes.initial:
        if a.bytes[t]:
            tensor[stays], begin[stays], open_[t] = t, -1, stays
            stays += 1
    for i in range(count):
        item = nodes.item[i]
        if nodes.kind[i] != COMPUTE:
            if a.bytes[item] == 0:
                continue
            if nodes.kind[i] == IN:
                tensor[stays], begin[stays], open_[item] = item, i, stays
                stays += 1
            else:
                end[open_[item]] = i
                open_[item] = -1
            continue
        for k in range(a.use_ptr[item], a.use_ptr[item + 1]):
            t = a.use[k]
            uses[t] -= 1
            if a.bytes[t] == 0:
                continue
            if k >= a.made_ptr[item]:
                tensor[stays], begin[stays], open_[t] = t, i, stays
                stays += 1
            if uses[t] == 0 and not a.kept[t]:
                end[open_[t]] = i
                open_[t] = -1
    return tensor[:stays], begin[:stays], end[:stays]


def _ranks(start: Ints, end: Ints, place: Ints) -> tuple[Ints, Ints]:
    """Start and end of each node as numbers: one node has ended before another starts if its number is lower. At one
    moment the nodes' new places decide, so that waits go forward."""
    count = len(start)
    side = np.repeat(np.array([0, 1]), count)
    line = np.lexsort((side, np.concatenate((place, place)), np.concatenate((start, end))))
    rank = np.empty(2 * count, np.int64)
    rank[line] = np.arange(2 * count)
    return rank[:count], rank[count:]


def _items(stays: Residencies, nodes: Nodes, count: int) -> tuple[Ints, Ints]:
    """Per residency: 0 if it is placed on its own, -1 if with another; and the residency placed with it (-1: none)."""
    item, second = np.zeros(len(stays.tensor), np.int64), np.full(len(stays.tensor), -1, np.int64)
    first = {int(stays.tensor[s]): int(s) for s in np.flatnonzero(stays.begin < 0)}
    for s in np.flatnonzero((stays.end == count) & (stays.begin >= 0)):
        other = first.get(int(stays.tensor[s]))
        if other is not None:
            item[s], second[other] = -1, s
    return item, second


def _attempts(
    sequence: Ints,
    size: Ints,
    spans: tuple[Ints, Ints, Ints, Ints],
    room: int,
    best_fit: bool,
    attempts: int,
    stop: Callable[[], bool],
) -> tuple[Ints, int]:
    """The lowest packing of some attempts, and its height."""
    best, height = np.zeros(len(size), np.int64), 2**62
    for _ in range(attempts):
        if stop():
            break
        at, top = _pack(sequence, size, *spans, best_fit)
        if top < height:
            best, height = at, top
        if height <= room:
            break
        line = np.arange(len(sequence))
        outside = (at + size > room)[sequence]
        sequence = sequence[np.argsort(np.where(outside, EARLIER * line - 0.5, line), kind="stable")]
    return best, height


@compiled
def _pack(
    sequence: Ints, size: Ints, low: Ints, high: Ints, low2: Ints, high2: Ints, best_fit: bool
) -> tuple[Ints, int]:
    """Addresses of items that are placed in this sequence, and the end of the highest. `shelf`: placed items by
    address, without those that end before all remaining ones begin."""
    at = np.zeros(len(size), np.int64)
    shelf = np.empty(len(size), np.int64)
    least = np.empty(len(size), np.int64)  # beginning of all from here on
    for p in range(len(sequence) - 1, -1, -1):
        least[p] = low[sequence[p]] if p == len(sequence) - 1 else min(low[sequence[p]], least[p + 1])
    placed, highest, full = 0, 0, FULL
    for step in range(len(sequence)):
        i = sequence[step]
        if placed > full:
            stays = 0
            for p in range(placed):
                if max(high[shelf[p]], high2[shelf[p]]) >= least[step]:
                    shelf[stays] = shelf[p]
                    stays += 1
            placed, full = stays, 2 * stays + FULL
        top, spot, gap = 0, -1, 2**62
        for p in range(placed):
            other = shelf[p]
            apart = high[other] < low[i] or high[i] < low[other]
            if apart and high2[other] >= 0:
                apart = high2[other] < low[i] or high[i] < low2[other]
            if apart and high2[i] >= 0:
                apart = high[other] < low2[i] or high2[i] < low[other]
                if apart and high2[other] >= 0:
                    apart = False
            if apart:
                continue
            here = at[other] - top
            if here >= size[i] and here < gap:
                spot, gap = top, here
                if not best_fit:
                    break
            top = max(top, at[other] + size[other])
        at[i] = spot if spot >= 0 else top
        p = placed
        while p > 0 and at[shelf[p - 1]] > at[i]:
            shelf[p] = shelf[p - 1]
            p -= 1
        shelf[p] = i
        placed += 1
        highest = max(highest, at[i] + size[i])
    return at, highest


@compiled
def _reuse(line: Ints, at: Ints, size: Ints, begin: Ints) -> tuple[Ints, Ints]:
    """Pairs of residencies of which the second takes bytes that the first had last; `line`: all, as they begin."""
    most = len(line) + 2
    low, owner = np.zeros(2 * most, np.int64), np.full(2 * most, -1, np.int64)  # cuts of memory, ascending
    cuts = 1
    first, second = np.empty(8 * most, np.int64), np.empty(8 * most, np.int64)
    pairs = 0
    for s in line:
        bottom, top = at[s], at[s] + size[s]
        p = np.searchsorted(low[:cuts], bottom, side="right") - 1
        q = p
        while q < cuts and low[q] < top:
            if owner[q] >= 0 and begin[s] >= 0:
                if pairs == len(first):
                    first = np.concatenate((first, np.empty(pairs, np.int64)))
                    second = np.concatenate((second, np.empty(pairs, np.int64)))
                first[pairs], second[pairs] = owner[q], s
                pairs += 1
            q += 1
        head, tail = low[p] < bottom, q == cuts or low[q] > top
        over = owner[q - 1]
        shift = p + head + 1 + tail - q
        if shift > 0:
            for r in range(cuts - 1, q - 1, -1):
                low[r + shift], owner[r + shift] = low[r], owner[r]
        elif shift < 0:
            for r in range(q, cuts):
                low[r + shift], owner[r + shift] = low[r], owner[r]
        cuts += shift
        p += head
        low[p], owner[p] = bottom, s
        if tail:
            low[p + 1], owner[p + 1] = top, over
    return first[:pairs], second[:pairs]


def _addressed(
    arrays: Arrays, nodes: Nodes, stays: Residencies, address: Ints, low: Ints, line: Ints, place: Ints
) -> Nodes:
    """The nodes in the order in which they start, with addresses and the edges that these imply."""
    count = len(nodes.kind)
    first, second = _reuse(np.argsort(low, kind="stable"), address, arrays.bytes[stays.tensor], stays.begin)
    waits: list[set[int]] = [set() for _ in range(count)]
    for s, e in zip(stays.end[first].tolist(), stays.begin[second].tolist(), strict=True):
        waits[e].add(s)
    for i in range(count):
        waits[i].update(nodes.after[nodes.after_ptr[i] : nodes.after_ptr[i + 1]].tolist())
    kind, new = nodes.kind.tolist(), place.tolist()
    after = []
    for i in line.tolist():
        compute = max((new[w] for w in waits[i] if kind[w] == COMPUTE), default=-1)
        after.append(sorted({new[w] for w in waits[i] if kind[w] != COMPUTE} | ({compute} if compute >= 0 else set())))
    at_of: dict[tuple[int, int], int] = {}
    for t, b, where in zip(stays.tensor.tolist(), stays.begin.tolist(), address.tolist(), strict=True):
        at_of[t, b] = where
    at = []
    for i in line.tolist():
        item = int(nodes.item[i])
        if kind[i] == COMPUTE:
            made = arrays.use[arrays.made_ptr[item] : arrays.use_ptr[item + 1]].tolist()
            at.append([at_of.get((t, i), 0) for t in made])
        else:
            at.append([at_of.get((item, i), 0)] if kind[i] == IN else [])
    after_ptr, after_flat = rows(after)
    at_ptr, at_flat = rows(at)
    initial_at = ints(at_of.get((t, -1), 0) for t in nodes.initial.tolist())
    return Nodes(
        nodes.kind[line],
        nodes.item[line],
        nodes.serves[line],
        after_ptr,
        after_flat,
        at_ptr,
        at_flat,
        nodes.initial,
        initial_at,
        initial_at,
    )
