"""Which bytes masters make hosts send: between every two hosts, and between near groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from treadle.planner.passes.aggregation.decisions import ChunkMasters
from treadle.planner.passes.aggregation.problem import AggregationProblem

Groups = Sequence[Sequence[int]]
PairBytes = NDArray[np.int64]
"""Bytes from host i to host j, as many as from j to i."""

LEAST_PIECE_BYTES, MOST_MESSAGES = 1024, 20_000


def pair_bytes(hosts: int, groups: Groups, chunks: Iterable[ChunkMasters]) -> PairBytes:
    """The bytes of all messages of `chunks`: members and the master of their group, local masters and the global
    one."""
    found = np.zeros((hosts, hosts), dtype=np.int64)
    stars: Counter[tuple[int, int]] = Counter()
    for chunk in chunks:
        for number, local in enumerate(chunk.local):
            stars[number, local] += chunk.bytes
            if local != chunk.top:
                found[local, chunk.top] += chunk.bytes
    found += found.T
    for (number, local), count in stars.items():
        members = [member for member in groups[number] if member != local]
        found[local, members] += count
        found[members, local] += count
    return found


def leaving(sent: PairBytes, near: Groups) -> list[int]:
    """The bytes that leave each near group; as many enter it."""
    outside = [np.setdiff1d(np.arange(len(sent)), group) for group in near]
    return [int(sent[[*group]][:, others].sum()) for group, others in zip(near, outside, strict=True)]


def pieces(problem: AggregationProblem) -> list[int]:
    """The bytes of the chunks, all alike but the last one.

    None is larger than the problem's chunk_bytes, and hosts get equal numbers, unless that makes pieces of less than
    LEAST_PIECE_BYTES or a program of more than MOST_MESSAGES.
    """
    hosts, slots, size = len(problem.hosts), problem.hosts[0].slots, problem.size_bytes
    most = max(1, min(size // LEAST_PIECE_BYTES, MOST_MESSAGES // max(1, 2 * (hosts * slots - 1))))
    count = min(most, -(-size // problem.chunk_bytes))
    for even in (hosts * slots, hosts):
        if most >= even:
            count = min(-(-count // even) * even, most // even * even)
            break
    each = -(-size // count)
    return [min(each, size - done) for done in range(0, size, each)]
