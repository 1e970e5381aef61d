"""NCCL's own algorithms next to ours: which of them is best at which size, by the model of `planner.machine.nccl`.

Between two powers of two, cut where the plateau of rings begins, the time of each of NCCL's algorithms is a line over
the bytes. The best of several lines is one line throughout where it is the same at both ends, so ranges are found by
halving alone, and are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

from treadle.planner.documents.collective import Collective
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.selection import NcclRange
from treadle.planner.machine.nccl import NcclMethod, best, call_bytes, candidates, library_of

MOST_BYTES = 2**40
"""Inputs of more are not priced."""
Time = Callable[[int], float | None]


def rivals(hardware: Hardware, collective: Collective, cuts: Iterable[int], plan_us: Time) -> tuple[NcclRange, ...]:
    """NCCL's best from 0 bytes of input on every rank to MOST_BYTES, in ranges that end where it changes and before
    each of `cuts`. `plan_us` is the time of what we run at a size, None where that is not known."""
    library = library_of(hardware)
    found = () if isinstance(library, str) else candidates(library, collective)
    if isinstance(library, str) or not found:
        return ()
    ranks = library.ranks

    def at(size: int) -> NcclMethod:
        return best(found, call_bytes(collective, ranks, size))

    scale = call_bytes(collective, ranks, 1)
    bends = {-(-(2**power) // scale) for power in range(MOST_BYTES.bit_length() + scale.bit_length())}
    bends |= {-(-candidate.plateau_bytes // scale) for candidate in found}
    marks = sorted({0, MOST_BYTES + 1} | {mark for mark in bends if mark <= MOST_BYTES})
    starts = [start for low, after in pairwise(marks) for start in _changes(low, after - 1, at)]
    changes = {start for before, start in pairwise(starts) if at(before) != at(start)}
    edges = sorted({0, MOST_BYTES + 1} | changes | {cut for cut in cuts if 0 < cut <= MOST_BYTES})
    made: list[NcclRange] = []
    for low, after in pairwise(edges):
        candidate, ends = at(low), (low, after - 1)
        sizes = [call_bytes(collective, ranks, size) for size in ends]
        ours = [plan_us(size) for size in ends]
        made.append(
            NcclRange(
                min_bytes=low,
                max_bytes=after - 1,
                algorithm=candidate.algorithm,
                protocol=candidate.protocol,
                channels=(candidate.channels(sizes[0]), candidate.channels(sizes[1])),
                time_us=(round(candidate.time_us(sizes[0]), 3), round(candidate.time_us(sizes[1]), 3)),
                plan_us=None if ours[0] is None or ours[1] is None else (ours[0], ours[1]),
            )
        )
    return tuple(made)


def fitted(hardware: Hardware) -> bool:
    """Whether the profile has factors of NCCL's model."""
    return hardware.transports.nccl_library is not None and bool(hardware.transports.nccl_library.methods)


def _changes(low: int, high: int, at: Callable[[int], NcclMethod]) -> Iterator[int]:
    """Where the best begins to be another, `low` among them."""
    yield low
    while at(low) != at(high):
        first, last = low, high
        while last - first > 1:
            middle = (first + last) // 2
            first, last = (middle, last) if at(middle) == at(low) else (first, middle)
        yield last
        low = last
