"""Machines in an order in which those of a group are of different failure domains, and groups share few sets of them.

Losing one domain then loses no state, and losing two loses those states only whose groups these two share. So domains
are cut into bundles of as many as there are copies, as machines are into groups, and each group takes one machine of
each domain in its bundle.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from treadle.planner.passes.checkpoint.placement import cycles_of


def spread(domains: Sequence[int], copies: int) -> list[int]:
    """All machines, those of each group next to each other, what no group takes last. domains: of each machine."""
    members: dict[int, list[int]] = {}
    for machine, domain in enumerate(domains):
        members.setdefault(domain, []).append(machine)
    largest_first = sorted(members.values(), key=len, reverse=True)
    order: list[int] = []
    left: list[list[int]] = []
    bundles = cycles_of(largest_first, copies) if len(members) >= copies else [largest_first]
    for bundle in bundles:
        taken, rest = _from_different(bundle, copies)
        order += taken
        left += rest
    taken, rest = _from_different(left, copies)
    return [*order, *taken, *_in_turns(rest)]


def _from_different(members: Iterable[list[int]], copies: int) -> tuple[list[int], list[list[int]]]:
    """Groups of one machine each of the domains with the most machines left, and what no group takes."""
    left = [list(machines) for machines in members]
    order: list[int] = []
    while True:
        largest = sorted(left, key=len, reverse=True)[:copies]
        if len(largest) < copies or not largest[-1]:
            return order, [machines for machines in left if machines]
        order += [machines.pop(0) for machines in largest]


def _in_turns(members: list[list[int]]) -> list[int]:
    """One machine of each domain in turn."""
    longest = max(map(len, members), default=0)
    return [machines[turn] for turn in range(longest) for machines in members if turn < len(machines)]
