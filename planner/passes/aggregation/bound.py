"""Lower bounds: what no allreduce of these hosts can avoid, by a tree, a ring or any other pattern.

Every host sends at least its own contribution and receives at least the rest of the sum, `size` bytes each. All
together receive at least 2 (n - 1) size bytes: a total is complete somewhere first only after each of the n - 1 other
hosts has sent something that went into it, in messages of which n - 1 at least were received; from then on each of the
n - 1 hosts without it receives at least one message more. A NIC receives as fast as its fastest pair, so the time is at
least that of the slowest host for its own bytes, and that of all together at the sum of their rates.

The same holds for near groups, each taken as one host behind its uplink.

The first byte arrives no earlier than the smallest latency, and the total needs, from the farthest host, the largest
latency of all shortest paths.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil

import numpy as np
from scipy.sparse.csgraph import shortest_path

from treadle.planner.documents.scalars import MEBIBYTE
from treadle.planner.passes.aggregation.prices import NearPrices
from treadle.planner.search.bound import Argument, Bound

AFTER = ", in {busy} ns, after the smallest latency, {latency} ns"
SENTENCES = {
    "alone": "one host has the sum",
    "host": "host {host} sends and receives at least the whole buffer" + AFTER,
    "hosts": (
        "{hosts} hosts receive at least {messages} times the buffer together, as fast as all of their NICs" + AFTER
    ),
    "group": "near group {group} sends and receives at least the whole buffer over its uplink" + AFTER,
    "groups": (
        "{groups} near groups receive at least {messages} times the buffer together, as fast as all of their uplinks"
        + AFTER
    ),
    "latency": "what host {src} gives reaches host {dst} over the shortest path",
}


def sentence(bound: Bound) -> str:
    """Why `bound` holds, in words."""
    return bound.argument.printed(SENTENCES)


def lower_bound(prices: NearPrices) -> Bound:
    """The bound of every allreduce on the hosts, NICs and uplinks of `prices`."""
    n, size = prices.hosts, Fraction(prices.problem.size_bytes, MEBIBYTE)
    if n == 1:
        return Bound(0, Argument("alone"))
    latency = np.array(prices.problem.latency_ns, dtype=float)
    first = int(latency[~np.eye(n, dtype=bool)].min())
    found = [*_carried("host", size, [Fraction(nic) for nic in prices.nics])]
    if prices.uplinks:
        found += _carried("group", size, list(prices.uplinks))
    bounds = [
        Bound(first + ceil(time), Argument(kind, {"latency": first, "busy": ceil(time)}, facts))
        for time, kind, facts in found
    ]
    # Paths without latency would count as none.
    far = np.rint(shortest_path(np.maximum(latency, 1e-3)))
    src, dst = (int(place) for place in np.unravel_index(int(far.argmax()), far.shape))
    bounds.append(Bound(int(far[src, dst]), Argument("latency", facts={"src": src, "dst": dst})))
    return max(bounds, key=lambda bound: bound.time_ns)


def _carried(
    one: str, size: Fraction, costs: list[Fraction]
) -> list[tuple[Fraction, str, dict[str, int | float | str]]]:
    """(ns, argument, facts) of the slowest of some ends of links, and of all together."""
    slowest, messages = costs.index(max(costs)), 2 * (len(costs) - 1)
    together = messages * size / sum(1 / cost for cost in costs)
    return [
        (size * max(costs), one, {one: slowest}),
        (together, f"{one}s", {f"{one}s": len(costs), "messages": messages}),
    ]
