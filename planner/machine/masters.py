"""Who adds up which chunk: a local master in each group of hosts, one of them the global master, shared out evenly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Masters(NamedTuple):
    """`local[g]` is the host that adds up the chunk in group g; `top`, one of them, adds up their sums."""

    local: tuple[int, ...]
    top: int


def shared_out(
    groups: Sequence[Sequence[int]], chunks: int, weights: Sequence[int] | None = None
) -> tuple[Masters, ...]:
    """Masters of each of `chunks` equal chunks (PLink, "AggEngine").

    Groups get global masters in proportion to their sizes, hosts of a group equal numbers of local masters, and of
    global ones among these. `weights` by host, such as bandwidths, take the place of sizes and of equal numbers. The
    chunks of a group's global masters follow one another.
    """
    by_host = {host: 1 if weights is None else weights[host] for group in groups for host in group}
    tops = proportional(chunks, [sum(by_host[host] for host in group) for group in groups])
    return masters(groups, tops, [[by_host[host] for host in group] for group in groups])


def masters(
    groups: Sequence[Sequence[int]], tops: Sequence[int], weights: Sequence[Sequence[int]]
) -> tuple[Masters, ...]:
    """Masters of sum(tops) equal chunks, tops[g] of them with the global master in group g, where host `number` of the
    group has a share of weights[g][number]."""
    chunks, first = sum(tops), 0
    local, top = [], []
    for group, held, shares in zip(groups, tops, weights, strict=True):
        counts = proportional(chunks, shares)
        highest = proportional(held, shares, most=counts)
        topped = evenly(group, highest)
        rest = evenly(group, [count - high for count, high in zip(counts, highest, strict=True)])
        local.append([*rest[:first], *topped, *rest[first:]])
        top += topped
        first += held
    return tuple(Masters(chosen, high) for chosen, high in zip(zip(*local, strict=True), top, strict=True))


def interleaved(chunks: Sequence[Masters], groups: Sequence[Sequence[int]]) -> tuple[Masters, ...]:
    """The same masters in an order in which the groups of global masters take turns: neighbouring chunks, which travel
    together, load different uplinks."""
    home = {host: number for number, group in enumerate(groups) for host in group}
    of_group: list[list[Masters]] = [[] for _ in groups]
    for each in chunks:
        of_group[home[each.top]].append(each)
    turns = evenly(range(len(groups)), [len(held) for held in of_group])
    queues = [iter(held) for held in of_group]
    return tuple(next(queues[turn]) for turn in turns)


def proportional(total: int, weights: Sequence[int], most: Sequence[int] | None = None) -> list[int]:
    """`total` things in proportion to weights, none of them more than `most`: each its whole part, and the rest one by
    one to the largest remainders, the first of equal ones. Weights that are all 0 count as equal."""
    whole = sum(weights)
    shares = [divmod(total * weight, whole) if whole else divmod(total, len(weights)) for weight in weights]
    found = [part if most is None else min(part, most[place]) for place, (part, _) in enumerate(shares)]
    order = sorted(range(len(weights)), key=lambda place: -shares[place][1])
    while (left := total - sum(found)) > 0:
        open_ = [place for place in order if most is None or found[place] < most[place]]
        for place in open_[:left]:
            found[place] += 1
    return found


def evenly(things: Sequence[int], counts: Sequence[int]) -> list[int]:
    """Each thing as often as its count, spread over the whole list."""
    places = [
        ((2 * turn + 1) / count, number, thing)
        for number, (thing, count) in enumerate(zip(things, counts, strict=True))
        for turn in range(count)
    ]
    return [thing for _, _, thing in sorted(places)]
