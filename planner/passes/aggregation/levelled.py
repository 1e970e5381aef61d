"""Masters by the speed of hosts: shares with which the busiest host, and the busiest uplink, end as early as they can.

As a member a host sends and receives each chunk once. Its share of the group's masterships comes on top, so a host that
is slow enough gets none, where shares in proportion to bandwidths would leave it some.
"""

from __future__ import annotations

from collections.abc import Sequence

from treadle.planner.machine.masters import Masters, masters, proportional
from treadle.planner.passes.aggregation.prices import NearPrices
from treadle.planner.passes.aggregation.traffic import Groups

WHOLE = 10**9


def levelled_masters(prices: NearPrices, groups: Groups, chunks: int) -> tuple[Masters, ...]:
    """Masters of equal chunks, in shares by NICs and, between near groups, by uplinks."""
    count, sizes = len(groups), [len(group) for group in groups]
    if prices.uplinks and count == len(prices.uplinks) > 2:
        tops = proportional(chunks, filled(1, count - 2, [float(uplink) for uplink in prices.uplinks]))
    else:
        tops = proportional(chunks, sizes)
    shares = []
    for group, size, held in zip(groups, sizes, tops, strict=True):
        extra = size - 1 + (count - 2) * held / chunks
        shares.append(filled(1, extra, [prices.nics[host] for host in group]))
    return masters(groups, tops, shares)


def filled(base: float, extra: float, costs: Sequence[float]) -> list[int]:
    """Shares in `extra`, in parts of WHOLE, that minimise the largest (base + share * extra) * cost; equal ones for
    nothing extra."""
    if extra <= 0:
        return [1] * len(costs)
    level, total = 0.0, 0.0
    for number, cost in enumerate(sorted(costs), 1):
        if number > 1 and level <= base * cost:
            break
        total += 1 / cost
        level = (extra + number * base) / total
    return [round(max(0.0, level / cost - base) / extra * WHOLE) for cost in costs]
