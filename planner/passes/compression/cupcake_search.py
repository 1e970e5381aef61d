"""Algorithm 5.1 of Cupcake (section 5.4), repaired: a search over partitions, depth first, with its two prunings.

As printed it starts from every first group and records a solution only in the loop of the recursion, so it never
considers all gradients in one group, and it does not bound the first group. Starting from the empty prefix repairs
both. The first pruning bounds a group by the work that is left after it, which is at least one encoding and one send of
all the rest: true where joining two groups never costs more. The second tries no group that is encoded while the
channel is still busy and could have been longer: true where costs are affine. Both are tested on the costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from treadle.planner.passes.compression.cupcake import simple
from treadle.planner.passes.compression.group_costs import GroupCosts, Grouping, Times
from treadle.planner.search.clock import Expired, never

_Prefix = tuple[int, int, int, tuple[int, ...]]
"""The first gradient of the rest, when stream and channel end, and the ends of the groups."""
NEARLY = 1000
"""Costs that are affine up to this fraction of what all gradients in one group take pass as affine: measured curves and
payloads in whole words are no closer."""


@dataclass(frozen=True)
class Searched:
    """The best partition found. nodes: groups that were tried; bounded: of these, cut by the first pruning; skipped:
    groups that the second one kept from being tried. complete: no limit ended the search."""

    grouping: Grouping
    nodes: int
    bounded: int
    skipped: int
    complete: bool


def subadditive(table: Times) -> bool:
    """Whether two neighbouring groups never take less than their union."""
    return all(
        bool((table[: cut + 1, cut, None] + table[None, cut + 1, cut + 1 :] >= table[: cut + 1, cut + 1 :]).all())
        for cut in range(len(table) - 1)
    )


def affine(table: Times, within_ns: int = 0) -> bool:
    """Whether joining two neighbouring groups always saves the same time, up to `within_ns`, and never costs any."""
    least, most = None, None
    for cut in range(len(table) - 1):
        saved = table[: cut + 1, cut, None] + table[None, cut + 1, cut + 1 :] - table[: cut + 1, cut + 1 :]
        least = int(saved.min()) if least is None else min(least, int(saved.min()))
        most = int(saved.max()) if most is None else max(most, int(saved.max()))
    return least is None or most is None or (least >= 0 and most - least <= within_ns)


def search(
    costs: GroupCosts,
    *,
    bounding: bool = True,
    skipping: bool = True,
    start: Grouping | None = None,
    node_limit: int | None = None,
    expired: Expired = never,
    visit: Callable[[int, int, int, int], None] | None = None,
) -> Searched:
    """The partition of least time of one option, whose decoding is folded or ignored.

    bounding, skipping: the first and the second pruning. start: a partition to beat, by default the best simple one.
    visit: is called with first, last, and the two terms of the bound of each group that is tried. Of equal times the
    fewest groups.
    """
    best = start or min(simple([costs]), key=lambda one: one.key)
    count = len(costs.backward)
    passed = [0, *np.cumsum(costs.backward).tolist()]
    encode, send, allowed = costs.encode.tolist(), costs.send.tolist(), costs.allowed.tolist()
    encode_rest = [*(row[count - 1] for row in encode), 0]
    send_rest = [*(row[count - 1] for row in send), 0]
    nodes = bounded = skipped = 0
    complete = True

    def extended(first: int, computed: int, sent: int, ends: tuple[int, ...]) -> Iterator[_Prefix]:
        """The prefixes with one more group that are not cut, each tried when it is asked for."""
        nonlocal nodes, bounded, skipped, complete
        least = first
        if skipping:
            for last in range(first, count):
                work = passed[last + 1] - passed[first] + encode[first][last]
                if work > sent - computed or not allowed[first][last]:
                    break
                least = last
            skipped += least - first
        for last in range(least, count):
            if not allowed[first][last]:
                return
            if (node_limit is not None and nodes >= node_limit) or (nodes % 1024 == 0 and expired()):
                complete = False
                return
            nodes += 1
            ready = computed + passed[last + 1] - passed[first] + encode[first][last]
            free = max(ready, sent) + send[first][last]
            base = ready + passed[count] - passed[last + 1] + encode_rest[last + 1]
            case = free + send_rest[last + 1]
            if visit is not None:
                visit(first, last, base, case)
            groups = len(ends) + (2 if last + 1 < count else 1)
            if bounding and (max(base, case), groups) >= (best.ns, len(best.ends)):
                bounded += 1
                continue
            yield last + 1, ready, free, (*ends, last)

    open_prefixes = [extended(0, 0, 0, ())]
    while open_prefixes:
        prefix = next(open_prefixes[-1], None)
        if prefix is None:
            open_prefixes.pop()
        elif prefix[0] == count:
            found = Grouping(prefix[2], prefix[3], (0,) * len(prefix[3]))
            best = min(best, found, key=lambda grouping: grouping.key)
        else:
            open_prefixes.append(extended(*prefix))
    return Searched(best, nodes, bounded, skipped, complete)


def faithful_search(costs: GroupCosts, *, node_limit: int | None = None, expired: Expired = never) -> Searched:
    """The search with the prunings that are true of these costs."""
    tables = (costs.encode, costs.send)
    return search(
        costs,
        bounding=all(subadditive(table) for table in tables),
        skipping=all(affine(table, int(table.max()) // NEARLY) for table in tables),
        node_limit=node_limit,
        expired=expired,
    )
