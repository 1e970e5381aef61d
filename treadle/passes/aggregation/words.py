"""An aggregation plan in words and figures: groups by the names of hosts, and why these levels were chosen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_bytes, format_time, many
from treadle.planner.passes.aggregation.decisions import AggregationDecisions, AggregationRival

MOST_NAMES = 8
"""Hosts of a group that are named in a line; of more the first ones and how many follow."""
OTHER = {1: "two-level", 2: "flat"}
"""The rival with the other number of levels."""


class Duties(NamedTuple):
    """One host: of how many bytes it is the master of its group, and of how many the global one."""

    local_bytes: int
    top_bytes: int


def summary(plan: Plan[AggregationDecisions]) -> dict[str, Any]:
    """The figures that people ask for first."""
    decisions, proof = plan.decisions, plan.certificate
    return {
        "hosts": len(decisions.problem.hosts),
        "groups": [group_names(decisions, group) for group in decisions.near],
        "levels": decisions.levels,
        "rounds": 2 * decisions.levels,
        "chunks": len(decisions.chunks),
        "total_bytes": decisions.total_bytes,
        "across_bytes": decisions.across_bytes,
        "across_to_inside": ratio(decisions),
        "time_ns": decisions.time_ns,
        "rivals": {
            each.name: {"time_ns": each.time_ns, "across_bytes": each.across_bytes} for each in decisions.rivals
        },
        "lower_bound_ns": int(proof.lower_bound),
        "gap": proof.gap,
        "optimal": proof.optimal,
        "bound_argument": proof.argument,
    }


def group_names(decisions: AggregationDecisions, group: Sequence[int]) -> list[str]:
    """The names of a group's hosts."""
    return [decisions.problem.hosts[host].name for host in group]


def named(names: Sequence[str]) -> str:
    """The names, or the first of them and how many follow."""
    left = len(names) - MOST_NAMES
    return ", ".join(names) if left <= 0 else f"{', '.join(names[:MOST_NAMES])} and {left} more"


def ratio(decisions: AggregationDecisions) -> float | None:
    """How much slower a stream between two near groups is than one inside, by the means of rates; None for one group
    or groups of one host."""
    home = {host: number for number, group in enumerate(decisions.near) for host in group}
    rates: dict[bool, list[float]] = {True: [], False: []}
    for i, row in enumerate(decisions.problem.ns_per_MiB):
        for j, ns in enumerate(row):
            if i != j:
                rates[home[i] == home[j]].append(1 / ns)
    inside, across = rates[True], rates[False]
    if not inside or not across:
        return None
    return (sum(inside) / len(inside)) / (sum(across) / len(across))


def duties(decisions: AggregationDecisions) -> tuple[Duties, ...]:
    """By host."""
    local, top = Counter[int](), Counter[int]()
    for chunk in decisions.chunks:
        top[chunk.top] += chunk.bytes
        for host in chunk.local:
            local[host] += chunk.bytes
    return tuple(Duties(local[host], top[host]) for host in range(len(decisions.problem.hosts)))


def rival(decisions: AggregationDecisions, name: str) -> AggregationRival | None:
    """The rival of that name, if there is one."""
    return next((each for each in decisions.rivals if each.name == name), None)


def why(decisions: AggregationDecisions) -> str:
    """The levels, and what the other number of levels would come to."""
    chosen = "two levels" if decisions.levels == 2 else "one level"
    mine = f"{chosen}, {2 * decisions.levels} rounds: {figures(decisions.across_bytes, decisions.time_ns)}"
    other = rival(decisions, OTHER[decisions.levels])
    if other is None:
        return mine
    rounds = 2 * (3 - decisions.levels)
    return f"{mine}; {other.name}, {rounds} rounds: {figures(other.across_bytes, other.time_ns)}"


def figures(across_bytes: int, time_ns: int) -> str:
    """Bytes between groups and the predicted time."""
    return f"{format_bytes(across_bytes)} across, {format_time(time_ns)}"


def links(decisions: AggregationDecisions) -> str:
    """What was measured inside groups and between them."""
    times = ratio(decisions)
    if times is None:
        return f"{many(len(decisions.near), 'group')}: nothing to compare"
    return f"a stream inside a group is {times:.2f} times as fast as one between groups"
