"""Tables for tensors that were allocated apart, as kernels read them (templates/fusion/treadle_buckets.h).

Of each tensor a kernel keeps 12 bytes per bucket, its address and the bucket's offset; where buckets begin is the same
for all tensors of a dimension (CoCoNet, section 5.4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treadle.planner.errors import InputError
from treadle.planner.passes.fusion.buckets import LIMIT, BucketTable


@dataclass(frozen=True, eq=False)
class BucketIndex:
    """Where the buckets of a dimension begin, and in which one every 1024th element lies."""

    table: BucketTable
    start: NDArray[np.int64]
    page: NDArray[np.int32]


def index_of(table: BucketTable) -> BucketIndex:
    """Raises InputError for buckets of another size than kernels expect."""
    if len(table) and int(table.length.max()) > LIMIT:
        raise InputError(f"found buckets of {int(table.length.max())} elements, expected at most {LIMIT}")
    pages = np.searchsorted(table.start, np.arange(0, max(1, table.elements), LIMIT), side="right") - 1
    return BucketIndex(table, table.start.astype(np.int64), np.clip(pages, 0, None).astype(np.int32))


def addresses(index: BucketIndex, tensors: Sequence[int]) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
    """By bucket, the address of its tensor, one of `tensors`, and its offset there."""
    return np.asarray(tensors, np.uint64)[index.table.tensor], index.table.offset.astype(np.int32)


def header(index: BucketIndex, start: int, page: int, address: int, offset: int) -> NDArray[Any]:
    """What the buffer of the scattered tensor holds, `struct Scattered`, when the arrays lie at these addresses."""
    return np.array([len(index.table), index.table.elements, start, page, address, offset], np.uint64)
