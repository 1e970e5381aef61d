"""What other schemes of summing come to, counted for the checker: the ring, and masters shared out evenly.

Even masters: groups have global masters in proportion to their sizes, and hosts of a group equal numbers of chunks as
local masters and of those as global ones. What whole parts leave goes one by one to the largest remainders,
the first of equal ones. Chunks are alike but for the last one, whose master is in each group the host with most.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import ceil

from treadle.planner.passes.aggregation.check_times import Groups, HostLoads, fill_ns, latencies
from treadle.planner.passes.aggregation.decisions import AggregationDecisions, AggregationRival
from treadle.planner.passes.aggregation.problem import AggregationProblem

NOTHING = {"time_ns": 0, "across_bytes": 0}


def counted_rivals(decisions: AggregationDecisions) -> list[AggregationRival]:
    """The rivals that a plan must state, in their order."""
    problem, near = decisions.problem, decisions.near
    sizes = [chunk.bytes for chunk in decisions.chunks]
    everyone = (tuple(range(len(problem.hosts))),)
    found = [_ring(problem, near), _even("flat", problem, near, everyone, sizes)]
    return [*found, _even("two-level", problem, near, near, sizes)] if len(near) > 1 else found


def _ring(problem: AggregationProblem, near: Groups) -> AggregationRival:
    """Two rounds of a ring, group by group: each host sends all but one of n parts twice to the next one."""
    order = [host for group in near for host in group]
    count = len(order)
    if count == 1:
        return AggregationRival(name="ring", **NOTHING)
    traffic, slowest = HostLoads(problem, near), 0
    for place, src in enumerate(order):
        dst = order[(place + 1) % count]
        traffic.send(src, dst, Fraction(2 * (count - 1) * problem.size_bytes, count))
        slowest = max(slowest, problem.latency_ns[src][dst])
    return AggregationRival(
        name="ring",
        time_ns=2 * (count - 1) * slowest + traffic.busy_ns(),
        across_bytes=ceil(traffic.across),
    )


def _even(
    name: str, problem: AggregationProblem, near: Groups, groups: Groups, sizes: Sequence[int]
) -> AggregationRival:
    """Masters of `groups`, one group of all or those of `near`, shared out evenly."""
    hosts, levels = len(problem.hosts), min(2, len(groups))
    if hosts == 1:
        return AggregationRival(name=name, **NOTHING)
    local, top = _even_bytes(groups, sizes)
    traffic, size = HostLoads(problem, near), problem.size_bytes
    for group in groups:
        for host in group:
            own, all_of = local[host], top[host]
            sent = size - own + (len(group) - 1) * own + (own - all_of) + (len(groups) - 1) * all_of
            traffic.hosts[host] = [Fraction(sent), Fraction(sent)]
    for number, group in enumerate(near):
        held = sum(top[host] for host in group)
        if len(groups) > 1:
            sent = size - held + (len(near) - 1) * held
        else:
            sent = len(group) * (size - held) + (hosts - len(group)) * held
        traffic.groups[number] = [Fraction(sent), Fraction(sent)]
    inside, across = latencies(problem.latency_ns, groups)
    return AggregationRival(
        name=name,
        time_ns=2 * (inside + across) + traffic.busy_ns() + fill_ns(problem, max(sizes), levels),
        across_bytes=sum(int(sent) for sent, _ in traffic.groups) if len(near) > 1 else 0,
    )


def _even_bytes(groups: Groups, sizes: Sequence[int]) -> tuple[dict[int, int], dict[int, int]]:
    """By host: the bytes of which it is a local master, and of these a global one."""
    chunks, each, short = len(sizes), sizes[0], sizes[0] - sizes[-1]
    tops = _dealt(chunks, [len(group) for group in groups])
    last = max(number for number, held in enumerate(tops) if held)
    local, top = dict[int, int](), dict[int, int]()
    for number, (group, held) in enumerate(zip(groups, tops, strict=True)):
        mine = _dealt(chunks, [1] * len(group))
        high = _dealt(held, [1] * len(group), mine)
        counts = high if number == last else [a - b for a, b in zip(mine, high, strict=True)]
        final = max(range(len(group)), key=lambda place: (counts[place], place))
        for place, host in enumerate(group):
            missing = short if place == final else 0
            local[host] = mine[place] * each - missing
            top[host] = high[place] * each - (missing if number == last else 0)
    return local, top


def _dealt(total: int, weights: Sequence[int], most: Sequence[int] | None = None) -> list[int]:
    """`total` things in proportion to `weights`, at most `most` of them."""
    found = [total * weight // sum(weights) for weight in weights]
    remainders = [total * weight % sum(weights) for weight in weights]
    turn = sorted(range(len(weights)), key=lambda place: (-remainders[place], place))
    while sum(found) < total:
        for place in turn:
            if sum(found) < total and (most is None or found[place] < most[place]):
                found[place] += 1
    return found
