"""Masters moved away from slow hosts while a job runs (PLink, "Autotune"): Quicktune at once, then steps of Finetune.

Both keep groups, chunks and their bytes, and what every plan keeps: one local master in each group for each chunk, one
of them the global one.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from msgspec.structs import replace

from treadle.planner.documents.scalars import MEBIBYTE
from treadle.planner.machine.masters import interleaved, masters, proportional
from treadle.planner.passes.aggregation.decisions import AggregationDecisions, ChunkMasters
from treadle.planner.passes.aggregation.levelled import levelled_masters
from treadle.planner.passes.aggregation.prices import NearPrices

BETA = GAMMA = 0.5
EPSILON = 1.1
Rates = Sequence[Sequence[float | None]]
"""Bytes per second from host i to host j, None where nothing was measured; the diagonal does not count."""


class HostTraffic(NamedTuple):
    """What the operating systems of hosts counted in some iterations, from host i to host j: bytes sent, seconds of a
    round trip, and bytes per second, None where nothing was sent."""

    sent: Sequence[Sequence[float]]
    round_trip_s: Sequence[Sequence[float | None]]
    rates: Rates


def quicktune(decisions: AggregationDecisions, rates: Rates, *, exact: bool = True) -> AggregationDecisions:
    """Masters by the rates that hosts have now; those of pairs that were not measured are estimated.

    exact: shares with which the busiest NIC and uplink end as early as they can, counting what a host exchanges also
    as a member. Otherwise PLink's approximation: global masters to groups in proportion to the rates out of the group,
    local ones, and the global ones among them, to hosts in proportion to the rates of each to all others. That leaves
    a slow host a share that makes it the last one: of 8 hosts with one at half its rate, iterations take 44 % longer.
    """
    groups, known = decisions.groups, known_rates(decisions, rates)
    if exact:
        costs = tuple(tuple(max(1, round(MEBIBYTE * 1e9 / rate)) if rate else 0 for rate in row) for row in known)
        prices = NearPrices(replace(decisions.problem, ns_per_MiB=costs), decisions.near)
        made = levelled_masters(prices, groups, len(decisions.chunks))
    else:
        outgoing = [round(sum(sum(known[i]) - sum(known[i][j] for j in group) for i in group)) for group in groups]
        tops = proportional(len(decisions.chunks), outgoing)
        made = masters(groups, tops, [[round(sum(known[host])) for host in group] for group in groups])
    pairs = zip(decisions.chunks, interleaved(made, groups), strict=True)
    return _with(decisions, [ChunkMasters(chunk.bytes, *each, chunk.connection) for chunk, each in pairs])


def blame(measured: HostTraffic, beta: float = BETA, gamma: float = GAMMA) -> list[float]:
    """How much each host holds the others up: `beta` times its place between the fewest bytes sent and the most, plus
    `gamma` times its time as part of the mean, which is its longest round trip and its bytes over its rates."""
    n = len(measured.sent)
    others = [[j for j in range(n) if j != i] for i in range(n)]
    sent = [sum(measured.sent[i][j] for j in others[i]) for i in range(n)]
    rates = [sum(measured.rates[i][j] or 0 for j in others[i]) for i in range(n)]
    trips = [max((measured.round_trip_s[i][j] or 0 for j in others[i]), default=0) for i in range(n)]
    times = [trip + (count / rate if rate else 0) for trip, count, rate in zip(trips, sent, rates, strict=True)]
    mean, least, span = sum(times) / n or 1, min(sent), max(sent) - min(sent)
    return [
        beta * ((count - least) / span if span else 0) + gamma * time / mean
        for count, time in zip(sent, times, strict=True)
    ]


def most_blamed(measured: HostTraffic, epsilon: float = EPSILON) -> int | None:
    """The host with the largest blame; None if that is at most `epsilon` times the least."""
    found = blame(measured)
    return found.index(max(found)) if max(found) > epsilon * min(found) else None


def finetune(
    decisions: AggregationDecisions, measured: HostTraffic, moves: int = 1, *, epsilon: float = EPSILON
) -> tuple[AggregationDecisions, int | None]:
    """Up to `moves` masters from the most blamed host to the least blamed one, and the former; the same decisions and
    None where no host is to blame, or it has no master to move.

    A global master goes first. Where the least blamed host is of another group it becomes the local master there too.
    Otherwise a local master goes to the least blamed host of the group.
    """
    worst, found = most_blamed(measured, epsilon), blame(measured)
    if worst is None:
        return decisions, None
    order = sorted(range(len(found)), key=lambda host: (found[host], host))
    group = next(number for number, members in enumerate(decisions.groups) if worst in members)
    near = next(host for host in order if host in decisions.groups[group])
    homes = {host: number for number, members in enumerate(decisions.groups) for host in members}
    chunks = list(decisions.chunks)
    moved = 0
    for _ in range(moves):
        tops = [place for place, chunk in enumerate(chunks) if chunk.top == worst]
        locals_ = [place for place, chunk in enumerate(chunks) if chunk.local[group] == worst]
        if tops:
            chunks[tops[0]] = _topped(chunks[tops[0]], order[0], homes[order[0]])
        elif locals_ and near != worst:
            chunks[locals_[0]] = _mastered(chunks[locals_[0]], near, group)
        else:
            break
        moved += 1
    return (_with(decisions, chunks), worst) if moved else (decisions, None)


def _topped(chunk: ChunkMasters, host: int, group: int) -> ChunkMasters:
    return ChunkMasters(chunk.bytes, _mastered(chunk, host, group).local, host, chunk.connection)


def _mastered(chunk: ChunkMasters, host: int, group: int) -> ChunkMasters:
    local = (*chunk.local[:group], host, *chunk.local[group + 1 :])
    return ChunkMasters(chunk.bytes, local, chunk.top, chunk.connection)


def known_rates(decisions: AggregationDecisions, rates: Rates) -> list[list[float]]:
    """The rates, 0 on the diagonal. Those that are missing are the problem's, at the share of it that the slower one of
    the two hosts has over its other pairs, by the median."""
    n = len(decisions.problem.hosts)
    probed = [[MEBIBYTE * 1e9 / ns if ns else 0.0 for ns in row] for row in decisions.problem.ns_per_MiB]
    shares = [[rate / probed[i][j] for j, rate in enumerate(rates[i]) if rate and j != i] for i in range(n)]
    usual = median([share for row in shares for share in row] or [1.0])
    kept = [median(row or [usual]) for row in shares]
    return [
        [0.0 if i == j else rates[i][j] or probed[i][j] * min(kept[i], kept[j]) for j in range(n)] for i in range(n)
    ]


def _with(decisions: AggregationDecisions, chunks: Sequence[ChunkMasters]) -> AggregationDecisions:
    """The decisions with other masters, and the figures of these."""
    price = NearPrices(decisions.problem, decisions.near).of(decisions.groups, chunks)
    return replace(decisions, chunks=tuple(chunks), **price._asdict())
