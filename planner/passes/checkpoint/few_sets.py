"""Few distinct holder sets for any number of machines: with `copies` machines lost, each of them is one fatal set.

A group is one holder set of all its machines. What is left over makes more machines than a group and less than two:
m + q of them. A ring has m + q sets. Instead, q machines can have the set A of m machines, and the other m machines
those sets that have all q machines outside A and m - q of A. Which ones is the same question for A and m - q copies, so
that the steps are those of Euclid's algorithm. For m = 3 and q = 2 that leaves 4 of the 5 sets of the ring, for q = 1
as many as the ring has.
"""

from __future__ import annotations

from collections.abc import Sequence


def least_sets(machines: int, copies: int) -> int:
    """No placement has fewer distinct holder sets, since they have all machines (GEMINI's theorem on placement)."""
    return -(-machines // copies)


def few_sets(machines: Sequence[int], copies: int) -> list[frozenset[int]]:
    """As many sets of `copies` machines as there are machines, equal ones repeated; each machine is in `copies` of
    them. machines: at least `copies`."""
    sets: list[frozenset[int]] = []
    everywhere: frozenset[int] = frozenset()
    while machines:
        first, others = machines[:copies], machines[copies:]
        if not others or len(others) >= copies:
            sets += [everywhere.union(first)] * copies
            machines = others
        else:
            sets += [everywhere.union(first)] * len(others)
            everywhere = everywhere.union(others)
            machines, copies = first, copies - len(others)
    return sets
