"""Which network joins some hosts: the rate of each NIC, pairs that are slower, and uplinks that several hosts share.

Everything is found from streams between hosts, some one at a time and some at once:

- one stream in each direction of a pair gives the rate of the pair; the fastest of a host is the rate of its NIC;
- two hosts are under the same uplink if streams between them keep their rate while all other hosts send to each other;
- all hosts of an uplink that send out of it together fill it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import permutations
from statistics import mean, median

Pair = tuple[int, int]
Streams = Callable[[Sequence[Pair]], list[float]]
"""Bytes per second of streams (from, to) that run at once."""

EVERY_PAIR = 16
"""Up to this number of hosts every pair is timed; with more, three partners of each host."""
PARTNERS = 8
"""Hosts to which each one sends in the background of other streams."""
REPEATS, UPLINK_TESTS = 2, 3
ALIKE, STEADY = 0.1, 0.97
SLOWED, DOUBTFUL, AGREE, TESTS = 0.8, (0.25, 0.9), 2, 5
"""The share of their rate that streams keep where no shared link is full; between these shares it is measured again.

Between two racks of two it is about 1/2 (0.2 to 0.7 in the lab), within a rack at least 0.97, also on busy machines.
"""


@dataclass(frozen=True)
class Survey:
    """Rates are bytes per second. `slow_pairs` are below what NICs and uplinks give."""

    nics: tuple[float, ...]
    slow_pairs: dict[Pair, float]
    uplinks: tuple[tuple[tuple[int, ...], float], ...]


def survey(hosts: int, streams: Streams) -> Survey:
    """The network of `hosts` hosts, at least 2, from what `streams` measures.

    Interference only slows a stream, so the fastest of several repeats counts.
    """
    alone = {pair: streams([pair])[0] for pair in _pairs(hosts)}
    for pair, rate in alone.items():
        if rate < STEADY * min(max(alone[other] for other in alone if host in other) for host in pair):
            alone[pair] = max(rate, *(streams([pair])[0] for _ in range(REPEATS)))
    fastest = [max(rate for pair, rate in alone.items() if host in pair) for host in range(hosts)]
    nics = [_typical(rate, fastest) for rate in fastest]
    uplinks = []
    usual = {(src, dst): alone.get((src, dst), min(nics[src], nics[dst])) for src, dst in permutations(range(hosts), 2)}
    for rack in _racks(hosts, usual, streams):
        rate = _uplink(rack, hosts, streams)
        inside, outside = (sum(nics[host] for host in range(hosts) if (host in rack) == side) for side in (True, False))
        if rate < (1 - ALIKE) * min(inside, outside):
            uplinks.append((rack, rate))
    limits = {host: rate for rack, rate in uplinks for host in rack}
    rack_of = {host: rack for rack, _ in uplinks for host in rack}
    slow: dict[Pair, float] = {}
    for (src, dst), rate in alone.items():
        most = min(nics[src], nics[dst])
        if rack_of.get(src) != rack_of.get(dst):
            most = min(most, limits.get(src, most), limits.get(dst, most))
        if rate < (1 - 2 * ALIKE) * most:
            pair = (min(src, dst), max(src, dst))
            slow[pair] = max(rate, slow.get(pair, 0.0))
    return Survey(tuple(nics), slow, tuple(uplinks))


def _pairs(hosts: int) -> list[Pair]:
    if hosts <= EVERY_PAIR:
        return list(permutations(range(hosts), 2))
    offsets = sorted({1, hosts // 3, hosts // 2})
    return [(host, (host + offset) % hosts) for host in range(hosts) for offset in offsets]


def _typical(rate: float, rates: Sequence[float]) -> float:
    """The middle one of the rates that are like `rate`: equal NICs get equal rates."""
    near = sorted(other for other in rates if abs(other - rate) <= ALIKE * max(other, rate))
    return near[len(near) // 2]


def _racks(hosts: int, usual: dict[Pair, float], streams: Streams) -> list[tuple[int, ...]]:
    racks: list[list[int]] = []
    for host in range(hosts):
        shares = [_kept_share(rack[0], host, hosts, usual, streams) for rack in racks]
        if max(shares, default=0.0) > SLOWED:
            racks[shares.index(max(shares))].append(host)
        else:
            racks.append([host])
    return [tuple(rack) for rack in racks]


def _kept_share(one: int, other: int, hosts: int, usual: dict[Pair, float], streams: Streams) -> float:
    """The share of their rate that streams between two hosts keep when all others send to each other; small where a
    link that they share is full."""
    others = [host for host in range(hosts) if host not in (one, other)]
    step = max(1, len(others) // PARTNERS)
    background = [
        (src, others[(place + offset) % len(others)])
        for place, src in enumerate(others)
        for offset in range(1, len(others), step)
    ]
    kept: list[float] = []
    while len(kept) < TESTS:
        there, back = streams([(one, other), (other, one), *background])[:2]
        # streams divide a full link by chance; both directions together vary less than either
        kept.append(mean((there / usual[one, other], back / usual[other, one])))
        if len(kept) == AGREE and (max(kept) <= DOUBTFUL[0] or min(kept) > DOUBTFUL[1]):
            break  # one alone may be what other work on the machines did
    return median(kept)


def _uplink(rack: tuple[int, ...], hosts: int, streams: Streams) -> float:
    """The most that the hosts of `rack` send to or receive from the others together."""
    others = [host for host in range(hosts) if host not in rack]
    if not others:
        return 0.0
    step = max(1, len(others) // PARTNERS)
    out = [
        (host, others[(place + index) % len(others)])
        for place, host in enumerate(rack)
        for index in range(0, len(others), step)
    ]
    back = [(dst, src) for src, dst in out]
    return max(median(sum(streams(pairs)) for _ in range(UPLINK_TESTS)) for pairs in (out, back))
