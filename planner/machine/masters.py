"""Who adds up which chunk: a local master in each group of hosts, one of them the global master, shared out evenly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Masters(NamedTuple):
    """`local[g]` is the host that adds up the chunk in group g; `top`, one of them, adds up their sums."""

    local: tuple[int, ...]
    top: int


def shared_out(
    groups: Sequence[Sequence[int]], chunks: int, weights: Sequence[int] | None = None
) -> tuple[Masters, ...]:
    """Masters of each of `chunks` equal chunks (PLink, "AggEngine").

    Groups get global masters in proportion to their sizes, hosts of a group equal numbers of local masters, and of
    global ones among these. `weights` by host, such as bandwidths, take the place of sizes and of equal numbers.
    """
    raise NotImplementedError
