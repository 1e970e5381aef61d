"""The best partition of gradients into groups, exactly, for any costs: fronts of states at each boundary.

In the model of Cupcake (section 5.4.1) a prefix of groups matters by when its stream and its channel end, and nothing
later ends sooner if one of them ends later. So at each boundary only states that no other one beats in both are kept;
with decoding after all other work also by when that ends and how much of it there is. States that cannot end before a
simple partition does are dropped. A group may have one of several options. Polynomial, and independent of the search of
the paper in cupcake_search.py. Of equal times the fewest groups among the states that are left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from treadle.planner.passes.compression.group_costs import GroupCosts, Grouping, Times, grouping_of
from treadle.planner.search.clock import Expired, never

SPLITS = (1, 2, 4, 8, 16, 32, 64)
"""Groups of the even partitions that a search begins from."""


class _States(NamedTuple):
    """States: their boundary, `at` [states, 2 or 4], when each may end at best, its groups, and where it comes from."""

    boundary: Times
    at: Times
    ends: Times
    groups: Times
    parent: Times
    option: Times


def best_grouping(
    alternatives: Sequence[GroupCosts],
    *,
    starts: Sequence[Grouping] = (),
    width: int | None = None,
    expired: Expired = never,
) -> Grouping:
    """The partition of least time and the option of each of its groups; the best simple one or of `starts` if `expired`
    before.

    alternatives: options with the same backward pass and the same limit of bytes. width: the most states that are kept
    at a boundary, those that may end first; with a limit the result need not be the best.
    """
    count = len(alternatives[0].backward)
    passed = np.concatenate([[0], np.cumsum(alternatives[0].backward)])
    start = min([*starts, *simple(alternatives)], key=lambda one: one.key)
    rest = _Rest(alternatives, passed)
    tail = any(costs.decode.any() for costs in alternatives)
    zero = np.zeros(1, np.int64)
    states = _States(zero, np.zeros((1, 4 if tail else 2), np.int64), zero, zero, zero, zero)
    for boundary in range(1, count + 1):
        if expired():
            return replace(start, cut=True)
        found = [
            _extended(states, costs, number, boundary, passed, rest, start.ns)
            for number, costs in enumerate(alternatives)
        ]
        states = _joined([states, _front(_joined(found), width)])
    last = np.flatnonzero(states.boundary == count)
    if not len(last):
        return start
    at = states.at[last]
    time = np.maximum(at[:, 0] + at[:, 3], at[:, 2]) if tail else at[:, 1]
    rows = last[time == time.min()]
    return min((_path(alternatives, states, int(row)) for row in rows), key=lambda one: one.key)


def _joined(parts: Sequence[_States]) -> _States:
    return _States(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def simple(alternatives: Sequence[GroupCosts]) -> list[Grouping]:
    """For each option the partitions into equally many gradients, into buckets of equal time on the channel, and into
    single gradients; groups are cut where the limit of bytes is met."""
    found = []
    for number, costs in enumerate(alternatives):
        count = len(costs.backward)
        numbers = np.arange(count)
        partitions = {tuple(range(count))}
        for parts in SPLITS:
            even = (numbers + 1) * parts // count > numbers[:, None] * parts // count
            partitions.add(_cut(costs, even))
            partitions.add(_cut(costs, costs.send >= costs.send[0, count - 1] // parts))
        found += [grouping_of(alternatives, ends, [number] * len(ends)) for ends in sorted(partitions)]
    return found


def _cut(costs: GroupCosts, full: NDArray[np.bool_]) -> tuple[int, ...]:
    """The ends of groups that are closed when they are full or could not take the next gradient."""
    count = len(costs.backward)
    ends, first = [], 0
    for last in range(count):
        if last + 1 == count or full[first, last] or not costs.allowed[first, last + 1]:
            ends.append(last)
            first = last + 1
    return tuple(ends)


class _Rest:
    """What the gradients from each boundary on take at least: the stream, the channel, all decodings, the last send."""

    def __init__(self, alternatives: Sequence[GroupCosts], passed: Times) -> None:
        large = np.iinfo(np.int64).max // 4
        count = len(passed) - 1

        def least(tables: Sequence[Times]) -> Times:
            within = [np.where(costs.allowed, table, large) for costs, table in zip(alternatives, tables, strict=True)]
            return _least(np.min(within, axis=0))

        self.encode = least([costs.encode for costs in alternatives])
        self.send = least([costs.send for costs in alternatives])
        self.decode = least([costs.decode for costs in alternatives])
        last = np.min([np.where(costs.allowed, costs.send, large)[:, count - 1] for costs in alternatives], axis=0)
        self.last = np.append(np.minimum.accumulate(last[::-1])[::-1], 0)
        self.backward = passed[-1] - passed


def _least(table: Times) -> Times:
    """The least sum of a partition of the gradients from each boundary on."""
    count = len(table)
    found = np.zeros(count + 1, np.int64)
    for first in reversed(range(count)):
        found[first] = (table[first, first:] + found[first + 1 :]).min()
    return found


def _extended(
    states: _States,
    costs: GroupCosts,
    number: int,
    boundary: int,
    passed: Times,
    rest: _Rest,
    most: int,
) -> _States:
    """All states at `boundary` by one more group of option `number` that may still end by `most`."""
    parent = np.flatnonzero(costs.allowed[states.boundary, boundary - 1])
    first, at = states.boundary[parent], states.at[parent]
    encode, send = costs.encode[first, boundary - 1], costs.send[first, boundary - 1]
    computed = at[:, 0] + (passed[boundary] - passed[first]) + encode
    sent = np.maximum(computed, at[:, 1]) + send
    stream = computed + rest.backward[boundary] + rest.encode[boundary]
    ends = np.maximum(stream + rest.last[boundary], sent + rest.send[boundary])
    columns = [computed, sent]
    if at.shape[1] == 4:
        decode = costs.decode[first, boundary - 1]
        decoded, tail = np.maximum(at[:, 2], sent) + decode, at[:, 3] + decode
        ends = np.maximum(ends, np.maximum(stream + tail, decoded) + rest.decode[boundary])
        columns += [decoded, tail]
    kept = np.flatnonzero(ends <= most)
    parent = parent[kept]
    place, option = np.full(len(kept), boundary), np.full(len(kept), number)
    at = np.stack([column[kept] for column in columns], 1)
    return _States(place, at, ends[kept], states.groups[parent] + 1, parent, option)


def _front(states: _States, width: int | None) -> _States:
    """The states that no other one beats, of equal ones that of fewest groups; of these `width` that may end first."""
    at = states.at
    order = np.lexsort((states.parent, states.groups, *reversed(at.T)))
    at = at[order]
    if at.shape[1] == 2:
        before = np.minimum.accumulate(at[:, 1])
        kept = np.flatnonzero(np.append(True, at[1:, 1] < before[:-1])[: len(at)])
    else:
        rows: list[int] = []
        for row in range(len(at)):
            if not (at[rows] <= at[row]).all(1).any():
                rows.append(row)
        kept = np.array(rows, np.int64)
    kept = order[kept]
    if width is not None and len(kept) > width:
        kept = np.sort(kept[np.argsort(states.ends[kept], kind="stable")[:width]])
    return _States(*(part[kept] for part in states))


def _path(alternatives: Sequence[GroupCosts], states: _States, row: int) -> Grouping:
    """The partition that led to a state."""
    ends: list[int] = []
    chosen: list[int] = []
    while row:
        ends.append(int(states.boundary[row]) - 1)
        chosen.append(int(states.option[row]))
        row = int(states.parent[row])
    return grouping_of(alternatives, ends[::-1], chosen[::-1])
