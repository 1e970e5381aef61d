"""Masters that are priced, shared out evenly or by speed, and what else the same hosts could do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from treadle.planner.machine.masters import Masters, interleaved, shared_out
from treadle.planner.passes.aggregation.decisions import AggregationRival, ChunkMasters
from treadle.planner.passes.aggregation.levelled import levelled_masters
from treadle.planner.passes.aggregation.prices import MastersPrice, NearPrices

Groups = tuple[tuple[int, ...], ...]
WORTH = 0.85
"""Masters by speed are taken for at most this share of the time with even ones: rates are noisy."""


class PricedMasters(NamedTuple):
    """Masters in `groups`, shared out as `shares` says, and their price."""

    price: MastersPrice
    groups: Groups
    chunks: tuple[ChunkMasters, ...]
    shares: str


def candidate(prices: NearPrices, groups: Groups, pieces: Sequence[int]) -> PricedMasters:
    """The better one of even masters and those by speed."""
    even, fast = (
        _priced(prices, groups, chunks_of(pieces, _interleaved(made, groups), prices.problem.connections), shares)
        for shares, made in (
            ("even", shared_out(groups, len(pieces))),
            ("by speed", levelled_masters(prices, groups, len(pieces))),
        )
    )
    return fast if fast.price.time_ns < WORTH * even.price.time_ns else even


def rivals(prices: NearPrices, pieces: Sequence[int]) -> Iterator[AggregationRival]:
    """What else the same pieces could do on the same near groups: the ring, and even masters in one level and in
    two."""
    yield prices.ring()
    everyone = (tuple(range(prices.hosts)),)
    for name, groups in (("flat", everyone), ("two-level", prices.near)):
        if name == "flat" or len(prices.near) > 1:
            price = prices.of(groups, chunks_of(pieces, shared_out(groups, len(pieces)), 1))
            yield AggregationRival(name=name, time_ns=price.time_ns, across_bytes=price.across_bytes)


def chunks_of(pieces: Sequence[int], made: Sequence[Masters], connections: int) -> tuple[ChunkMasters, ...]:
    """The pieces with their masters. Each goes over the stream that carries the fewest bytes of its local masters so
    far."""
    carried: dict[int, list[int]] = {}
    chunks = []
    for count, (local, top) in zip(pieces, made, strict=True):
        loads = [carried.setdefault(host, [0] * connections) for host in local]
        stream = min(range(connections), key=lambda stream: sum(load[stream] for load in loads))
        for load in loads:
            load[stream] += count
        chunks.append(ChunkMasters(count, local, top, stream))
    return tuple(chunks)


def _interleaved(made: Sequence[Masters], groups: Groups) -> list[Masters]:
    """In turns, but for the last piece, which may be the only one of another size."""
    return [*interleaved(made[:-1], groups), made[-1]]


def _priced(prices: NearPrices, groups: Groups, chunks: tuple[ChunkMasters, ...], shares: str) -> PricedMasters:
    return PricedMasters(prices.of(groups, chunks), groups, chunks, shares)
