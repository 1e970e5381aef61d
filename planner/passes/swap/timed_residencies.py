"""From residencies of tensors with their times, as a solver finds them, to the nodes and edges of a plan.

A residency begins with a copy to the device, with the operator that makes the tensor, or with the iteration. It ends
with a copy to the host or a drop, with the last user of a dead tensor, or with the iteration. The nodes and edges are
those of the planner (SwapAdvisor, section 4.3); in addition each copy waits for the one before it on its stream, so
that the streams keep the solver's order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from treadle.planner.passes.swap.arrays import COMPUTE, DROP, IN, OUT, Arrays, Nodes, ints, rows

Ending = Literal["out", "drop", "dead", "end"]


class TimedResidency(NamedTuple):
    """`users` are operators that read or make the tensor meanwhile. Times in any one unit; `leaves` is when the copy to
    the host starts, or when it could be dropped."""

    tensor: int
    begins: Literal["start", "in", "made"]
    ends: Ending
    start: int
    ready: int
    leaves: int
    end: int
    users: tuple[int, ...]


class Addresses(NamedTuple):
    """The address of each residency, and the residencies whose place it takes."""

    at: list[int]
    after: list[list[int]]


def objects(
    stays: Sequence[TimedResidency], class_of: Sequence[int], sizes: Sequence[int], base: Sequence[int]
) -> Addresses:
    """Objects of each class (from 0; -1 for no place), the one free longest first; object i of class q is at address
    base[q] + i * sizes[q]. Initial residents take unused objects."""
    space = Addresses([0] * len(stays), [[] for _ in stays])
    free: dict[int, list[tuple[int, int, int]]] = {}  # (free since, object, residency before)
    taken: dict[int, int] = {}
    for s in _by_start(stays):
        stay = stays[s]
        q = class_of[stay.tensor]
        if q < 0:
            continue
        waiting = free.setdefault(q, [])
        left = [entry for entry in waiting if entry[0] <= stay.start] if stay.begins != "start" else []
        chosen = min(left, default=None)
        if chosen is None:
            number = taken[q] = taken.get(q, -1) + 1
        else:
            waiting.remove(chosen)
            number = chosen[1]
            space.after[s].append(chosen[2])
        waiting.append((stay.end, number, s))
        space.at[s] = base[q] + number * sizes[q]
    return space


def tokens(stays: Sequence[TimedResidency], size: Sequence[int], capacity: int) -> Addresses:
    """Bytes without addresses: each residency takes unused bytes, then those free longest."""
    space = Addresses([0] * len(stays), [[] for _ in stays])
    fresh = capacity
    free: list[tuple[int, int, int]] = []  # (free since, residency before, bytes)
    for s in _by_start(stays):
        stay = stays[s]
        need = size[stay.tensor]
        use = min(need, fresh)
        fresh, need = fresh - use, need - use
        free.sort()
        while need and free and free[0][0] <= stay.start and stay.begins != "start":
            since, before, count = free.pop(0)
            use = min(need, count)
            space.after[s].append(before)
            need -= use
            if count > use:
                free.insert(0, (since, before, count - use))
        free.append((stay.end, s, size[stay.tensor]))
    return space


def addresses(stays: Sequence[TimedResidency], size: Sequence[int], at: Sequence[int]) -> Addresses:
    """Given addresses: a residency waits for all earlier ones that overlap it."""
    space = Addresses(list(at), [[] for _ in stays])
    order = _by_start(stays)
    for place, s in enumerate(order):
        for before in order[:place]:
            low, high = (
                max(at[s], at[before]),
                min(at[s] + size[stays[s].tensor], at[before] + size[stays[before].tensor]),
            )
            if low < high and stays[before].end <= stays[s].start:
                space.after[s].append(before)
    return space


def _by_start(stays: Sequence[TimedResidency]) -> list[int]:
    """Residencies by start, initial residents first."""
    return sorted(
        range(len(stays)), key=lambda s: (stays[s].start, stays[s].begins != "start", stays[s].end, stays[s].tensor)
    )


def nodes_of(
    arrays: Arrays, order: Sequence[int], starts: Sequence[int], stays: Sequence[TimedResidency], space: Addresses
) -> Nodes:
    """The plan in which everything runs in the order of the times given; starts: of each operator."""
    n = len(order)
    place = {op: j for j, op in enumerate(order)}
    first = [min((place[op] for op in stay.users), default=n) for stay in stays]
    last = [max((place[op] for op in stay.users), default=-1) for stay in stays]
    serves = [n] * len(stays)
    for s, earlier in enumerate(space.after):
        for before in earlier:
            serves[before] = min(serves[before], first[s])

    events: list[tuple[tuple[int, int], int, int]] = []  # ((start, end), kind, operator or stay)
    for op in order:
        events.append(((starts[op], starts[op] + 1), COMPUTE, op))
    for s, stay in enumerate(stays):
        if stay.begins == "in":
            events.append(((stay.start, stay.ready), IN, s))
        if stay.ends == "out":
            events.append(((stay.leaves, stay.end), OUT, s))
        elif stay.ends == "drop":
            events.append(((stay.end, stay.end), DROP, s))
    events.sort()
    node = {(kind, which): at for at, (_, kind, which) in enumerate(events)}

    def ending(s: int) -> int:
        """The node after which the place is free."""
        kind = {"out": OUT, "drop": DROP}.get(stays[s].ends)
        return node[COMPUTE, order[last[s]]] if kind is None else node[kind, s]

    arriving: list[list[int]] = [[] for _ in range(n)]
    making: dict[int, int] = {}
    previous: dict[int, int] = {}
    for s in sorted(range(len(stays)), key=lambda s: (stays[s].tensor, stays[s].start)):
        stay = stays[s]
        if stay.begins == "made":
            making[stay.tensor] = s
        if stay.begins == "in":
            for op in stay.users:
                arriving[place[op]].append(node[IN, s])
            if s and stay.tensor in previous:
                space.after[s].append(previous[stay.tensor])
        previous[stay.tensor] = s
    kinds, items, served, after, at = [], [], [], [], []
    latest: dict[int, int] = {}
    for number, (_, kind, which) in enumerate(events):
        waits: set[int] = {latest[kind]} if kind in latest and kind != DROP else set()
        places: list[int] = []
        if kind == COMPUTE:
            waits.update(arriving[place[which]])
            for t in arrays.use[arrays.made_ptr[which] : arrays.use_ptr[which + 1]].tolist():
                if t in making:
                    waits.update(ending(before) for before in space.after[making[t]])
                places.append(space.at[making[t]] if t in making else 0)
            items.append(which)
            served.append(place[which])
        else:
            stay = stays[which]
            items.append(stay.tensor)
            if kind == IN:
                waits.update(ending(before) for before in space.after[which])
                places.append(space.at[which])
                served.append(first[which])
            else:
                if last[which] >= 0:
                    waits.add(node[COMPUTE, order[last[which]]])
                if stay.begins == "in":
                    waits.add(node[IN, which])
                served.append(serves[which])
        waits.discard(number)
        kinds.append(kind)
        after.append(sorted(waits))
        at.append(places)
        if kind != DROP:
            latest[kind] = number
    after_ptr, after_flat = rows(after)
    at_ptr, at_flat = rows(at)
    start_at = {stays[s].tensor: space.at[s] for s in range(len(stays)) if stays[s].begins == "start"}
    end_at = {stays[s].tensor: space.at[s] for s in range(len(stays)) if stays[s].ends == "end"}
    initial = sorted(start_at)
    return Nodes(
        kind=ints(kinds),
        item=ints(items),
        serves=ints(served),
        after_ptr=after_ptr,
        after=after_flat,
        at_ptr=at_ptr,
        at=at_flat,
        initial=ints(initial),
        initial_at=ints(start_at[t] for t in initial),
        final_at=ints(end_at[t] for t in initial),
    )
