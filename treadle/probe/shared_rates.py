"""What pairs get of a link that groups of hosts share, from rounds in which all of them send at once.

How streams divide a full link among them is chance, for a minute and more; what they carry together is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from treadle.probe.schedule import Pair, Round


def shared_rates(
    rounds: Sequence[Round],
    measured: Mapping[Pair, float],
    before: Mapping[Pair, float],
    groups: Sequence[Sequence[int]],
) -> dict[Pair, float]:
    """Rates of all directions of `rounds`: what the streams of a round between two groups carry together, divided
    evenly. A pair gets no more than the fastest streams of both its hosts `before`, and if it had less than half of an
    even part in both measurements, it is slow itself and keeps the better one."""
    fastest: dict[int, float] = {}
    for pair, rate in before.items():
        for host in pair:
            fastest[host] = max(rate, fastest.get(host, 0.0))
    found: dict[Pair, float] = {}
    for together in _sharing(rounds, groups):
        total = sum(measured[pair] for pair in together)
        most = []
        for pair in together:
            own = max(measured[pair], before.get(pair, 0.0))
            most.append(own if _is_slow(own, total, together) else min(fastest.get(host, own) for host in pair))
        found |= zip(together, divided(total, most), strict=True)
    return found


def slow_pairs(
    rounds: Sequence[Round],
    measured: Mapping[Pair, float],
    before: Mapping[Pair, float],
    groups: Sequence[Sequence[int]],
) -> list[Pair]:
    """The pairs that `shared_rates` takes for slow themselves, in the order of the rounds."""
    return [
        pair
        for together in _sharing(rounds, groups)
        for pair in together
        if _is_slow(max(measured[pair], before.get(pair, 0.0)), sum(measured[each] for each in together), together)
    ]


def _is_slow(own: float, total: float, together: Sequence[Pair]) -> bool:
    return own < total / len(together) / 2


def _sharing(rounds: Sequence[Round], groups: Sequence[Sequence[int]]) -> list[list[Pair]]:
    """Streams of a round from one group to another, which share what is between these."""
    group_of = {host: number for number, group in enumerate(groups) for host in group}
    found: list[list[Pair]] = []
    for pairs in rounds:
        streams: dict[tuple[int, int], list[Pair]] = {}
        for one, other in pairs:
            for src, dst in ((one, other), (other, one)):
                streams.setdefault((group_of[src], group_of[dst]), []).append((src, dst))
        found += streams.values()
    return found


def divided(total: float, most: Sequence[float]) -> list[float]:
    """`total` in equal parts, but none above its `most`; what those leave goes to the others."""
    shares = [0.0] * len(most)
    for place, at in enumerate(order := sorted(range(len(most)), key=lambda at: most[at])):
        shares[at] = min(most[at], total / (len(order) - place))
        total -= shares[at]
    return shares
