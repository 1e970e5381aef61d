"""The groups of near hosts that are planned with: given ones, as many as were asked for, or those that stand out."""

from __future__ import annotations

from collections import Counter

from treadle.planner.errors import InputError
from treadle.planner.machine.host_groups import Groups, HostGroups, host_groups
from treadle.planner.passes.aggregation.problem import AggregationProblem


def given_groups(groups: Groups, hosts: int) -> HostGroups:
    """Groups that a user gave. Raises InputError unless they have every host once."""
    listed = Counter(host for group in groups for host in group)
    wrong = [f"no host {host}" for host in range(hosts) if not listed[host]]
    wrong += [f"host {host} twice" for host in sorted(listed) if listed[host] > 1]
    wrong += [f"host {host}" for host in sorted(listed) if not 0 <= host < hosts]
    if wrong or not all(groups):
        found = (wrong or ["no host in one"])[0]
        raise InputError(f"found groups with {found}, expected each of {hosts} hosts in one group")
    return HostGroups(tuple(sorted(tuple(sorted(group)) for group in groups)), "given")


def near_grouping(problem: AggregationProblem, count: int | None, *, elasticity: float, seed: int) -> HostGroups:
    """The groups of near hosts that stand out, or `count` of them. Raises InputError for a count that the hosts do not
    allow."""
    hosts = len(problem.hosts)
    if count is not None and not 1 <= count <= hosts:
        raise InputError(f"found {count} groups of {hosts} hosts, expected 1 to {hosts}")
    return host_groups(problem.latency_ns, problem.ns_per_MiB, number=count, elasticity=elasticity, seed=seed)
