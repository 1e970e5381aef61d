"""Whether two tensors may ever be in the same place: the checker's part on memory.

A residency of a tensor (treadle.planner.passes.swap.residencies) comes before another one if the node with which it
leaves always ends before the other arrives. Of two residencies with common bytes one must come before the other.

* pool, offset: residencies are laid down in the order of their arrivals; each must come after those it covers. It then
  also comes after those that these cover, because a residency leaves after it arrived.
* bytes: no set of residencies of which none comes before another may exceed the memory. An arrival takes unused bytes,
  or bytes of residencies that come before it: a flow along the edges of the plan. By Dilworth's theorem in its weighted
  form all arrivals can be served if and only if no such set is too large; a minimum cut is that set.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from treadle.planner.passes.swap.happens_before import HappensBefore
from treadle.planner.passes.swap.residencies import START, Residency
from treadle.planner.solver.max_flow import max_flow


class Clash(NamedTuple):
    """`second` takes bytes of `first` without waiting for it to leave."""

    first: Residency
    second: Residency


def clashes(stays: Sequence[Residency], sizes: Sequence[int], order: HappensBefore) -> Iterator[Clash]:
    """Residencies at overlapping addresses, in the order of arrival, of which the first may still be present when the
    second arrives. sizes: bytes of each tensor."""
    starts: list[int] = [0]  # of segments, ascending, each as long as up to the next
    owners: list[Residency | None] = [None]
    for stay in stays:
        low, high = stay.at, stay.at + sizes[stay.tensor]
        seen: list[Residency] = []
        left = _cut(starts, owners, low)
        right = _cut(starts, owners, high)
        for owner in owners[left:right]:
            if owner is not None and owner not in seen:
                seen.append(owner)
        starts[left:right], owners[left:right] = [low], [stay]
        for owner in seen:
            if not _before(owner, stay, order):
                yield Clash(owner, stay)


def _cut(starts: list[int], owners: list[Residency | None], at: int) -> int:
    """The index of the segment that starts at `at`, after a cut there if necessary."""
    index = bisect_left(starts, at)
    if index == len(starts) or starts[index] != at:
        starts.insert(index, at)
        owners.insert(index, owners[bisect_right(starts, at) - 2])
    return index


def _before(first: Residency, second: Residency, order: HappensBefore) -> bool:
    return first.leaves is not None and second.begin != START and order.before(first.leaves, second.begin)


def crowd(
    stays: Sequence[Residency], sizes: Sequence[int], order: HappensBefore, room: int
) -> tuple[Sequence[Residency], int]:
    """Residencies, if any, that may all be present at one time and take more than `room` bytes, and their bytes. sizes:
    bytes of each tensor."""
    held = sum(sizes[stay.tensor] for stay in stays if stay.begin == START)
    if held > room:
        found = [stay for stay in stays if stay.begin == START]
        return found, held
    nodes = order.nodes
    # two for each node of the plan, its start and its end: what leaves with it cannot serve what arrives with it
    count = len(nodes)
    source, sink, spare = 2 * count, 2 * count + 1, 2 * count + 2
    arrive: list[int] = [0] * count
    leave: list[int] = [0] * count
    for stay in stays:
        if stay.begin != START:
            arrive[stay.begin] += sizes[stay.tensor]
        if stay.leaves is not None:
            leave[stay.leaves] += sizes[stay.tensor]
    arcs: list[tuple[int, int, int]] = [(source, spare, room - held)]
    for at, node in enumerate(nodes):
        # no byte passes one edge twice
        arcs.append((at, count + at, room))
        arcs += [(count + before, at, room) for before in node.after]
        if arrive[at]:
            arcs += [(at, sink, arrive[at]), (spare, at, room)]
        if leave[at]:
            arcs.append((source, count + at, leave[at]))
    served, cut = max_flow(2 * count + 3, arcs, source, sink)
    if served == sum(arrive):
        return (), 0
    found = [
        stay
        for stay in stays
        if (stay.begin == START or stay.begin not in cut) and (stay.leaves is None or count + stay.leaves in cut)
    ]
    return found, sum(sizes[stay.tensor] for stay in found)
