"""Tables of buckets: one kernel over many tensors that were allocated apart (CoCoNet, section 5.4).

The tensors, one behind the other, are one virtual tensor. Each is cut into buckets of `limit` elements, of which only
its last may be shorter, and warps take buckets in turn. A short bucket shifts all that follow, so that an index of the
virtual tensor divided by `limit` is not the number of its bucket: kernels search the running sums instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from treadle.planner.errors import InputError

LIMIT = 1024
"""Elements of a bucket (CoCoNet, section 5.4)."""
ENTRY_BYTES = 12
"""Bytes of the table for each bucket: the address of its tensor, 8 bytes, and its offset there, 4 bytes."""

Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class BucketTable:
    """Arrays by bucket; `start` has one entry more, the number of elements.

    `tensor` is the number of the tensor, `offset` the place in it, `start` the place in the virtual tensor.
    """

    tensor: Numbers
    offset: Numbers
    length: Numbers
    start: Numbers

    def __len__(self) -> int:
        return len(self.tensor)

    @property
    def elements(self) -> int:
        return int(self.start[-1])


def bucket_table(sizes: Sequence[int], limit: int = LIMIT) -> BucketTable:
    """The buckets of tensors of these sizes; an empty tensor has none. Raises InputError for a negative size."""
    if limit < 1 or any(size < 0 for size in sizes):
        raise InputError(f"found sizes {list(sizes)} in buckets of {limit}, expected sizes from 0 and buckets from 1")
    counts = np.array([-(-size // limit) for size in sizes], dtype=np.int64)
    tensor = np.repeat(np.arange(len(sizes), dtype=np.int64), counts)
    first = np.concatenate(([0], np.cumsum(counts)))[:-1] if len(sizes) else np.zeros(0, dtype=np.int64)
    offset = (np.arange(len(tensor), dtype=np.int64) - np.repeat(first, counts)) * limit
    length = np.minimum(limit, np.array(sizes, dtype=np.int64)[tensor] - offset)
    return BucketTable(tensor, offset, length, np.concatenate(([0], np.cumsum(length))))
