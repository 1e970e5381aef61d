"""Measured costs between hosts as passes price them: whole, symmetric matrices in whole ns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import combinations
from math import ceil
from typing import Literal, NamedTuple, TypeVar

from treadle.planner.documents.cost_matrix import CostMatrix
from treadle.planner.documents.scalars import MEBIBYTE, many
from treadle.planner.errors import InputError

Repair = Literal["max", "mean"]
"""What replaces two directions of a pair that differ; a pair of which one direction is missing gets the other one."""
MENDED: dict[Repair, Callable[[int, int], int]] = {"max": max, "mean": lambda one, other: -(-(one + other) // 2)}
NAMED = 3
"""How many pairs an error names."""

D = TypeVar("D")
Rows = tuple[tuple[int, ...], ...]
Measured = list[list[int | None]]
Pair = tuple[int, int]


class HostCosts(NamedTuple):
    """Between hosts by their places: half of a round trip, and ns per MiB of a stream, None without any rate. Both are
    symmetric, with zeros on the diagonal."""

    names: tuple[str, ...]
    slots: tuple[int, ...]
    latency_ns: Rows
    ns_per_MiB: Rows | None


def host_costs(costs: CostMatrix, where: str, repair: Repair | None = None) -> HostCosts:
    """The costs of `costs`, which errors call `where`; a pair without a measured rate gets an estimate.

    The estimate is the rate of the widest path between the two hosts over measured pairs, as wide as its slowest pair:
    in a network without loops no pair is slower than that. Where measured pairs form no path between them it is the
    slowest rate of all. Raises InputError, which names the pairs and how to repair them, for a matrix that is not
    symmetric or has pairs that were not measured, and for one in which everything costs nothing.
    """
    names, count = tuple(host.name for host in costs.hosts), len(costs.hosts)
    latency: Measured = [[None if us is None else _ns(us) for us in row] for row in costs.latency_us]
    rates: Measured = [[0 if src == dst else None for dst in range(count)] for src in range(count)]
    for rate in costs.rates:
        rates[rate.src][rate.dst] = ceil(MEBIBYTE * 10**9 / Fraction(rate.bytes_per_second))

    missing = [(i, j) for i, j in combinations(range(count), 2) if latency[i][j] is None and latency[j][i] is None]
    if missing:
        raise InputError(
            f"found nothing for {_pairs(missing, names)}, expected a latency; measure again or leave out such hosts",
            where=where,
            path="$.latency_us",
        )
    halves = [(i, j) for i, j in combinations(range(count), 2) if (latency[i][j] is None) != (latency[j][i] is None)]
    if halves and repair is None:
        raise _mendable(f"one direction only of {_pairs(halves, names)}", where, "$.latency_us")
    _mend(latency, names, repair, where, "$.latency_us")
    _mend(rates, names, repair, where, "$.rates")
    if count > 1 and not costs.rates and not any(map(any, latency)):
        raise InputError("found no cost between any two hosts, expected what was measured", where=where)
    if costs.rates:
        _estimate(rates)
    return HostCosts(
        names, tuple(host.slots for host in costs.hosts), _rows(latency), _rows(rates) if costs.rates else None
    )


def as_mended(made: Callable[[Repair | None], D], before: D) -> D:
    """What is `made` of costs that need no repair; else of repaired ones as they were for `before`, or by the larger of
    two directions. Raises InputError as `made`."""
    try:
        return made(None)
    except InputError:
        found = [made(repair) for repair in MENDED]
        return before if before in found else found[0]


def _ns(us: float) -> int:
    return max(1, round(us * 1000)) if us else 0


def _mend(costs: Measured, names: Sequence[str], repair: Repair | None, where: str, path: str) -> None:
    """Make `costs` symmetric. Raises InputError for directions that differ where `repair` is None."""
    uneven: list[Pair] = []
    for src, dst in combinations(range(len(costs)), 2):
        there, back = costs[src][dst], costs[dst][src]
        if there == back:
            continue
        if there is None or back is None:
            one = back if there is None else there
        else:
            uneven.append((src, dst))
            one = MENDED[repair or "max"](there, back)
        costs[src][dst] = costs[dst][src] = one
    if uneven and repair is None:
        raise _mendable(f"two directions that differ for {_pairs(uneven, names)}", where, path)


def _mendable(found: str, where: str, path: str) -> InputError:
    return InputError(
        f"found {found}, expected a symmetric matrix; mend it with --repair max or --repair mean",
        where=where,
        path=path,
    )


def _pairs(pairs: Sequence[Pair], names: Sequence[str]) -> str:
    """`4 pairs (a - b, a - c, b - c, ...)`."""
    more = ["..."] if len(pairs) > NAMED else []
    text = ", ".join([*(f"{names[src]} - {names[dst]}" for src, dst in pairs[:NAMED]), *more])
    return f"{many(len(pairs), 'pair')} of hosts ({text})"


def _estimate(costs: Measured) -> None:
    """Fill the pairs that have no cost: hosts are joined over the fastest pairs first, so that the pair that joins two
    parts is the slowest of the best path between any host of one and any of the other."""
    measured = sorted((cost, i, j) for i, j in combinations(range(len(costs)), 2) if (cost := costs[i][j]) is not None)
    parts = [[host] for host in range(len(costs))]
    slowest = measured[-1][0]
    for cost, i, j in measured:
        if parts[i] is not parts[j]:
            _fill(costs, parts[i], parts[j], cost)
            parts[i].extend(parts[j])
            for host in parts[j]:
                parts[host] = parts[i]
    for part, other in combinations({id(each): each for each in parts}.values(), 2):
        _fill(costs, part, other, slowest)


def _fill(costs: Measured, some: Sequence[int], others: Sequence[int], cost: int) -> None:
    for i in some:
        for j in others:
            if costs[i][j] is None:
                costs[i][j] = costs[j][i] = cost


def _rows(costs: Measured) -> Rows:
    return tuple(tuple(cost or 0 for cost in row) for row in costs)
