"""Algorithm 5.1 of Cupcake (section 5.4), repaired: a search over partitions, depth first, with its two prunings.

As printed it starts from every first group and records a solution only in the loop of the recursion, so it never
considers all gradients in one group, and it does not bound the first group. Starting from the empty prefix repairs
both. The first pruning bounds a group by the work that is left after it, which is at least one encoding and one send of
all the rest where joining two groups never costs more. Rounding to ns and to words of payloads makes it cost a little,
so the most that joining two costs is taken off once for each join that the rest may need, which is right for any costs.
The second pruning tries no group that is encoded while the channel is still busy and could have been longer: true where
costs are affine, which is tested.
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


def joining_ns(table: Times) -> int:
    """The most ns by which two neighbouring groups take less than their union; 0 where costs are subadditive."""
    return max([0, *(-int(_saved(table, cut).min()) for cut in range(len(table) - 1))])


def _saved(table: Times, cut: int) -> Times:
    """ns that joining saves of each group that ends at `cut` with each that begins after it."""
    saved: Times = table[: cut + 1, cut, None] + table[None, cut + 1, cut + 1 :] - table[: cut + 1, cut + 1 :]
    return saved


def affine(table: Times, within_ns: int = 0) -> bool:
    """Whether joining two neighbouring groups always saves the same time, up to `within_ns`, and never costs any."""
    least, most = None, None
    for cut in range(len(table) - 1):
        saved = _saved(table, cut)
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
    encode_rest, send_rest = (_least_rest(table, bounding) for table in (costs.encode, costs.send))
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


def _least_rest(table: Times, bounding: bool) -> list[int]:
    """What all gradients from each one on take at least, whatever their groups; 0 for none."""
    count = len(table)
    joining = joining_ns(table) if bounding else 0
    return [*(ns - joining * (count - 1 - first) for first, ns in enumerate(table[:, -1].tolist())), 0]


def faithful_search(costs: GroupCosts, *, node_limit: int | None = None, expired: Expired = never) -> Searched:
    """The search with the prunings that are true of these costs."""
    tables = (costs.encode, costs.send)
    return search(
        costs,
        skipping=all(affine(table, int(table.max()) // NEARLY) for table in tables),
        node_limit=node_limit,
        expired=expired,
    )
