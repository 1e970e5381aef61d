"""What is wrong with hosts and the costs between them, as the problems of several passes state them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

MOST_NS = 2**40
"""The most that one cost may be, some 18 minutes, so that sums over hosts stay far within 62 bits."""
Problems = Iterator[tuple[str, str, str]]
"""(path, found, expected)"""


def problems_of_hosts(names: Sequence[str], slots: Sequence[int]) -> Problems:
    """Names that occur twice, and hosts of different numbers of slots."""
    if len({*names}) < len(names):
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        yield "$.hosts", f"{twice!r} twice", "names that occur once"
    if slots and min(slots) < max(slots):
        yield "$.hosts", f"{min(slots)} and {max(slots)} slots", "as many on every host"


def problems_of_costs(matrix: Sequence[Sequence[int]], count: int, path: str) -> Problems:
    """The first thing that is wrong with costs in ns between `count` hosts: another shape, two directions that differ,
    a cost from a host to itself, or one above MOST_NS."""
    if len(matrix) != count or any(len(row) != count for row in matrix):
        yield path, f"{len(matrix)} rows of {sorted({len(row) for row in matrix})}", f"{count} rows of {count}"
        return
    for src, row in enumerate(matrix):
        for dst, cost in enumerate(row):
            if cost != matrix[dst][src] or (src == dst and cost):
                back = "0" if src == dst else f"{matrix[dst][src]}, as the other direction"
                yield f"{path}[{src}][{dst}]", str(cost), back
                return
            if cost > MOST_NS:
                yield f"{path}[{src}][{dst}]", str(cost), f"at most {MOST_NS}"
                return
