"""From measured costs between hosts and a collective to the problem of ordering the hosts."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.planner.documents.cost_matrix import CostMatrix
from treadle.planner.documents.scalars import MEBIBYTE, many
from treadle.planner.errors import InputError
from treadle.planner.machine.host_costs import HostCosts, Repair, host_costs
from treadle.planner.machine.host_groups import host_groups
from treadle.planner.passes.ranks.problem import VERSION, Algorithm, Objective, PlanHop, RankedHost, RanksProblem

DEFAULT_BYTES = 64 * MEBIBYTE
"""The size of a collective for which none is given, where rates are known."""
MOST_GROUPED = 256
"""With more hosts, grouping them and pricing orders on shared links would leave the search no time."""
BASE = 4
"""Hosts in a group of BCube, as in the evaluation of "PLink Collectives"."""


def problem_of(
    costs: CostMatrix,
    algorithm: Algorithm,
    *,
    objective: Objective = "sum",
    size_bytes: int | None = None,
    factors: Sequence[int] = (),
    hops: Sequence[PlanHop] = (),
    repair: Repair | None = None,
    where: str = "cost matrix",
) -> RanksProblem:
    """The problem of the hosts of `costs`, which errors call `where`.

    `size_bytes`: by default 64 MiB where rates were measured. `factors`: those of BCube, or a single base (4 by
    default). `hops`: those of a plan, by place.

    Raises InputError for a matrix that is not whole or symmetric and for which no `repair` is given, for hosts of
    different numbers of slots, and for factors that do not go with the number of hosts.
    """
    _require_equal_slots(costs, where)
    if factors and algorithm != "bcube":
        raise InputError(f"found factors for {algorithm}, expected them for bcube only", where="--factors")
    found, count = host_costs(costs, where, repair), len(costs.hosts)
    default = 0 if found.ns_per_MiB is None else DEFAULT_BYTES
    problem = RanksProblem(
        version=VERSION,
        hosts=tuple(RankedHost(name=host.name, slots=host.slots) for host in costs.hosts),
        latency_ns=found.latency_ns,
        ns_per_MiB=found.ns_per_MiB,
        size_bytes=default if size_bytes is None else size_bytes,
        algorithm=algorithm,
        objective=objective,
        factors=bcube_factors(count, factors) if algorithm == "bcube" else (),
        hops=tuple(hops),
        near=_near(found),
    )
    for path, seen, expected in problem.problems():
        raise InputError(f"found {seen}, expected {expected}", where=f"problem of {where}", path=path)
    return problem


def _near(costs: HostCosts) -> tuple[tuple[int, ...], ...]:
    """The groups of hosts that share a link to the others; none of a single group."""
    if costs.ns_per_MiB is None or len(costs.names) > MOST_GROUPED:
        return ()
    groups = host_groups(None, costs.ns_per_MiB).groups
    return groups if len(groups) > 1 else ()


def bcube_factors(count: int, given: Sequence[int] = ()) -> tuple[int, ...]:
    """Hosts in a group of each round: those given, or by a base as large groups as divide the hosts that are left, up
    to it. Raises InputError where their product is not `count`."""
    if len(given) > 1 or count in given:
        product = 1
        for factor in given:
            product *= factor
        if product != count or min(given) < 2:
            text = " * ".join(map(str, given))
            raise InputError(f"found {text}, expected numbers above 1 whose product is {count}", where="--factors")
        return tuple(given)
    base = given[0] if given else BASE
    factors, left = list[int](), count
    while left > 1:
        divisors = [each for each in range(2, min(base, left) + 1) if left % each == 0]
        if not divisors:
            rest = [*factors, left]
            raise InputError(
                f"found {many(count, 'host')}, which groups of at most {base} do not divide, expected factors such as "
                f"--factors {','.join(map(str, rest))}",
                where="--factors",
            )
        factors.append(divisors[-1])
        left //= divisors[-1]
    return tuple(factors)


def _require_equal_slots(costs: CostMatrix, where: str) -> None:
    """Raises InputError for hosts with different numbers of slots: places in the list would not be hosts."""
    for place, host in enumerate(costs.hosts):
        if host.slots != costs.hosts[0].slots:
            first = costs.hosts[0]
            raise InputError(
                f"found {host.slots} on {host.name} and {first.slots} on {first.name}, expected as many on every host",
                where=where,
                path=f"$.hosts[{place}].slots",
            )
